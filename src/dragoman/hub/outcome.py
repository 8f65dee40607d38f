"""What one request came to: a usage row, a log line and a set of metrics are each made from this value alone."""

from collections.abc import Callable

from msgspec import Struct

from dragoman.hub.usage import Usage

OK = "ok"
CLIENT_GONE = "client_gone"  # the client left before the end


class FailedAttempt(Struct, frozen=True, gc=False):
    """One question to an upstream that came to nothing, and why."""

    route: str  # provider/model
    why: str  # a Kind of failure


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    request_id: str  # of the request, as its headers and log lines name it
    started_at: float  # seconds since the epoch
    key: str = ""  # the id of the client's key, never the key
    client: str = ""  # the program that asked, by its user agent
    client_protocol: str  # the client's protocol
    upstream_protocol: str = ""  # the upstream's; "" where none was reached
    requested_model: str = ""  # the model's name as the client gave it
    provider: str = ""
    model: str = ""  # the upstream's name for it
    reported_model: str = ""  # as the reply itself names it
    stream: bool = False
    passthrough: bool = False
    usage: Usage | None = None  # None: nobody told
    ttft_s: float | None = None
    duration_s: float = 0.0
    outcome: str = OK  # or CLIENT_GONE, or the kind of the failure
    error_code: str | None = None  # the vendor's word for the failure
    losses: int = 0
    losses_by_how: tuple[int, ...] = ()  # the losses by how, in the order of How; () where there are none
    deltas: int = 0
    failed_attempts: tuple[FailedAttempt, ...] = ()  # what was tried before
    traceparent: str = ""  # the client's traceparent header, as it came

    @property
    def route(self) -> str:
        return f"{self.provider}/{self.model}" if self.provider else ""


OutcomeObserver = Callable[[Outcome], None]
