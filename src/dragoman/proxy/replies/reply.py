"""Choose the reply of a turn, and what all replies have in common."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from msgspec import Struct

from dragoman.net.headers import Headers
from dragoman.proxy.call import Call
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.source import EventSource
from dragoman.proxy.step import Ask, TurnEnd
from dragoman.proxy.why import Why
from dragoman.translate.framing.known_secrets import Secrets
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.ports import Progress
from dragoman.translate.hub.usage import Usage


class ReplyForm(Enum):
    """The form of a reply: as the client requested it, or as the upstream sends it."""

    STREAM = "a stream"
    DOCUMENT = "a document"


CONVERTED = {form: Why(False, f"the upstream answered with {form.value}") for form in ReplyForm}


def choose_reply(request: Why, requested: ReplyForm, answered: ReplyForm) -> Why:
    """Return whether the upstream's bytes pass, and why: those of a passed request do in the form that was requested.

    With the form that the client requested, this decides between the four classes of replies.
    """
    return CONVERTED[answered] if request.passes and answered is not requested else request


class ReplyOrigin(Struct, frozen=True):
    """What a reply answers, and why it passes or is translated."""

    call: Call
    ask: Ask
    prepared: Prepared
    headers: Headers  # of the upstream's answer
    watch: ReplyMonitor
    why: Why


class TurnReply(Protocol):
    """One turn's reply on its way to the client."""

    watch: ReplyMonitor

    @property
    def why(self) -> Why: ...
    @property
    def usage(self) -> Usage | None: ...  # as the client gets it
    @property
    def reported(self) -> Usage | None: ...  # by the upstream of its own turn, so far
    @property
    def used_alone(self) -> Usage | None: ...  # of its own turn
    async def commit(self) -> None: ...  # the first token has come: no other turn replaces this one
    def interrupt(self, failure: Failure) -> None: ...  # the upstream's body will not end, or the call is cancelled
    def conclude(self) -> TurnEnd: ...  # how the turn ended, once all of it was read
    async def finish(self) -> None: ...  # once, last: end the client's reply
    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        """Read through another source from now on; return the secrets that may stand in what it reads."""


class ObservedUsage:
    """The usage of a reply that passes as it came, and is one turn: what its upstream reports."""

    __slots__ = ("watch",)
    watch: ReplyMonitor

    @property
    def usage(self) -> Usage | None:
        return self.watch.final_usage

    @property
    def reported(self) -> Usage | None:
        return self.watch.usage

    used_alone = usage


class StreamedReply(TurnReply, Protocol):
    """A reply that is read piece by piece. What is fed before `commit` is held."""

    @property
    def lingers(self) -> bool: ...  # what follows the terminal event is the client's too
    @property
    def keep_alive(self) -> Callable[[], Awaitable[None]] | None: ...  # sent while the upstream pauses; None: nothing
    @property
    def progress(self) -> Progress: ...  # of the upstream's decoder
    @property
    def has_begun(self) -> bool: ...  # whether the client would see anything of the reply
    @property
    def early_failure(self) -> Failure | None: ...  # that leaves nothing to commit
    @property
    def is_over(self) -> bool: ...  # nothing more is to be read
    def feed(self, chunk: bytes) -> bool: ...  # after False, call `wait_for_room` before the next chunk
    async def wait_for_room(self) -> Failure | None: ...  # the failure if there will be none
    def end(self) -> None: ...  # once, when the upstream's body is over


class DocumentReply(TurnReply, Protocol):
    """A reply whose body was read whole."""

    def read(self) -> list[Event]: ...  # pure: that of a large body runs in a thread
    def take(self, events: list[Event]) -> None: ...  # what `read` has returned
