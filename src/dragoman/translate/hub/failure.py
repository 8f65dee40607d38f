"""Failures: a closed set of kinds that every protocol reads its errors into and renders its errors from."""

from enum import Enum
from typing import final

from msgspec import Struct

UNKNOWN_MODEL = "model_not_found"  # the code of a request for a model that does not exist, in OpenAI's spelling
UNKNOWN_USE = "counters_unreachable"  # the code of a request that is not admitted because it is not known what was used
NO_REPLY = "no_reply"  # the code of a body that is not a reply at all, as opposed to a reply with a defect


class Kind(Enum):
    BAD_REQUEST = "bad_request"  # the client's request is wrong, or requests something unavailable
    TOO_LARGE = "too_large"
    REQUEST_TIMEOUT = "request_timeout"  # the client took too long to send its request
    AUTH = "auth"  # the client's key was rejected
    CREDENTIAL = "credential"  # the upstream rejected the gateway's credential
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    QUOTA = "quota"
    RATE_LIMITED = "rate_limited"
    LIMITED = "limited"  # a limit of ours that will have room again soon
    SPENT = "spent"  # a limit of ours that has none until it resets
    OVERLOADED = "overloaded"
    BUSY = "busy"  # the gateway has reached its own limit
    CONTEXT_TOO_LONG = "context_too_long"
    REFUSED = "refused"  # by the vendor's content policy
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"  # the stream ended without its terminal event
    CORRUPT = "corrupt"  # bytes that cannot be decoded
    LOST = "lost"  # the connection failed or broke
    UPSTREAM = "upstream"  # an error inside the upstream
    BUG = "bug"  # a bug of the gateway
    SHUTDOWN = "shutdown"  # the gateway stopped before the reply was complete


@final
class Failure(Struct, frozen=True):
    kind: Kind
    message: str
    status: int | None = None  # the upstream's HTTP status, where there was one
    code: str | None = None  # the vendor's own error code, in its spelling
    at: str | None = None  # JSON pointer to the field at fault
    retry_after: float | None = None  # seconds
    resets_at: float | None = None  # seconds since the epoch, where the upstream states it
    detail: dict[str, object] | None = None  # sent as error.details where the protocol has such a field
    should_retry: bool | None = None  # what the upstream advises


def describe_cause(error: BaseException, without_text: str = "") -> str:
    """Return what an exception says, never an empty text: `str` of a bare TimeoutError is one.

    An OSError says what the system says, without its number and the name of the file. `without_text` is returned for
    an exception that says nothing; else its type is.
    """
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    if text or without_text:
        return text or without_text
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__


class RequestError(Exception):
    """A failure that is known before anything was sent to the client."""

    def __init__(self, failure: Failure, *, observed: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.observed = observed  # it is already logged, for example as the outcome of its request

    def as_observed(self) -> "RequestError":
        return RequestError(self.failure, observed=True)


class BadRequest(RequestError):
    """The client's mistake: HTTP 400. `at` is a JSON pointer to the field at fault."""

    def __init__(self, at: str, message: str, *, code: str | None = None) -> None:
        super().__init__(Failure(Kind.BAD_REQUEST, message, code=code, at=at))
