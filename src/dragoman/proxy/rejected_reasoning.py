"""Leave out reasoning that an upstream has rejected: in the repeated request, and later in the same session.

Reasoning is bound to an account, so a session that has moved to another one has some that can no longer be read.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
from msgspec import Struct

from dragoman.net.body_threads import run_off_loop
from dragoman.net.tasks import spawn
from dragoman.proxy.call import Call
from dragoman.proxy.left_out import LeftOut
from dragoman.proxy.ports import NameSession, OtherProcesses, ReasoningMemory
from dragoman.proxy.step import Ask
from dragoman.translate.caching.rejected_reasoning import ReasoningSession, RejectedReasoning, split_digests
from dragoman.translate.caching.session_names import find_name, name_session, shorten_name
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Request
from dragoman.translate.passes.adapt_turns import digest_reasoning, drop_reasoning, drop_rejected

REASONING_REJECTED = "reasoning-rejected"
_FIELD = "about"


class ProcessReasoning:
    """The memory of this process alone."""

    def __init__(self) -> None:
        self._rejected = RejectedReasoning()
        self.known = self._rejected.counts.keys()

    async def recall(self, tenant: str, provider: str, name: NameSession) -> bytes:
        if (tenant, provider) not in self.known:
            return b""
        session = await name()
        return b"" if session is None else self._rejected.recall(ReasoningSession(tenant, session, provider))

    def record(self, id: ReasoningSession, digests: bytes) -> None:
        self._rejected.record(id, digests)


class SharedReasoning:
    """A memory that tells the other processes what it records.

    Else a session that comes to another one is refused once more, and its newer reasoning is left out as well.
    """

    def __init__(self, memory: ReasoningMemory, others: OtherProcesses) -> None:
        self._memory = memory
        self._others = others
        self.known, self.recall = memory.known, memory.recall
        others.answer(REASONING_REJECTED, self._answer_rejected)

    def record(self, id: ReasoningSession, digests: bytes) -> None:
        self._memory.record(id, digests)
        news = {_FIELD: msgspec.json.encode((id, digests)).decode()}
        spawn(self._others.ask_all(REASONING_REJECTED, news), name="report rejected reasoning")

    async def _answer_rejected(self, news: Mapping[str, str]) -> bytes:
        self._memory.record(*msgspec.json.decode(news[_FIELD], type=tuple[ReasoningSession, bytes]))
        return b""


class CallReasoning(Struct, eq=False):
    """What the requests of one call leave out of its reasoning, at each provider."""

    _call: Call
    _memory: ReasoningMemory
    _rejected: dict[str, set[bytes]] = {}  # provider -> digests, from earlier requests and from this call
    unrecorded: dict[str, dict[bytes, None]] = {}  # provider -> those of this call, until it has answered
    _session: str | None = None  # named once something has to be remembered

    def may_leave_out(self, ask: Ask) -> bool:
        """Whether `choose` has to be asked; for nearly every request it has not."""
        provider = ask.provider.name
        known = self._memory.known
        return ask.drops_reasoning or provider in self._rejected or (self._call.tenant, provider) in known

    async def choose(self, ask: Ask) -> LeftOut | None:
        """Return what the provider has rejected; None: nothing in this request."""
        call, provider = self._call, ask.provider.name
        if ask.drops_reasoning:
            self._session = self._session or await _name_session(call)
            sent = await _digest_all(call)
            self._record_rejected(provider, sent)
            return LeftOut(partial(self._drop_all, provider), frozenset(sent))
        rejected = self._rejected.get(provider)
        if rejected is None:
            digests = await self._memory.recall(call.tenant, provider, partial(_name_session, call))
            rejected = self._rejected[provider] = set(split_digests(digests)) if digests else set()
        # A strict request is sent in its full form, and gets the refusal.
        if not rejected or call.strict or rejected.isdisjoint(await _digest_all(call)):
            return None
        return LeftOut(partial(drop_rejected, rejected=rejected), frozenset(rejected))

    async def has_any(self) -> bool:
        """Return whether the client has sent opaque reasoning."""
        return bool(await _digest_all(self._call))

    def record_answer(self, provider: str) -> None:
        """Remember what was left out of this call, for the provider has answered without it."""
        new = self.unrecorded.pop(provider, None)
        if new and self._session is not None:
            self._memory.record(ReasoningSession(self._call.tenant, self._session, provider), b"".join(new))

    def _drop_all(self, provider: str, request: Request, ledger: Ledger) -> Request:
        self._record_rejected(provider, digest_reasoning(request))
        return drop_reasoning(request, ledger)

    def _record_rejected(self, provider: str, digests: Iterable[bytes]) -> None:
        self.unrecorded.setdefault(provider, {}).update(dict.fromkeys(digests))
        self._rejected.setdefault(provider, set()).update(digests)


async def _name_session(call: Call) -> str | None:
    """Return the session's name; None for a body that only its own protocol can read."""
    name = find_name(call.headers.get, None, None, None)
    if name is not None:
        return shorten_name(name)
    try:
        await call.read()
    except RequestError:
        return None
    return await run_off_loop(call.size, lambda: name_session(call.headers.get, call.request()))


async def _digest_all(call: Call) -> list[bytes]:
    try:
        await call.read()
    except RequestError:
        return []
    return await run_off_loop(call.size, lambda: digest_reasoning(call.request()))
