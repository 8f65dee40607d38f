"""The values of the turn loop: what to do next (`Step`), and how an upstream turn ended (`TurnEnd`)."""

import asyncio
from typing import TYPE_CHECKING, final

from msgspec import Struct

from dragoman.net.headers import Headers
from dragoman.proxy.between_turns import CallScope, Then
from dragoman.proxy.complete_reply import CompleteCall, CutCalls, DropCutCalls, find_cut_calls
from dragoman.proxy.continue_elsewhere import Continuation
from dragoman.proxy.left_out import LeftOut
from dragoman.proxy.prepared import Change, Translated
from dragoman.proxy.rounds import (
    ContinuePause,
    Paused,
    Rounds,
    RunTools,
    ToolsCalled,
    find_pause,
    find_server_calls,
)
from dragoman.translate.hub.failure import Failure
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.rejections.complaint import Complaint
from dragoman.upstreams.rejections.rules import Found
from dragoman.upstreams.routing import Route

if TYPE_CHECKING:  # it imports this module
    from dragoman.proxy.replies.translated import TranslatedReply


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
    complaint: Complaint | None = None  # what the upstream has said about the request
    repairs: tuple[Found, ...] = ()  # the rules of which that is an instance
    lacks_reasoning: bool = False  # the request had no opaque reasoning that could have been refused
    is_of_vendor: bool = True  # the upstream is the protocol's own vendor, whose errors its clients know


class Interrupted(Struct, frozen=True):
    """The reply broke off after some of it was written for the client."""

    failure: Failure
    text: str | None = None  # so far; None where no other upstream could continue it


class Completed(Struct, frozen=True):
    """The reply has ended, and the client has been written all of it, a failure that was its last event included."""

    failure: Failure | None = None


TurnEnd = NoReply | Interrupted | CutCalls | ToolsCalled | Paused | Completed


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
    repairs: tuple[Found, ...] = ()  # what was rejected of it in this call, and is not learned yet
    drops_reasoning: bool = False  # the provider has just rejected it
    left_out: LeftOut | None = None  # reasoning; no reason to build a request whose bytes may pass


class Wait(Struct, frozen=True):
    """Wait before another attempt."""

    seconds: float

    async def run(self, scope: CallScope) -> Then:
        await asyncio.sleep(self.seconds)
        return Then.TRY_AGAIN


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


def find_unfinished(prepared: Translated, reply: "TranslatedReply") -> TurnEnd | None:
    """Return what a reply still needs whose upstream has ended it; None: it is complete."""
    return find_cut_calls(prepared, reply) or find_server_calls(prepared, reply) or find_pause(reply)
