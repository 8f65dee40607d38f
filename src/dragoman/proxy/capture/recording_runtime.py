"""Record the surroundings of a request: its settings, what it looks up, and what it sends to upstreams."""

import msgspec
from msgspec.structs import asdict, replace

from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.proxy.call import Call
from dragoman.proxy.capture.format import BESIDE_FUNCTIONS, NO_PROVIDER
from dragoman.proxy.capture.lookups import RecordingLookups, look_up_through
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.capture.recording_provider import record_provider
from dragoman.proxy.runtime import Runtime, list_known_models
from dragoman.server_tools.backends import ToolPlan
from dragoman.translate.framing.known_secrets import list_secrets
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Protocol, Upstream
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Json, Request
from dragoman.translate.hub.server_tools import FETCH, SEARCH

MAX_NAMES = 2000  # of each provider's models
PRIVATE_SETTINGS = ("api_key", "command", "endpoint")


def record_runtime(runtime: Runtime, recording: Recording, call: Call) -> Runtime:
    """Return a runtime that behaves the same and notes in the recording what the call learns from it."""
    recording.settings.owner = call.is_owner
    recording.record_settings(
        runtime.config, runtime.learned_quirks.list_known_to(call.tenant), lambda: _list_names(runtime)
    )
    if runtime.tool_plans:
        backends = {name: describe_backends(plan) for name, plan in runtime.tool_plans.items()}
        recording.record_tools(describe_tools(runtime.config.tools), backends)
        for plan in runtime.tool_plans.values():
            recording.secrets.update(list_secrets((), plan.secrets))
    recorded = look_up_through(runtime, RecordingLookups(recording))
    return replace(
        recorded,
        providers={name: record_provider(provider, recording) for name, provider in recorded.providers.items()},
        protocols={name: _record_protocol(protocol, recording) for name, protocol in runtime.protocols.items()},
    )


def _list_names(runtime: Runtime) -> dict[str, tuple[str, ...]]:
    names = {name: models.ids[:MAX_NAMES] for name, models in list_known_models(runtime).items()}
    return {NO_PROVIDER: tuple(route.name for route in runtime.config.models[:MAX_NAMES]), **names}


def _record_protocol(protocol: Protocol, recording: Recording) -> Protocol:
    upstream = protocol.upstream
    return protocol if upstream is None else replace(protocol, upstream=_record_upstream(upstream, recording))


def _record_upstream(upstream: Upstream, recording: Recording) -> Upstream:
    def build(request: Request, target: Target, ledger: Ledger) -> bytes:
        body = upstream.build(request, target, ledger)
        recording.record_built(ledger)
        return body

    return replace(upstream, build=build)


def describe_tools(settings: Tools) -> dict[str, Json]:
    """Return what a replay needs of the settings: neither secrets nor where the services are."""
    return {SEARCH: _describe_tool(settings.web_search), FETCH: _describe_tool(settings.web_fetch)}


def _describe_tool(settings: WebSearch | WebFetch) -> Json:
    public = {name: value for name, value in asdict(settings).items() if name not in PRIVATE_SETTINGS}
    return msgspec.to_builtins(public)


def describe_backends(plan: ToolPlan) -> dict[str, str]:
    found = ((SEARCH, plan.search), (FETCH, plan.fetch))
    named = {tool: backend.name for tool, backend in found if backend is not None}
    if plan.beside_functions is None:
        return named
    return named | {BESIDE_FUNCTIONS + tool: name for tool, name in describe_backends(plan.beside_functions).items()}
