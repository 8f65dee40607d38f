"""Plan how the upstream requests of a call use prompt caches, and remember what they sent."""

import time
from functools import partial

from msgspec.structs import replace

from dragoman.net.body_threads import run_off_loop
from dragoman.net.headers import Header
from dragoman.proxy.call import Call
from dragoman.proxy.ports import PromptMemory
from dragoman.translate.caching.memory import SessionId, SessionMemories
from dragoman.translate.caching.session_names import derive_key, digest_beginning, read_name
from dragoman.translate.hub.caching import FIVE_MINUTES, CacheMode, CachePlan, SentPrompt, SessionMemory
from dragoman.translate.hub.ext import CACHE_MODE
from dragoman.translate.hub.ports import Protocol
from dragoman.translate.hub.request import Request
from dragoman.translate.profiles.model_table import find_profile
from dragoman.upstreams.provider import Provider, RequestRules
from dragoman.upstreams.routing import Route


class ProcessMemory:
    """The memory of this process alone."""

    def __init__(self) -> None:
        self._memories = SessionMemories()

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        return self._memories.recall(id, at)

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        self._memories.record(id, sent, at)


class PlannedCache:
    """The plan of one upstream request, and what was built by it."""

    def __init__(self, memory: PromptMemory, id: SessionId, plan: CachePlan, started_at: float) -> None:
        self._sent: list[SentPrompt] = []
        self.plan = replace(plan, take=self._sent.append)  # not a method of this: a cycle would hold the request
        self._memory = memory
        self._id = id
        self._started_at = started_at

    @property
    def session_key(self) -> str:
        """The id of the session for upstreams, whether or not it is sent as a key."""
        return derive_key(self._id.tenant, self._id.session)

    def record(self) -> None:
        """Remember what was sent, once its reply has begun."""
        for sent in self._sent:
            self._memory.record(self._id, sent, self._started_at)


async def plan_cache(
    call: Call, request: Request, route: Route, provider: Provider, protocol: Protocol, memory: PromptMemory
) -> PlannedCache:
    """Return how a request is cached that is built for another protocol than its client's."""
    rules, mode = provider.requests, choose_mode(request, provider.requests)
    session = read_name(call.headers.get, request)
    if session is None:
        session = await run_off_loop(call.size, partial(digest_beginning, request))
    id = SessionId(call.tenant, session, provider.name, provider.account.slot, route.model)
    has_session = mode is CacheMode.AUTO or request.cache_key is not None
    caches_at_marks = protocol.upstream is not None and protocol.upstream.caches_at_marks
    started_at = time.time()
    known = await memory.recall(id, started_at) if caches_at_marks else None
    plan = CachePlan(
        mode,
        _choose_ttl(rules, known),
        known,
        breakpoints=rules.cache_breakpoints and find_profile(route.model).cache_breakpoints,
        takes_keys=rules.cache_keys and protocol.name not in rules.cache_key_headers,
        key=derive_key(call.tenant, session) if rules.cache_keys and has_session else None,
    )
    return PlannedCache(memory, id, plan, started_at)


def put_key_in_header(plan: CachePlan, rules: RequestRules, protocol: Protocol) -> tuple[Header, ...]:
    """Return the header that has the session's key, where the upstream does not read it in the body."""
    name = rules.cache_key_headers.get(protocol.name)
    return () if name is None or plan.key is None else ((name, plan.key.encode()),)


def choose_mode(request: Request, rules: RequestRules) -> CacheMode:
    """Return the provider's setting; a client that wants explicit breakpoints only gets no marks of ours."""
    is_explicit = request.ext.get(CACHE_MODE) == "explicit"
    return CacheMode.CLIENT if rules.cache is CacheMode.AUTO and is_explicit else rules.cache


def _choose_ttl(rules: RequestRules, memory: SessionMemory | None) -> str:
    if rules.cache_ttl is not None:
        return rules.cache_ttl
    return FIVE_MINUTES if memory is None else memory.ttl
