"""The admin API: the functions of `operate/` as JSON over HTTP, below /api/v1/."""
