"""The values of the turn loop: what to do next (`Step`), and how an upstream turn ended (`TurnEnd`)."""

from msgspec import Struct

from dragoman.flow.prepare import Change, Prepared
from dragoman.flow.steps.continue_reply import Continuation
from dragoman.hub.events import TruncatedCall
from dragoman.hub.failure import Failure
from dragoman.net.headers import Headers
from dragoman.providers.provider import Provider
from dragoman.routing.resolve import Route


class ErrorReply(Struct, frozen=True):
    """An upstream's error in the client's own protocol, kept as it came."""

    status: int
    headers: Headers
    body: bytes


class NoReply(Struct, frozen=True):
    """The turn failed before anything of its reply was written for the client."""

    failure: Failure
    error_reply: ErrorReply | None = None


class Interrupted(Struct, frozen=True):
    """The reply broke off after some of it was written for the client."""

    failure: Failure
    said: str | None = None  # its text so far; None where no other upstream could continue it


class CutCalls(Struct, frozen=True):
    """The reply is complete but for tool calls whose arguments were cut, which were not written for the client."""

    prepared: Prepared
    calls: tuple[TruncatedCall, ...]


class CallCompleted(Struct, frozen=True):
    """Whether the rest of a cut call was found, and has been written for the client."""

    calls: tuple[TruncatedCall, ...]
    found: bool


class Completed(Struct, frozen=True):
    """The reply has ended, and the client has been written all of it, a failure that was its last event included."""

    failure: Failure | None = None


TurnEnd = NoReply | Interrupted | CutCalls | CallCompleted | Completed


class Ask(Struct, frozen=True):
    """Run one upstream turn."""

    route: Route
    provider: Provider  # with the credential to use
    number: int  # of this upstream request in its call, from 1
    changes: tuple[Change, ...] = ()  # of the request, besides those that the provider always makes
    continuation: Continuation | None = None  # of a reply that another upstream has begun
    renew_after: Failure | None = None  # renew the credential first; this stays the failure if that does not work


class Wait(Struct, frozen=True):
    """Wait so long, then go on with `Policy.resume`."""

    seconds: float


class CompleteCall(Struct, frozen=True):
    """Ask the same upstream for the rest of its cut call."""

    prepared: Prepared
    calls: tuple[TruncatedCall, ...]


class GiveUp(Struct, frozen=True):
    """Tell the client this failure."""

    failure: Failure
    error_reply: ErrorReply | None = None


class Finish(Struct, frozen=True):
    """End the reply; `lost` are tool calls that are not part of it because they were cut."""

    lost: tuple[TruncatedCall, ...] = ()


Step = Ask | Wait | CompleteCall | GiveUp | Finish
