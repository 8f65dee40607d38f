"""A capture comes in; the world that its request met goes out, with what was told then in place of what is true now."""

import glob
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.accounts.lost_calls import LostCalls
from dragoman.accounts.pool import Choice, Member, Pool
from dragoman.admin.replay.player import Player, headers_of
from dragoman.config.problems import ConfigError, Problem
from dragoman.config.providers import SECTION_TYPES
from dragoman.config.settings import (
    Config,
    Debug,
    Effort,
    Fetch,
    ModelRoute,
    ProviderConfig,
    Retry,
    Server,
    StoreSettings,
)
from dragoman.flow.capture.format import Capture
from dragoman.flow.learned_quirks import LearnedQuirks
from dragoman.flow.media_fetcher import Fetcher
from dragoman.flow.runtime import Runtime
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.request import Inline, Json
from dragoman.net.client import DialOptions
from dragoman.net.headers import Header
from dragoman.passes.truncation_notice import LostCall
from dragoman.protocols import PROTOCOLS
from dragoman.protocols.kiro.wire import NAME as KIRO
from dragoman.protocols.kiro.wire import KiroOptions
from dragoman.providers import KINDS
from dragoman.providers.catalogue import CachedCatalogue
from dragoman.providers.provider import Auth, Catalogue, Endpoint, ModelInfo, Provider

OPTIONS: dict[str, type] = {KIRO: KiroOptions}


class Gone(Exception):
    """What the capture was made with does not exist in this version."""


class _Described(msgspec.Struct):
    stanza: dict[str, Json]
    endpoint: str = ""
    credentials: tuple[str, ...] = ()  # what each of several is called
    fields: tuple[tuple[str, str], ...] = ()


class Answers:
    """What was told, in its order; the last word on a matter holds for later questions."""

    def __init__(self, capture: Capture) -> None:
        self._told: dict[tuple[str, str], deque[Json]] = defaultdict(deque)
        for told in capture.lookups:
            self._told[told.provider, told.name].append(told.value)

    def next(self, provider: str, what: str) -> Json:
        """Raises RequestError as it was raised then."""
        answers = self._told[provider, what]
        if not answers:
            message = f"Today's code asks {provider or 'the memory'} for `{what}`, which the capture does not hold."
            raise RequestError(Failure(Kind.BUG, message))
        told = answers.popleft() if len(answers) > 1 else answers[0]
        assert isinstance(told, dict)
        if "refused" in told:
            raise RequestError(msgspec.convert(told["refused"], Failure))
        if "misconfigured" in told:
            raise ConfigError([Problem("configuration", None, provider, str(why)) for why in told["misconfigured"]])
        return told["value"]

    def holds(self, provider: str, what: str) -> bool:
        return bool(self._told[provider, what])


class _ToldFetcher(Fetcher):
    """Fetches what was fetched then."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        return msgspec.convert(self._answers.next("", "fetch"), dict[str, Inline])


class ToldMemory(LostCalls):
    """Recalls what was recalled then, and forgets the rest."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(None)
        self._answers = answers

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        if not self._answers.holds("", "recall"):
            return ()
        return msgspec.convert(self._answers.next("", "recall"), tuple[LostCall, ...])


def world_of(capture: Capture, player: Player, answers: Answers, clock: Callable[[], float]) -> Runtime:
    """Raises Gone."""
    providers = {
        name: _provider(name, told, capture, player, answers) for name, told in capture.settings.providers.items()
    }
    for name, ids in capture.settings.known_models.items():
        if name:
            providers.setdefault(name, _listing(name, ids, player))
    catalogues = {name: _ToldCatalogue(provider, clock, answers) for name, provider in providers.items()}
    config = _config(capture)
    learnt = LearnedQuirks(capture.settings.quirks)
    fetcher = _ToldFetcher(answers) if answers.holds("", "fetch") else None
    return Runtime(config, providers, catalogues, PROTOCOLS, fetcher, msgspec.structs.asdict(config.effort), learnt)


def _config(capture: Capture) -> Config:
    world = capture.settings
    routes = (
        [ModelRoute(glob.escape(capture.requested_model), world.routes)]
        if world.routes and capture.requested_model
        else []
    )
    routes += [ModelRoute(name, ("nowhere/*",)) for name in world.known_models.get("", ())]
    return Config(
        server=msgspec.convert(world.server or {}, Server),
        retry=msgspec.convert(world.retry or {}, Retry),
        debug=Debug(),
        store=StoreSettings(),
        fetch=Fetch(),
        effort=msgspec.convert(world.effort or {}, Effort),
        providers={},
        models=tuple(routes),
        client_key=None,
        source=None,
        origins={},
        warnings=(),
    )


