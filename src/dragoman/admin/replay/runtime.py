"""Rebuild the surroundings of a captured request: what it looked up then is returned again."""

import glob
import math
from collections import defaultdict, deque
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.accounts.lost_calls import LostCall
from dragoman.accounts.pool import Choice, Member, Pool
from dragoman.admin import AdminError
from dragoman.admin.replay.recorded_services import RecordedUpstream, encode_headers, replay_plans
from dragoman.caching.memory import SessionId
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
from dragoman.flow.capture.format import NO_PROVIDER, Capture, LookupName
from dragoman.flow.runtime import Runtime
from dragoman.hub.caching import SentPrompt, SessionMemory
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.request import Inline, Json
from dragoman.net.client import DialOptions
from dragoman.net.headers import Header
from dragoman.protocols import PROTOCOLS
from dragoman.protocols.responses.state_items import read_request
from dragoman.providers import KINDS
from dragoman.providers.learned_quirks import LearnedQuirks
from dragoman.providers.provider import Address, Auth, Catalogue, Endpoint, ModelInfo, Provider, UnsignedRequest
from dragoman.providers.section import make_member
from dragoman.responses.context import Context, ContextItem
from dragoman.responses.kept_call import KeptCall, Terms
from dragoman.store.response_rows import ItemRow


class UnsupportedCapture(AdminError):
    """This version lacks something that the capture was made with."""


class _Described(msgspec.Struct):
    section: dict[str, Json] = msgspec.field(name="stanza")  # the name in capture files
    endpoint: str = ""
    credentials: tuple[str, ...] = ()  # labels, if there are several
    fields: tuple[tuple[str, str], ...] = ()
    masked: tuple[str, ...] = ()  # the forms that the secrets of headers and proxies have in the capture


class _FoundAddress(msgspec.Struct):
    url: str
    headers: tuple[tuple[str, str], ...]


class Lookups:
    """What the captured request looked up, in order; the last value of each lookup holds for later ones."""

    def __init__(self, capture: Capture) -> None:
        self._values: dict[tuple[str, str], deque[Json]] = defaultdict(deque)
        for lookup in capture.lookups:
            self._values[lookup.provider, lookup.name].append(lookup.value)

    def next(self, provider: str, name: LookupName) -> Json:
        """Return the next value; raises RequestError or ConfigError as the captured lookup did."""
        values = self._values[provider, name.value]
        if not values:
            where = f"provider {provider!r}" if provider else "its surroundings"
            message = f"This version looks up {name.value!r} in {where}, which the capture does not contain."
            raise RequestError(Failure(Kind.BUG, message))
        value = values.popleft() if len(values) > 1 else values[0]
        assert isinstance(value, dict)
        if "refused" in value:
            raise RequestError(msgspec.convert(value["refused"], Failure))
        if "misconfigured" in value:
            raise ConfigError([Problem("configuration", None, provider, str(why)) for why in value["misconfigured"]])
        return value["value"]

    def has(self, provider: str, name: LookupName) -> bool:
        return bool(self._values[provider, name.value])


class ReplayedFetcher:
    """A media fetcher that returns what was fetched for the captured request."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        return msgspec.convert(self._lookups.next(NO_PROVIDER, LookupName.MEDIA), dict[str, Inline])


class ReplayedMemory:
    """A memory of cut calls that returns what the captured request recalled, and keeps nothing."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        return

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        if not self._lookups.has(NO_PROVIDER, LookupName.CUT_CALLS):
            return ()
        return msgspec.convert(self._lookups.next(NO_PROVIDER, LookupName.CUT_CALLS), tuple[LostCall, ...])


