"""The values of the turn loop: what to do next (`Step`), and how an upstream turn ended (`TurnEnd`)."""

import asyncio
from typing import final

from msgspec import Struct

from dragoman.flow.complete_reply import (
    CallCompleted,
    CallsDropped,
    CompleteCall,
    Continuation,
    CutCalls,
    DropCutCalls,
    find_cut_calls,
)
from dragoman.flow.pipes import TranslationPipe
from dragoman.flow.prepare import Change, Prepared
from dragoman.flow.response_writer import OpenReply
from dragoman.flow.rounds import (
    ContinuePause,
    PauseContinued,
    Paused,
    Rounds,
    RunTools,
    ToolsCalled,
    ToolsRan,
    find_pause,
    find_server_calls,
)
from dragoman.hub.failure import Failure
from dragoman.net.headers import Headers
from dragoman.providers.provider import Provider
from dragoman.routing import Route


class ErrorReply(Struct, frozen=True):
    """An upstream's error in the client's own protocol, kept as it came."""

    status: int
    headers: Headers
    body: bytes


@final
class NoReply(Struct, frozen=True):
    """The turn failed before anything of its reply was written for the client."""

    failure: Failure
    error_reply: ErrorReply | None = None


class Interrupted(Struct, frozen=True):
    """The reply broke off after some of it was written for the client."""

    failure: Failure
    text: str | None = None  # so far; None where no other upstream could continue it


class Completed(Struct, frozen=True):
    """The reply has ended, and the client has been written all of it, a failure that was its last event included."""

    failure: Failure | None = None


class Waited(Struct, frozen=True):
    """The wait before another attempt is over."""


TurnEnd = (
    NoReply
    | Interrupted
    | CutCalls
    | CallCompleted
    | CallsDropped
    | ToolsCalled
    | ToolsRan
    | Paused
    | PauseContinued
    | Completed
    | Waited
)


@final
class Ask(Struct, frozen=True):
    """Run one upstream turn."""

    route: Route
    provider: Provider  # with the credential to use
    number: int  # of this upstream request in its call, from 1
    changes: tuple[Change, ...] = ()  # of the request, besides those that the provider always makes
    continuation: Continuation | None = None  # of a reply that another upstream has begun
    rounds: Rounds | None = None  # of this reply, between which the gateway has run tools
    renew_after: Failure | None = None  # renew the credential first; this stays the failure if that does not work


class Wait(Struct, frozen=True):
    """Wait before another attempt."""

    seconds: float

    async def run(self, reply: OpenReply) -> Waited:
        await asyncio.sleep(self.seconds)
        return Waited()


@final
class GiveUp(Struct, frozen=True):
    """End the call with this failure."""

    failure: Failure
    error_reply: ErrorReply | None = None


@final
class Finish(Struct, frozen=True):
    """End the reply."""


# The loop itself knows `Ask`, `GiveUp` and `Finish`. Every other step runs itself between two turns.
Step = Ask | Wait | CompleteCall | DropCutCalls | RunTools | ContinuePause | GiveUp | Finish


def find_unfinished(prepared: Prepared, pipe: TranslationPipe) -> TurnEnd | None:
    """Return what a reply still needs whose upstream has ended it; None: it is complete."""
    return find_cut_calls(prepared, pipe) or find_server_calls(prepared, pipe) or find_pause(pipe)
