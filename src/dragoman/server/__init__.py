"""The HTTP API: routes, key checks and handlers."""
