"""Choose the targets of a call, and fix the configuration that it is answered with."""

from typing import TYPE_CHECKING

from dragoman.proxy.call import Call
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.key_policy import allow_routes, describe_forbidden, leave_out_unpriced
from dragoman.proxy.runtime import Runtime, find_targets
from dragoman.proxy.steps.restore_state import record_state
from dragoman.tenancy.policies import UNLIMITED, KeyPolicy
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.upstreams.routing import Route

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.proxy.relay import RelayedCall


async def choose_routes(call: Call, runtime: Runtime) -> None:
    """Give a call its targets: those of its model that its key may use, where its state is kept.

    Raises RequestError if there are none.
    """
    if call.record.recording is not None:
        runtime = _record(call, runtime, call.record.recording)
    call.runtime = runtime
    is_restricted = call.policy is not UNLIMITED and call.policy.is_restricted
    known = None if is_restricted else runtime.targets.get(call.model)
    call.routes = known or await _find_routes(call, runtime)
    if call.state is not None and call.state.pinned:
        _pin(call, call.state.pinned)
    if runtime.policies is not None and runtime.policies.has_limits:
        leave_out_unpriced(call)


async def find_routes(call: Call, runtime: Runtime) -> None:
    """Give a call the targets of its model, wherever its state is kept; raises RequestError if there are none."""
    if call.record.recording is not None:
        runtime = _record(call, runtime, call.record.recording)
    call.runtime = runtime
    call.routes = await _find_routes(call, runtime)


async def _find_routes(call: Call, runtime: Runtime) -> tuple[Route, ...]:
    """Return the targets of the model, or of the client's choice in its place, that the key may use."""
    policy, name, fallback = call.policy, call.model, call.fallback_model
    if not policy.is_restricted:
        return runtime.targets.get(name) or await find_targets(runtime, name, fallback)
    try:
        routes = await find_targets(runtime, name)
    except RequestError:
        if not fallback:
            raise
        name, routes = fallback, await find_targets(runtime, fallback)
    return _allow(policy, name, routes)


def _allow(policy: KeyPolicy, name: str, routes: tuple[Route, ...]) -> tuple[Route, ...]:
    allowed = allow_routes(policy, name, routes)
    if not allowed:
        raise RequestError(describe_forbidden(policy, name))
    return allowed


async def choose_relayed_routes(call: "RelayedCall", runtime: Runtime) -> None:
    """Give a relayed call the targets of its model that serve its path. Raises RequestError if there are none.

    A request without a model may go to any provider that serves the path.
    """
    if call.record.recording is not None:
        runtime = _record(call, runtime, call.record.recording)
    call.runtime, path = runtime, call.relayed_path.name
    serving = [name for name, provider in runtime.providers.items() if path in provider.endpoint.relays]
    try:
        routes = runtime.targets.get(call.model) or await find_targets(runtime, call.model)
    except RequestError:
        if call.names_model or not serving:
            raise
        routes = ()
    call.routes = tuple(route for route in routes if route.provider in serving)
    if not call.routes and not call.names_model:
        call.routes = tuple(Route(name, call.model) for name in serving)
    if not call.routes:
        raise RequestError(_describe_unserved(call.model, path, routes))
    if call.policy.is_restricted:
        call.routes = _allow(call.policy, call.model, call.routes)
    if runtime.policies is not None and runtime.policies.has_limits:
        leave_out_unpriced(call)


def _describe_unserved(model: str, path: str, routes: tuple[Route, ...]) -> Failure:
    names = ", ".join(repr(route.provider) for route in routes) or "any provider"
    message = (
        f"The model {model!r} is not served at /v1/{path} by {names}. "
        f'To allow it, add to the section of a provider that has this path: paths = ["{path}"]'
    )
    return Failure(Kind.NOT_FOUND, message, code="path_not_served", at="/model")


def _record(call: Call, runtime: Runtime, recording: Recording) -> Runtime:
    """Return a configuration that notes in the capture of a call what the call learns from it."""
    from dragoman.proxy.capture.recording_runtime import record_runtime  # few requests are captured

    recording.settings.default_thinking = call.default_thinking
    return record_runtime(runtime, recording, call)


def _pin(call: Call, provider: str) -> None:
    """Leave only the targets at the provider that keeps what the request refers to. Raises RequestError without any."""
    call.routes = tuple(route for route in call.routes if route.provider == provider)
    if call.routes:
        return
    if call.state is not None:
        record_state(call, call.state)  # a replay must fail likewise
    message = f"Provider {provider!r} keeps what this request refers to, and {call.model!r} is not a model of it here."
    raise BadRequest("/model", f"{message} Use a model of that provider, or send the whole input.")