class ReplayedPrompts:
    """A memory of prompts that returns what the captured request recalled, and keeps nothing."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        if not self._lookups.has(id.provider, LookupName.PROMPTS):
            return None
        return msgspec.convert(self._lookups.next(id.provider, LookupName.PROMPTS), SessionMemory | None)

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        return


class ReplayedChooser:
    """Chooses the credentials that were chosen for the captured request."""

    def __init__(self, provider: str, lookups: Lookups) -> None:
        self._provider = provider
        self._lookups = lookups

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        member = msgspec.convert(self._lookups.next(self._provider, LookupName.CREDENTIAL), int | None)
        return None if member is None else Choice(member)

    def find_soonest_free(self, model: str, now: float) -> int:
        return msgspec.convert(self._lookups.next(self._provider, LookupName.SOONEST_CREDENTIAL), int)


class ReplayedCatalogue:
    """A model catalogue with the models of the capture."""

    complete = True

    def __init__(self, provider: Provider, lookups: Lookups) -> None:
        self._name = provider.name
        self._models = provider.catalogue.models + provider.catalogue.fallback_models
        self._lookups = lookups

    def list_known(self) -> tuple[ModelInfo, ...]:
        return self._models

    async def wait_for_list(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        return self._models

    def max_output(self, model: str) -> int | None:
        if not self._lookups.has(self._name, LookupName.MAX_OUTPUT):
            return None
        return msgspec.convert(self._lookups.next(self._name, LookupName.MAX_OUTPUT), int | None)

    def list_problem(self) -> str:
        if not self._lookups.has(self._name, LookupName.LIST_PROBLEM):
            return ""
        return msgspec.convert(self._lookups.next(self._name, LookupName.LIST_PROBLEM), str)


class _RecordedState(msgspec.Struct):
    earlier: list[dict[str, Json]]
    items: list[dict[str, Json]]
    found: frozenset[int]  # places of the items that came from the store
    previous: str | None
    conversation: str | None
    keeper: str
    keeps: bool
    why_not: str
    is_remembered: bool
    in_background: bool
    created: int
    owner: str = ""


def restore_state(lookups: Lookups, body: bytes) -> KeptCall | None:
    """Return the state of the captured request; None if it had none.

    Raises RequestError if the request referred to something that was not there.
    """
    if not lookups.has(NO_PROVIDER, LookupName.STATE):
        return None
    recorded = msgspec.convert(lookups.next(NO_PROVIDER, LookupName.STATE), _RecordedState)
    row = ItemRow(b"", "", b"")
    context = Context(
        tuple(ContextItem(item, row) for item in recorded.earlier),
        tuple(ContextItem(item, row if at in recorded.found else None) for at, item in enumerate(recorded.items)),
        recorded.previous,
        recorded.conversation,
        recorded.keeper,
    )
    terms = Terms(recorded.owner, keeps=recorded.keeps, retention_s=0, why_not=recorded.why_not)
    raw = read_request(body)
    if recorded.in_background:
        raw["background"] = True  # as the client requested it, unlike the process that ran the response
    state = KeptCall(None, terms, raw, context, len(body))
    state.in_background, state.created = recorded.in_background, recorded.created
    state.memory = _forget if recorded.is_remembered else None
    state.committed = False if lookups.has(NO_PROVIDER, LookupName.NOT_STORED) else None
    return state


def _forget(id: str, items: tuple[ContextItem, ...]) -> None:
    """Keep nothing: the connection of a replayed request has no further request."""


def make_runtime(capture: Capture, upstream: RecordedUpstream, lookups: Lookups) -> Runtime:
    """Return the surroundings of the captured request; raises UnsupportedCapture."""
    providers = {
        name: _make_provider(name, description, capture, upstream, lookups)
        for name, description in capture.settings.providers.items()
    }
    for name, ids in capture.settings.known_models.items():
        if name:
            providers.setdefault(name, _make_listed_provider(name, ids, upstream))
    catalogues = {name: ReplayedCatalogue(provider, lookups) for name, provider in providers.items()}
    config = _make_config(capture)
    fetcher = ReplayedFetcher(lookups) if lookups.has(NO_PROVIDER, LookupName.MEDIA) else None
    return Runtime(
        config,
        providers,
        catalogues,
        PROTOCOLS,
        fetcher,
        msgspec.structs.asdict(config.effort),
        LearnedQuirks(capture.settings.quirks),
        replay_plans(capture, providers),
    )


def _make_config(capture: Capture) -> Config:
    settings = capture.settings
    routes = (
        [ModelRoute(glob.escape(capture.requested_model), settings.routes)]
        if settings.routes and capture.requested_model
        else []
    )
    routes += [ModelRoute(name, ("nowhere/*",)) for name in settings.known_models.get("", ())]
    return Config(
        server=msgspec.convert(settings.server or {}, Server),
        retry=msgspec.convert(settings.retry or {}, Retry),
        debug=Debug(capture="all"),
        store=StoreSettings(),
        fetch=Fetch(),
        effort=msgspec.convert(settings.effort or {}, Effort),
        providers={},
        models=tuple(routes),
        client_key=None,
        source=None,
        origins={},
        warnings=(),
    )


def _make_provider(
    name: str, description: Json, capture: Capture, upstream: RecordedUpstream, lookups: Lookups
) -> Provider:
    described = msgspec.convert(description, _Described)
    kind = str(described.section.get("kind"))
    if kind not in KINDS:
        raise UnsupportedCapture(f"This version has no provider of kind {kind!r}.")
    requested = capture.requested_model.removeprefix(f"{name}/")
    routes = capture.settings.routes
    renamed = next((route.partition("/")[2] for route in routes if route.startswith(f"{name}/")), requested)
    current = make_member(_make_section(kind, described.section), upstream.send, {})
    endpoint = replace(
        current.endpoint,
        send=upstream.send,
        url=described.endpoint,
        headers=tuple(encode_headers(described.fields)),
        dial=DialOptions(),
    )
    catalogue = replace(
        current.catalogue,
        rename=lambda model: renamed if model == requested else model,
        has_list=False,
        list_models=None,
    )
    auth = replace(current.auth, secrets=tuple(form.encode("latin-1") for form in described.masked))
    provider = replace(current, endpoint=endpoint, auth=auth, catalogue=catalogue)
    if not described.credentials:
        return ReplayedProvider(name, provider, lookups).make()
    count = len(described.credentials)
    account = replace(
        provider.account,
        pool=Pool(tuple(Member(str(slot), str(slot)) for slot in range(count))),
        chooser=ReplayedChooser(name, lookups),
    )
    members = tuple(
        replace(
            ReplayedProvider(f"{name}#{slot}", provider, lookups).make(),
            account=replace(account, slot=slot, label=label),
        )
        for slot, label in enumerate(described.credentials)
    )
    return replace(members[0], members=members)


class ReplayedProvider:
    """The functions of a provider that return what they returned to the captured request.

    `key` is the name of the provider's lookups, with the index of the credential if there are several.
    """

    def __init__(self, key: str, provider: Provider, lookups: Lookups) -> None:
        self._key = key
        self._provider = provider
        self._lookups = lookups

    def make(self) -> Provider:
        provider = self._provider
        finds_protocols = provider.endpoint.find_protocols is not None
        finds_address = self._lookups.has(self._key, LookupName.ADDRESS)  # not in captures of earlier versions
        renews = provider.auth.renew is not None
        return replace(
            provider,
            endpoint=replace(
                provider.endpoint,
                find_protocols=self._find_protocols if finds_protocols else None,
                find_address=self._find_address if finds_address else None,
            ),
            auth=replace(provider.auth, authorize=self._authorize, renew=self._renew if renews else None),
            catalogue=replace(provider.catalogue, context_window=self._context_window),
            requests=replace(provider.requests, options=self._options),
            replies=replace(provider.replies, interpret_failure=self._interpret_failure),
        )

    async def _authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        headers = msgspec.convert(self._lookups.next(self._key, LookupName.AUTHORIZE), tuple[tuple[str, str], ...])
        return tuple(encode_headers(headers))

    async def _find_address(self, path: str) -> Address:
        found = msgspec.convert(self._lookups.next(self._key, LookupName.ADDRESS), _FoundAddress)
        return Address(found.url, tuple(encode_headers(found.headers)))

    async def _options(self, model: str) -> object:
        value = self._lookups.next(self._key, LookupName.OPTIONS)
        upstreams = (PROTOCOLS[protocol].upstream for protocol in self._provider.endpoint.protocols)
        types = [upstream.options_type for upstream in upstreams if upstream is not None]
        return value if value is None or types[0] is None else msgspec.convert(value, types[0]())

    async def _find_protocols(self, model: str) -> tuple[str, ...]:
        return msgspec.convert(self._lookups.next(self._key, LookupName.PROTOCOLS), tuple[str, ...])

    async def _renew(self) -> bool:
        return bool(self._lookups.next(self._key, LookupName.RENEW))

    def _interpret_failure(self, failure: Failure) -> Failure:
        interpreted = self._provider.replies.interpret_failure(failure)
        if not self._lookups.has(self._key, LookupName.RETRY_AFTER):
            return interpreted
        retry_after = msgspec.convert(self._lookups.next(self._key, LookupName.RETRY_AFTER), float | None)
        return replace(interpreted, retry_after=retry_after)

    def _context_window(self, model: str) -> int | None:
        if not self._lookups.has(self._key, LookupName.CONTEXT_WINDOW):
            return None
        return msgspec.convert(self._lookups.next(self._key, LookupName.CONTEXT_WINDOW), int | None)


def _make_section(kind: str, values: dict[str, Json]) -> ProviderConfig:
    """Return a section of the configuration; secrets are not captured, so their settings have defaults."""
    model = SECTION_TYPES.get(kind, ProviderConfig)
    fields = [field for field in msgspec.structs.fields(model) if field.name in values]
    return model(**{field.name: msgspec.convert(values[field.name], field.type) for field in fields})


def _make_listed_provider(name: str, ids: tuple[str, ...], upstream: RecordedUpstream) -> Provider:
    """Return a provider of which only the names of its models are known."""

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        return ()

    return Provider(
        name=name,
        kind="unknown",
        issuer=name,
        endpoint=Endpoint(url="", protocols=tuple(PROTOCOLS)[:1], send=upstream.send),
        auth=Auth(authorize),
        catalogue=Catalogue(models=tuple(ModelInfo(id) for id in ids), has_list=False),
    )
