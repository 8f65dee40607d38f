"""The request that the running code works for."""

from contextvars import ContextVar

# Its id, for log lines. Each request has a task of its own, and so its own value, which tasks that it starts inherit.
request_id: ContextVar[str] = ContextVar("request_id", default="")
