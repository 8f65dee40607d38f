"""Tool calls that a truncated reply lost: they are remembered, and the conversation's next request tells the model."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.store import Store, StoreError
from dragoman.store.cut_calls import CUT_CALL_LIFE_S, MAX_CUT_CALLS, MAX_CUT_CALLS_PER_TENANT, CutCallRow
from dragoman.translate.hub.failure import describe_cause
from dragoman.translate.hub.request import Refusal, Request, Role, Text, ToolCall, ToolResult, Turn

SHOWN_CHARACTERS = 500
LOOK_BACK = 6  # turns that may follow the truncated reply
STORE_TIMEOUT_S = 0.5
CHECK_EVERY_S = 1.0  # how late a call that another worker lost may be noticed
STORE_RETRY_S = 10.0

T = TypeVar("T")
FindDigests = Callable[[], Awaitable[tuple[bytes, ...]]]  # of a conversation, the whole request first

log = logging.getLogger(__name__)


class LostCall(Struct, frozen=True):
    """A tool call that was truncated and could not be completed."""

    tool: str
    arguments: str  # their beginning


_lost = msgspec.msgpack.Decoder(tuple[LostCall, ...])


def make_lost_call(tool: str, arguments: str) -> LostCall:
    return LostCall(tool, arguments[:SHOWN_CHARACTERS])


def digest_conversation(request: Request) -> tuple[bytes, ...]:
    """Return digests of the conversation at each of its last turns: the whole request first, then shorter prefixes."""
    running = hashlib.sha256(request.model.encode())
    found: list[bytes] = []
    for turn in request.turns:
        for text_item in _stable_content(turn):
            running.update(text_item.encode(errors="replace") + b"\0")
        found.append(running.digest())
    return tuple(reversed(found[-LOOK_BACK:]))


def add_notice(request: Request, lost: tuple[LostCall, ...]) -> Request:
    """Return the request with a note about the lost calls in the last user turn."""
    if not request.turns or request.turns[-1].role is not Role.USER:
        return request
    last = request.turns[-1]
    notice = "\n\n".join(
        f"Note: your previous reply was cut off while it called the tool {call.tool!r}, so that call was not "
        f"executed. Its arguments began: {call.arguments}\n"
        "Call it again if it is still needed, with shorter arguments or in several smaller steps."
        for call in lost
    )
    turn = replace(last, parts=(*last.parts, Text(notice, at=last.at)))
    return replace(request, turns=(*request.turns[:-1], turn))


def _stable_content(turn: Turn) -> Iterator[str]:
    """Return what stays the same when a client sends a turn again: no cache breakpoints, reasoning or instructions."""
    if turn.role in (Role.SYSTEM, Role.DEVELOPER):
        return
    yield turn.role.value
    for part in turn.parts:
        match part:
            case Text(text=text) | Refusal(text=text):
                yield text.strip()
            case ToolCall(id=id, name=name, arguments=arguments):
                yield from (id, name, arguments)
            case ToolResult(call_id=call_id):
                yield call_id
            case _:
                yield type(part).__name__


class LostCalls:
    """Lost calls by tenant and conversation; bounded, and they expire. A store lets all workers share them.

    The calls of one tenant are never returned to another, even if their conversations are equal. A store that fails is
    not used for a while: the request matters more than what the previous one lost.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._own: OrderedDict[tuple[str, bytes], tuple[float, bytes]] = OrderedDict()
        self._left_alone_until = 0.0
        self._is_failing = False  # the store; logged once, until it answers again
        self._others_lost = True  # or this process before a restart; until it is known, it may be so
        self._looked_until = 0.0

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        now = int(self._clock())
        packed = msgspec.msgpack.encode(lost)
        self._own.pop((tenant, digest), None)
        self._own[tenant, digest] = (now + CUT_CALL_LIFE_S, packed)
        # Drop the oldest: first those of a tenant that exceeds its share, then of all.
        own = [entry for entry in self._own if entry[0] == tenant]
        for entry in own[: max(0, len(own) - MAX_CUT_CALLS_PER_TENANT)]:
            del self._own[entry]
        while len(self._own) > MAX_CUT_CALLS:
            self._own.popitem(last=False)
        await self._ask(lambda store: store.remember_cut(CutCallRow(tenant, digest, packed), now))

    async def recall(self, tenant: str, find_digests: FindDigests) -> tuple[LostCall, ...]:
        now = int(self._clock())
        if await self._is_empty(now):
            return ()
        digests = await find_digests()
        packed = await self._ask(lambda store: store.recall_cut(tenant, digests, now))
        if packed is None:
            found = next((self._own[tenant, digest] for digest in digests if (tenant, digest) in self._own), None)
            packed = found[1] if found is not None and found[0] > now else None
        return _lost.decode(packed) if packed else ()

    async def _is_empty(self, now: int) -> bool:
        """Return True if no call was lost, the usual case; the store is read only once in a while."""
        while self._own and next(iter(self._own.values()))[0] <= now:
            self._own.popitem(last=False)
        if self._own:
            return False
        if (clock := self._clock()) >= self._looked_until:
            self._looked_until = clock + CHECK_EVERY_S  # other requests do not ask meanwhile
            self._others_lost = bool(await self._ask(lambda store: store.has_cuts(now)))
        return not self._others_lost

    async def _ask(self, ask: Callable[[Store], Awaitable[T]]) -> T | None:
        if self._store is None or self._clock() < self._left_alone_until:
            return None
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                answer = await ask(self._store)
        except (StoreError, TimeoutError) as error:
            self._left_alone_until = self._clock() + STORE_RETRY_S
            if not self._is_failing:
                self._is_failing = True
                cause = describe_cause(error, f"the store gave no answer within {STORE_TIMEOUT_S:g} s")
                log.warning("lost tool calls are not shared for a while: %s", cause)
            return None
        if self._is_failing:
            self._is_failing = False
            log.info("lost tool calls are shared again")
        return answer
