"""The admin API: the functions of `admin/` as JSON over HTTP, below /api/v1/."""
