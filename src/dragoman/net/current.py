"""The request that the running code works for, so that whatever it logs can name it."""

from contextvars import ContextVar

# Each exchange has a task of its own, and so its own value; what the task starts inherits it.
request_id: ContextVar[str] = ContextVar("request_id", default="")