def _provider(name: str, told: Json, capture: Capture, player: Player, answers: Answers) -> Provider:
    described = msgspec.convert(told, _Described)
    kind = str(described.stanza.get("kind"))
    if kind not in KINDS:
        raise Gone(f"this version has no provider of kind {kind!r}")
    asked = capture.requested_model.removeprefix(f"{name}/")
    own = next((route.partition("/")[2] for route in capture.settings.routes if route.startswith(f"{name}/")), asked)
    today = KINDS[kind](_stanza(kind, described.stanza), player.send, {})
    endpoint = replace(
        today.endpoint,
        send=player.send,
        url=described.endpoint,
        headers=tuple(headers_of(described.fields)),
        dial=DialOptions(),
    )
    catalogue = replace(
        today.catalogue,
        rename=lambda model: own if model == asked else model,
        has_list=False,
        list_models=None,
    )
    made = replace(today, endpoint=endpoint, catalogue=catalogue)
    if not described.credentials:
        return _Told(name, made, answers).provider()
    pool = _ToldPool(name, len(described.credentials), answers)
    members = tuple(
        replace(
            _Told(f"{name}#{slot}", made, answers).provider(),
            account=replace(made.account, pool=pool, slot=slot, label=label),
        )
        for slot, label in enumerate(described.credentials)
    )
    return replace(members[0], members=members)


class _Told:
    """A provider that knows what it was told then; `key` is the name under which that is kept."""

    def __init__(self, key: str, made: Provider, answers: Answers) -> None:
        self._key = key
        self._made = made
        self._answers = answers

    def provider(self) -> Provider:
        made = self._made
        finds = made.endpoint.find_protocols is not None
        return replace(
            made,
            endpoint=replace(made.endpoint, find_protocols=self._find_protocols if finds else None),
            auth=replace(made.auth, authorize=self._authorize, renew=None if made.auth.renew is None else self._renew),
            catalogue=replace(made.catalogue, context_window=self._window),
            requests=replace(made.requests, options=self._options),
            replies=replace(made.replies, interpret_failure=self._interpret_failure),
        )

    async def _authorize(self, protocol: str) -> tuple[Header, ...]:
        fields = msgspec.convert(self._answers.next(self._key, "authorize"), tuple[tuple[str, str], ...])
        return tuple(headers_of(fields))

    async def _options(self, model: str) -> object:
        value = self._answers.next(self._key, "aim")
        options = OPTIONS.get(self._made.kind)
        return value if value is None or options is None else msgspec.convert(value, options)

    async def _find_protocols(self, model: str) -> tuple[str, ...]:
        return msgspec.convert(self._answers.next(self._key, "speaks"), tuple[str, ...])

    async def _renew(self) -> bool:
        return bool(self._answers.next(self._key, "renew"))

    def _interpret_failure(self, failure: Failure) -> Failure:
        heeded = self._made.replies.interpret_failure(failure)
        if not self._answers.holds(self._key, "heed"):
            return heeded
        return replace(heeded, retry_after=msgspec.convert(self._answers.next(self._key, "heed"), float | None))

    def _window(self, model: str) -> int | None:
        if not self._answers.holds(self._key, "window"):
            return None
        return msgspec.convert(self._answers.next(self._key, "window"), int | None)


class _ToldPool(Pool):
    """Chooses as was chosen then."""

    def __init__(self, name: str, seats: int, answers: Answers) -> None:
        super().__init__(tuple(Member(str(seat), str(seat)) for seat in range(seats)))
        self._name = name
        self._answers = answers

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        seat = msgspec.convert(self._answers.next(self._name, "choose"), int | None)
        return None if seat is None else Choice(seat)

    def soonest(self, model: str, now: float) -> int:
        return msgspec.convert(self._answers.next(self._name, "soonest"), int)


class _ToldCatalogue(CachedCatalogue):
    """Says of models what it said then."""

    def __init__(self, provider: Provider, clock: Callable[[], float], answers: Answers) -> None:
        super().__init__(provider, clock)
        self._name = provider.name
        self._answers = answers

    def max_output(self, model: str) -> int | None:
        if not self._answers.holds(self._name, "most output"):
            return None
        return msgspec.convert(self._answers.next(self._name, "most output"), int | None)

    def list_problem(self) -> str:
        if not self._answers.holds(self._name, "list problem"):
            return ""
        return msgspec.convert(self._answers.next(self._name, "list problem"), str)


def _stanza(kind: str, told: dict[str, Json]) -> ProviderConfig:
    """Secrets were not told: those settings are as if nobody had made them."""
    model = SECTION_TYPES.get(kind, ProviderConfig)
    fields = [field for field in msgspec.structs.fields(model) if field.name in told]
    return model(**{field.name: msgspec.convert(told[field.name], field.type) for field in fields})


def _listing(name: str, ids: tuple[str, ...], player: Player) -> Provider:
    """A provider of which only the names of its models are known."""

    async def authorize(protocol: str) -> tuple[Header, ...]:
        return ()

    return Provider(
        name=name,
        kind="unknown",
        issuer=name,
        endpoint=Endpoint(url="", protocols=("chat",), send=player.send),
        auth=Auth(authorize),
        catalogue=Catalogue(models=tuple(ModelInfo(id) for id in ids), has_list=False),
    )
