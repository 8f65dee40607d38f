"""A capture comes in; the world that its request met goes out, with what was told then in place of what is true now."""

import glob
from collections import defaultdict, deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from dragoman.accounts.memory import Memory
from dragoman.cli.replaying.player import Player, headers_of
from dragoman.config.problems import ConfigError, Problem
from dragoman.config.providers import STANZAS
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
from dragoman.flow.world import World
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.hub.request import Json
from dragoman.net.client import Dial
from dragoman.net.headers import Header
from dragoman.observers.capture import Capture
from dragoman.passes.truncation_notice import LostCall
from dragoman.protocols import PROTOCOLS
from dragoman.protocols.kiro.wire import NAME as KIRO
from dragoman.protocols.kiro.wire import KiroOptions
from dragoman.providers import KINDS
from dragoman.providers.catalogue import Catalogue
from dragoman.providers.provider import ModelInfo, Provider

OPTIONS: dict[str, type] = {KIRO: KiroOptions}


class Gone(Exception):
    """What the capture was made with does not exist in this version."""


class _Described(msgspec.Struct):
    stanza: dict[str, Json]
    endpoint: str = ""
    fields: tuple[tuple[str, str], ...] = ()


class Answers:
    """What was told, in its order; the last word on a matter holds for later questions."""

    def __init__(self, capture: Capture) -> None:
        self._told: dict[tuple[str, str], deque[Json]] = defaultdict(deque)
        for told in capture.told:
            self._told[told.provider, told.what].append(told.value)

    def next(self, provider: str, what: str) -> Json:
        """Raises Refused as it was raised then."""
        answers = self._told[provider, what]
        if not answers:
            message = f"Today's code asks {provider or 'the memory'} for `{what}`, which the capture does not hold."
            raise Refused(Failure(Kind.BUG, message))
        told = answers.popleft() if len(answers) > 1 else answers[0]
        assert isinstance(told, dict)
        if "refused" in told:
            raise Refused(msgspec.convert(told["refused"], Failure))
        if "misconfigured" in told:
            raise ConfigError([Problem("configuration", None, provider, str(why)) for why in told["misconfigured"]])
        return told["value"]

    def holds(self, provider: str, what: str) -> bool:
        return bool(self._told[provider, what])


class ToldMemory(Memory):
    """Recalls what was recalled then, and forgets the rest."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(None)
        self._answers = answers

    async def recall(self, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        if not self._answers.holds("", "recall"):
            return ()
        return msgspec.convert(self._answers.next("", "recall"), tuple[LostCall, ...])


def world_of(capture: Capture, player: Player, answers: Answers, clock: Callable[[], float]) -> World:
    """Raises Gone."""
    providers = {name: _provider(name, told, capture, player, answers) for name, told in capture.world.stanzas.items()}
    for name, ids in capture.world.known.items():
        if name:
            providers.setdefault(name, _listing(name, ids, player))
    catalogues = {name: Catalogue(provider, clock) for name, provider in providers.items()}
    config = _config(capture)
    learnt = {name: set(quirks) for name, quirks in capture.world.learnt.items()}
    return World(config, providers, catalogues, PROTOCOLS, None, msgspec.structs.asdict(config.effort), learnt)


def _config(capture: Capture) -> Config:
    world = capture.world
    routes = [ModelRoute(glob.escape(capture.wanted), world.routes)] if world.routes and capture.wanted else []
    routes += [ModelRoute(name, ("nowhere/*",)) for name in world.known.get("", ())]
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
    made = KINDS[kind](_stanza(kind, described.stanza), player.send, {})
    model = capture.wanted.removeprefix(f"{name}/")
    own = next((route.partition("/")[2] for route in capture.world.routes if route.startswith(f"{name}/")), model)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        fields = msgspec.convert(answers.next(name, "authorize"), tuple[tuple[str, str], ...])
        return tuple(headers_of(fields))

    async def aim(model: str) -> object:
        value = answers.next(name, "aim")
        return value if value is None or kind not in OPTIONS else msgspec.convert(value, OPTIONS[kind])

    async def speaks(model: str) -> tuple[str, ...]:
        return msgspec.convert(answers.next(name, "speaks"), tuple[str, ...])

    async def renew() -> bool:
        return bool(answers.next(name, "renew"))

    def window(model: str) -> int | None:
        return msgspec.convert(answers.next(name, "window"), int | None) if answers.holds(name, "window") else None

    return replace(
        made,
        send=player.send,
        endpoint=described.endpoint,
        headers=tuple(headers_of(described.fields)),
        dial=Dial(),
        authorize=authorize,
        aim=aim,
        speaks=speaks if made.speaks is not None else None,
        renew=renew if made.renew is not None else None,
        window=window,
        rename=lambda asked: own if asked == model else asked,
        lists_models=False,
        list_models=None,
    )


def _stanza(kind: str, told: dict[str, Json]) -> ProviderConfig:
    """Secrets were not told: those settings are as if nobody had made them."""
    model = STANZAS.get(kind, ProviderConfig)
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
        protocols=("chat",),
        endpoint="",
        send=player.send,
        authorize=authorize,
        models=tuple(ModelInfo(id) for id in ids),
        lists_models=False,
    )
