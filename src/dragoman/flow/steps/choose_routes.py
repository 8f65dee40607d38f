"""Choose the targets of a call, and fix the configuration that it is answered with."""

from dragoman.flow.call import Call
from dragoman.flow.runtime import Runtime, find_targets
from dragoman.hub.failure import BadRequest


async def choose_routes(call: Call, runtime: Runtime) -> None:
    """Give a call its targets: those of its model, where its state is kept. Raises RequestError if there are none."""
    await find_routes(call, runtime)
    if call.state is None or not call.state.pinned:
        return
    provider, recording = call.state.pinned, call.record.recording
    call.routes = tuple(route for route in call.routes if route.provider == provider)
    if call.routes:
        return
    if recording is not None:  # a replay must fail likewise
        from dragoman.flow.capture.recording_runtime import record_state

        record_state(call.state, recording)
    message = f"Provider {provider!r} keeps what this request refers to, and {call.model!r} is not a model of it here."
    raise BadRequest("/model", f"{message} Use a model of that provider, or send the whole input.")


async def find_routes(call: Call, runtime: Runtime) -> None:
    """Give a call the targets of its model, wherever its state is kept; raises RequestError if there are none."""
    recording = call.record.recording
    if recording is not None:
        from dragoman.flow.capture.recording_runtime import record_runtime

        recording.default_thinking = call.default_thinking
        runtime = record_runtime(runtime, recording, call)
    call.runtime = runtime
    call.routes = runtime.targets.get(call.model) or await find_targets(runtime, call.model, call.fallback_model)
