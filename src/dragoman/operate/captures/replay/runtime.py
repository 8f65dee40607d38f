"""Rebuild the surroundings of a captured request: real ones, of which everything is looked up in the capture."""

import asyncio
import glob
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.providers import SECTION_TYPES
from dragoman.config.settings import (
    Config,
    Debug,
    Effort,
    Fetch,
    ModelRoute,
    ProviderConfig,
    Retry,
    ServerSettings,
    StoreSettings,
    Tools,
    WebFetch,
    WebSearch,
)
from dragoman.net.client import DialOptions
from dragoman.operate import AdminError
from dragoman.operate.captures.replay.recorded_services import RecordedUpstream
from dragoman.proxy.capture.format import BESIDE_FUNCTIONS, NO_PROVIDER, Capture
from dragoman.proxy.capture.lookups import ADDRESS, MEDIA, ReplayingLookups, look_up_through
from dragoman.proxy.capture.masking import encode_headers
from dragoman.proxy.runtime import Runtime
from dragoman.server_tools.backends import (
    ChosenBackends,
    McpServers,
    ToolPlan,
    UnusableFetch,
    UnusableSearch,
    make_plan,
)
from dragoman.server_tools.guarded_fetch import GuardedFetcher, LinkedMediaFetcher
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.server_tools import FETCH, SEARCH, ToolText
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams import KINDS, Surroundings
from dragoman.upstreams.credentials.pool import Member, Pool
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.models import CachedCatalogue
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.section import USER_AGENT, make_member

LISTED = "openai-compatible"


class UnsupportedCapture(AdminError):
    """This version lacks something that the capture was made with."""


class _Described(msgspec.Struct):
    section: dict[str, Json] = msgspec.field(name="stanza")  # the name in capture files
    endpoint: str = ""
    credentials: tuple[str, ...] = ()  # labels, if there are several
    fields: tuple[tuple[str, str], ...] = ()
    masked: tuple[str, ...] = ()  # the forms that the secrets of headers and proxies have in the capture


def make_runtime(capture: Capture, upstream: RecordedUpstream, lookups: ReplayingLookups) -> Runtime:
    """Return the surroundings of the captured request; raises UnsupportedCapture."""
    settings = capture.settings
    make = partial(_make_provider, _Recording(capture, upstream, lookups))
    used = {name: make(name, description) for name, description in settings.providers.items()}
    known = {name: ids for name, ids in settings.known_models.items() if name and name not in used}
    listed = {name: make(name, _describe_listed(name, ids)) for name, ids in known.items()}
    config = _make_config(capture)
    fetcher = LinkedMediaFetcher(GuardedFetcher(upstream.send), config.fetch, USER_AGENT)
    runtime = Runtime(
        config,
        used,
        {name: _make_catalogue(provider) for name, provider in {**used, **listed}.items()},
        PROTOCOLS,
        fetcher if lookups.has(NO_PROVIDER, MEDIA) else None,
        msgspec.structs.asdict(config.effort),
        LearnedQuirks(settings.quirks),
        make_plans(capture, used),
    )
    runtime = look_up_through(runtime, lookups)
    return replace(runtime, providers={**runtime.providers, **listed})


def _describe_listed(name: str, ids: tuple[str, ...]) -> Json:
    """Describe a provider of which only the names of its models are known."""
    section = {"name": name, "kind": LISTED, "protocols": tuple(PROTOCOLS)[:1], "models": ids, "keeps_responses": False}
    return {"stanza": section}


def _make_catalogue(provider: Provider) -> CachedCatalogue:
    catalogue = CachedCatalogue(provider, asyncio.get_running_loop().time)
    catalogue.complete = True
    return catalogue


