"""A world comes in; the same world goes out, but whatever a request learns from it and sends through it is noted."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.accounts.lost_calls import LostCalls
from dragoman.accounts.pool import Choice, Pool
from dragoman.config.problems import ConfigError
from dragoman.flow.call import Call
from dragoman.flow.capture.format import CANCELLED, CLOSED, WHOLE
from dragoman.flow.capture.provider_description import texts
from dragoman.flow.capture.recording import Question, Recording
from dragoman.flow.media_fetcher import Fetcher
from dragoman.flow.runtime import Runtime, list_known_models
from dragoman.framing.known_secrets import list_secrets
from dragoman.hub.failure import Failure, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Protocol, Upstream
from dragoman.hub.profile import Target
from dragoman.hub.request import Inline, Json, Request
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    InvalidResponse,
    OutgoingRequest,
    UpstreamTimeout,
)
from dragoman.net.headers import Header, Headers
from dragoman.net.response_body import BodySink, read_chunks
from dragoman.passes.truncation_notice import LostCall
from dragoman.providers.catalogue import CachedCatalogue
from dragoman.providers.provider import Provider

T = TypeVar("T")

MAX_NAMES = 2000  # of each provider's models
# What captures call these errors.
RECORDED_NAMES: dict[type[Exception], str] = {
    ConnectionLost: "Lost",
    InvalidResponse: "Corrupt",
    UpstreamTimeout: "TimedOut",
}
ELSEWHERE = ""  # what is told by nobody among the providers


def watched(world: Runtime, recording: Recording, call: Call) -> Runtime:
    recording.owner = call.is_owner
    recording.enters(world.config, world.learned_quirks.known_to(call.tenant), lambda: _names(world))
    protocols = {name: _watched_protocol(protocol, recording) for name, protocol in world.protocols.items()}
    providers = {name: _Watched(provider, recording).provider() for name, provider in world.providers.items()}
    catalogues = {name: WatchedCatalogue(known, name, recording) for name, known in world.catalogues.items()}
    fetcher = None if world.fetcher is None else WatchedFetcher(world.fetcher, recording)
    return replace(world, providers=providers, catalogues=catalogues, protocols=protocols, fetcher=fetcher)


def _names(world: Runtime) -> dict[str, tuple[str, ...]]:
    names = {name: models.ids[:MAX_NAMES] for name, models in list_known_models(world).items()}
    return {ELSEWHERE: tuple(route.name for route in world.config.models[:MAX_NAMES]), **names}


def _watched_protocol(protocol: Protocol, recording: Recording) -> Protocol:
    upstream = protocol.upstream
    return protocol if upstream is None else replace(protocol, upstream=_watched_upstream(upstream, recording))


def _watched_upstream(upstream: Upstream, recording: Recording) -> Upstream:
    def build(request: Request, target: Target, ledger: Ledger) -> bytes:
        body = upstream.build(request, target, ledger)
        recording.built(ledger)
        return body

    return replace(upstream, build=build)


class WatchedCatalogue(CachedCatalogue):
    """The same catalogue, of which it is noted what it says of a model."""

    __slots__ = ("_catalogue", "_name", "_recording")

    def __init__(self, catalogue: CachedCatalogue, name: str, recording: Recording) -> None:
        self.__dict__ = catalogue.__dict__  # one state: what either learns, both know
        self._catalogue = catalogue
        self._name = name
        self._recording = recording

    def max_output(self, model: str) -> int | None:
        most = self._catalogue.max_output(model)
        self._recording.hears(self._name, "most output", lambda: {"value": most})
        return most

    def list_problem(self) -> str:
        problem = self._catalogue.list_problem()
        if problem:
            self._recording.hears(self._name, "list problem", lambda: {"value": problem})
        return problem


class WatchedPool(Pool):
    """The same pool, whose choices are noted."""

    __slots__ = ("_name", "_pool", "_recording")

    def __init__(self, pool: Pool, name: str, recording: Recording) -> None:
        self.__dict__ = pool.__dict__  # one state: what either learns, both know
        self._pool = pool
        self._name = name
        self._recording = recording

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        choice = self._pool.choose(session, model, tried, now)
        self._recording.hears(self._name, "choose", lambda: {"value": None if choice is None else choice.member})
        return choice

    def soonest(self, model: str, now: float) -> int:
        member = self._pool.soonest(model, now)
        self._recording.hears(self._name, "soonest", lambda: {"value": member})
        return member


class WatchedFetcher(Fetcher):
    """Tells what was fetched, or why it could not be."""

    def __init__(self, fetcher: Fetcher, recording: Recording) -> None:
        self._fetcher = fetcher
        self._recording = recording

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        try:
            found = await self._fetcher.fetch_all(urls)
        except RequestError as refused:
            failure = refused.failure
            self._recording.hears(ELSEWHERE, "fetch", lambda: {"refused": msgspec.to_builtins(failure)})
            raise
        if self._recording.takes(sum(len(media.data) for media in found.values()), "fetched media"):
            self._recording.hears(ELSEWHERE, "fetch", lambda: {"value": msgspec.to_builtins(found)})
        return found


class WatchedMemory(LostCalls):
    """Tells what was recalled."""

    def __init__(self, memory: LostCalls, recording: Recording) -> None:
        super().__init__(None)
        self._memory = memory
        self._recording = recording

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        await self._memory.remember(tenant, digest, lost)

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        lost = await self._memory.recall(tenant, digests)
        self._recording.hears(ELSEWHERE, "recall", lambda: {"value": msgspec.to_builtins(lost)})
        return lost


class _Watched:
    """One provider during one request."""

    def __init__(self, provider: Provider, recording: Recording) -> None:
        self._provider = provider
        self._recording = recording
        self._model = ""
        self._protocol = ""
        self._windows: set[str] = set()

    def provider(self) -> Provider:
        provider = self._provider
        members = tuple(_Watched(member, self._recording).provider() for member in provider.members)
        pool = (
            None
            if provider.account.pool is None
            else WatchedPool(provider.account.pool, provider.name, self._recording)
        )
        finds = provider.endpoint.find_protocols is not None
        return replace(
            provider,
            endpoint=replace(
                provider.endpoint, send=self._send, find_protocols=self._find_protocols if finds else None
            ),
            auth=replace(
                provider.auth,
                authorize=self._authorize,
                renew=None if provider.auth.renew is None else self._renew,
            ),
            catalogue=replace(provider.catalogue, context_window=self._window),
            requests=replace(provider.requests, options=self._options),
            replies=replace(provider.replies, interpret_failure=self._interpret_failure),
            account=replace(provider.account, pool=pool),
            members=members,
        )

    async def _find_protocols(self, model: str) -> tuple[str, ...]:
        assert self._provider.endpoint.find_protocols is not None
        return await self._noted("speaks", self._provider.endpoint.find_protocols(model), list)

    async def _options(self, model: str) -> object:
        self._model = model
        return await self._noted("aim", self._provider.requests.options(model), msgspec.to_builtins)

    async def _authorize(self, protocol: str) -> tuple[Header, ...]:
        self._protocol = protocol
        fields = await self._noted("authorize", self._provider.auth.authorize(protocol), _listed)
        self._recording.secrets.update(list_secrets(fields))
        return fields

    async def _renew(self) -> bool:
        assert self._provider.auth.renew is not None
        return await self._noted("renew", self._provider.auth.renew(), bool)

    def _interpret_failure(self, failure: Failure) -> Failure:
        """When to come back is a matter of the clock."""
        heeded = self._provider.replies.interpret_failure(failure)
        self._tell("heed", lambda: {"value": heeded.retry_after})
        return heeded

    def _window(self, model: str) -> int | None:
        window = self._provider.catalogue.context_window(model)
        if model not in self._windows:
            self._windows.add(model)
            self._tell("window", lambda: {"value": window})
        return window

    async def _noted(self, what: str, asking: Awaitable[T], shown: Callable[[T], Json]) -> T:
        try:
            value = await asking
        except RequestError as refused:
            failure = refused.failure
            self._tell(what, lambda: {"refused": msgspec.to_builtins(failure)})
            raise
        except ConfigError as error:
            problems = [problem.message for problem in error.problems]
            self._tell(what, lambda: {"misconfigured": problems})
            raise
        self._tell(what, lambda: {"value": shown(value)})
        return value

    def _tell(self, what: str, value: Callable[[], Json]) -> None:
        self._recording.meets(self._provider)
        self._recording.hears(seat_name(self._provider), what, value)

    async def _send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        recording, provider = self._recording, self._provider
        question = Question(f"{provider.name}/{self._model}", provider, self._protocol, out)
        recording.asks(question)
        try:
            answer = await provider.endpoint.send(out, dial, head_timeout_s=head_timeout_s)
        except (ConnectionLost, UpstreamTimeout) as fault:
            recording.ends(question, named_fault(fault))
            raise
        except asyncio.CancelledError:
            recording.ends(question, CANCELLED)
            raise
        recording.answers(question, answer)
        return _WatchedAnswer(answer, question, recording)


class _WatchedAnswer:
    """An IncomingResponse whose pieces are noted as they are taken."""

    def __init__(self, answer: IncomingResponse, question: Question, recording: Recording) -> None:
        self._answer = answer
        self._question = question
        self._recording = recording

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Headers:
        return self._answer.headers

    async def chunk(self, timeout_s: float) -> bytes:
        try:
            data = await self._answer.chunk(timeout_s)
        except ConnectionLost as lost:
            self._ends(named_fault(lost))
            raise
        if data:
            self._recording.gives(self._question, data)
        else:
            self._ends(WHOLE)
        return data

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        def noted(data: bytes) -> float | None:
            self._recording.gives(self._question, data)
            return sink(data)

        try:
            whole = await self._answer.stream_to(noted, timeout_s)
        except ConnectionLost as lost:
            self._ends(named_fault(lost))
            raise
        if whole:
            self._ends(WHOLE)
        return whole

    async def read(self, limit: int, timeout_s: float) -> bytes:
        """Piece by piece, to know when each came."""
        return await read_chunks(self, limit, timeout_s, self._question.route)

    def close(self) -> None:
        self._ends(CLOSED)
        self._answer.close()

    def _ends(self, how: str) -> None:
        self._recording.ends(self._question, how)


def seat_name(provider: Provider) -> str:
    """Which of a provider's several credentials it is, where it has several."""
    return provider.name if provider.account.pool is None else f"{provider.name}#{provider.account.slot}"


def named_fault(fault: Exception) -> str:
    phase = f" {fault.phase}" if isinstance(fault, UpstreamTimeout) else ""
    return f"{RECORDED_NAMES.get(type(fault), type(fault).__name__)}{phase}: {fault}"


def _listed(fields: tuple[Header, ...]) -> Json:
    return [list(field) for field in texts(fields)]
