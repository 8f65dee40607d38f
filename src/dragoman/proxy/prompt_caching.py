"""Plan how the upstream requests of a call use prompt caches, and remember what they sent."""

import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.net.body_threads import SCANNED_BYTES, run_off_loop
from dragoman.net.headers import Header
from dragoman.proxy.call import Call
from dragoman.proxy.ports import PromptMemory
from dragoman.translate.caching.memory import SessionId, SessionMemories
from dragoman.translate.caching.outlook import CacheOutlook, judge_prompt
from dragoman.translate.caching.rendering import describe_body
from dragoman.translate.caching.session_names import derive_key, digest_beginning, read_name
from dragoman.translate.hub.caching import (
    FIVE_MINUTES,
    BuiltPrompt,
    CacheMode,
    CachePlan,
    SentPrompt,
    SessionMemory,
)
from dragoman.translate.hub.ext import CACHE_MODE
from dragoman.translate.hub.ports import PromptReader, Protocol
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Request
from dragoman.translate.profiles.model_table import find_profile
from dragoman.upstreams.provider import RequestRules

if TYPE_CHECKING:  # it imports this module
    from dragoman.proxy.step import Ask

AUTO, CLIENT = CacheMode.AUTO, CacheMode.CLIENT  # looked up once: on Python 3.11, each look-up of a member is slow


class ProcessMemory:
    """The memory of this process alone."""

    def __init__(self) -> None:
        self._memories = memories = SessionMemories()
        self.record = memories.record

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        return self._memories.recall(id, at)


class PlannedCache(Struct, eq=False):
    """The plan of one upstream request, and what is remembered of it once it was built."""

    plan: CachePlan
    session_key: str  # what an upstream reads as the id of the session, whether or not it is sent as a key
    _id: SessionId | None
    _memory: PromptMemory
    _started_at: float
    _taken: list[BuiltPrompt]  # what `plan` takes: were that a method of this, the cycle would hold the request
    outlook: CacheOutlook | None = None  # None: it was not described, or the memory was not asked
    _sent: SentPrompt | None = None

    def describe(self, reader: PromptReader | None, body: bytes, profile: Profile) -> None:
        """Describe what was built, unless `build` has done so, and judge what it can read from the cache."""
        if self._id is None or reader is None:
            return
        plan = self.plan
        built = self._taken.pop() if self._taken else describe_body(reader, body, profile, is_marked=plan.breakpoints)
        if built is not None:
            self._sent = built.sent
            if plan.memory is not None:
                self.outlook = judge_prompt(built, plan.memory, self._started_at)

    def describe_changed(self, reader: PromptReader | None, body: bytes, profile: Profile) -> None:
        """Describe what was changed after it was built; where marks are placed, they stay as they were."""
        if reader is not None and reader.list_marks is None:
            self.describe(reader, body, profile)

    def record(self) -> None:
        """Remember what was sent, once its reply has begun."""
        if self._id is not None and self._sent is not None:
            self._memory.record(self._id, self._sent, self._started_at)


async def plan_cache(
    call: Call, request: Request, ask: "Ask", protocol: Protocol, memory: PromptMemory | None
) -> PlannedCache | None:
    """Return how a request is cached that is built for another protocol than its client's, and name its row's session.

    None: only the client's own marks are sent, if any.
    """
    named = read_name(call.headers.get, request) or await _digest_beginning(call, request)
    session_key = derive_key(call.tenant, named)
    call.record.record_session(session_key)
    if memory is None or request.protocol == protocol.name:
        return None
    provider, model, now = ask.provider, ask.route.model, time.time()
    rules, prompts = provider.requests, None if protocol.upstream is None else protocol.upstream.prompts
    mode, id, known = choose_mode(request, rules), None, None
    if prompts is not None:
        id = SessionId(call.tenant, named, provider.name, provider.account.slot, model)
        known = await memory.recall(id, now)
    has_session = mode is AUTO or (mode is CLIENT and request.cache_key is not None)
    taken: list[BuiltPrompt] = []
    plan = CachePlan(
        mode,
        rules.cache_ttl or (FIVE_MINUTES if known is None else known.ttl),
        known,
        rules.cache_breakpoints and find_profile(model).cache_breakpoints,
        rules.cache_keys and protocol.name not in rules.cache_key_headers,
        session_key if rules.cache_keys and has_session else None,
        taken.append if prompts is not None and prompts.list_marks is not None else None,
    )
    return PlannedCache(plan, session_key, id, memory, now, taken)


async def _digest_beginning(call: Call, request: Request) -> str:
    if call.size <= SCANNED_BYTES:
        return digest_beginning(request)
    return await run_off_loop(call.size, partial(digest_beginning, request))


def put_key_in_header(request: Request, plan: CachePlan, rules: RequestRules, protocol: Protocol) -> tuple[Header, ...]:
    """Return the header that has the client's own key or the session's, where the upstream reads none in the body."""
    name = rules.cache_key_headers.get(protocol.name)
    if name is None:
        return ()
    own = request.cache_key
    key = own if own and own.isascii() and own.isprintable() else plan.key
    return () if key is None else ((name, key.encode()),)


def choose_mode(request: Request, rules: RequestRules) -> CacheMode:
    """Return the provider's setting; a client that wants explicit breakpoints only gets no marks of ours."""
    is_explicit = request.ext.get(CACHE_MODE) == "explicit"
    return CLIENT if is_explicit and rules.cache is AUTO else rules.cache