def _make_config(capture: Capture) -> Config:
    settings = capture.settings
    routes = (
        [ModelRoute(glob.escape(capture.requested_model), settings.routes)]
        if settings.routes and capture.requested_model
        else []
    )
    routes += [ModelRoute(name, ("nowhere/*",)) for name in settings.known_models.get("", ())]
    return Config(
        server=msgspec.convert(settings.server or {}, ServerSettings),
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


class _Recording(Struct, frozen=True):
    """A captured request, with what answers it when it is run again."""

    capture: Capture
    upstream: RecordedUpstream
    lookups: ReplayingLookups


def _make_provider(recording: _Recording, name: str, description: Json) -> Provider:
    capture, send, lookups = recording.capture, recording.upstream.send, recording.lookups
    described = msgspec.convert(description, _Described)
    kind = str(described.section.get("kind"))
    if kind not in KINDS:
        raise UnsupportedCapture(f"This version has no provider of kind {kind!r}.")
    requested = capture.requested_model.removeprefix(f"{name}/")
    routes = capture.settings.routes
    renamed = next((route.partition("/")[2] for route in routes if route.startswith(f"{name}/")), requested)
    current = make_member(_make_section(kind, described.section), Surroundings(send, {}))
    endpoint = replace(
        current.endpoint,
        send=send,
        url=described.endpoint,
        headers=encode_headers(described.fields),
        dial=DialOptions(),
    )
    catalogue = replace(
        current.catalogue,
        rename=lambda model: renamed if model == requested else model,
        context_window=lambda model: None,
        has_list=False,
        list_models=None,
    )
    auth = replace(current.auth, secrets=tuple(form.encode("latin-1") for form in described.masked))
    provider = replace(current, endpoint=endpoint, auth=auth, catalogue=catalogue)
    if not described.credentials:
        return _drop_unknown_address(provider, lookups)
    count = len(described.credentials)
    account = replace(provider.account, pool=Pool(tuple(Member(str(slot), str(slot)) for slot in range(count))))
    members = tuple(
        _drop_unknown_address(replace(provider, account=replace(account, slot=slot, label=label)), lookups)
        for slot, label in enumerate(described.credentials)
    )
    return replace(members[0], members=members)


def _drop_unknown_address(provider: Provider, lookups: ReplayingLookups) -> Provider:
    """Send to the endpoint's URL if no address was looked up, in a capture of an earlier version."""
    if lookups.has(provider, ADDRESS):
        return provider
    return replace(provider, endpoint=replace(provider.endpoint, find_address=None))


def _make_section(kind: str, values: dict[str, Json]) -> ProviderConfig:
    """Return a section of the configuration; secrets are not captured, so their settings have defaults."""
    model = SECTION_TYPES.get(kind, ProviderConfig)
    fields = [field for field in msgspec.structs.fields(model) if field.name in values]
    return model(**{field.name: msgspec.convert(values[field.name], field.type) for field in fields})


def make_plans(capture: Capture, providers: Mapping[str, Provider]) -> dict[str, ToolPlan]:
    """Return the plans of the captured request; none for a capture of a version that ran no tools."""
    settings = capture.settings
    tools = Tools(
        msgspec.convert(settings.tools.get(SEARCH) or {}, WebSearch),
        msgspec.convert(settings.tools.get(FETCH) or {}, WebFetch),
    )
    plans: dict[str, ToolPlan] = {}
    for name, backends in settings.tool_backends.items():
        if name in providers:
            others = {key.removeprefix(BESIDE_FUNCTIONS): backends[key] for key in backends.keys() - {SEARCH, FETCH}}
            plan = _make_plan(backends, providers[name].requests.hosted_tools, tools)
            instead = _make_plan(others, frozenset(), tools) if others else None
            plans[name] = replace(plan, beside_functions=instead)
    return plans


def _make_plan(backends: Mapping[str, str], native: frozenset[str], settings: Tools) -> ToolPlan:
    """Return a plan whose backends are only names: what they return is looked up."""
    search = UnusableSearch(backends[SEARCH]) if SEARCH in backends else None
    fetch = UnusableFetch(backends[FETCH]) if FETCH in backends else None
    return replace(
        make_plan(ChosenBackends(search, fetch, McpServers()), native, settings), describe_search=_know_no_text
    )


async def _know_no_text(is_first_round: bool) -> ToolText | None:
    return None
