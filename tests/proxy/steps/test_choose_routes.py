"""A call goes to the targets of its model, and where its state is kept elsewhere only there."""

import pytest

from dragoman.proxy.steps.choose_routes import choose_relayed_routes, choose_routes, find_routes
from dragoman.proxy.steps.read_body import read_body, read_relayed_body
from dragoman.state.context import Context
from dragoman.state.stored_call import ParsedBody, StoredCall, Terms
from dragoman.translate.hub.failure import UNKNOWN_MODEL, BadRequest, Kind, RequestError
from dragoman.upstreams.provider import Endpoint
from proxy.in_memory import make_provider, make_world, send_nothing
from proxy.relayed import new_relayed_call
from proxy.steps.story_rig import MODELS, StoryRig, new_call

BOTH = b'{"model":"both","messages":[{"role":"user","content":"Hi"}]}'


def kept_by(provider: str) -> StoredCall:
    terms, context = Terms("t", keeps=False, retention_s=0), Context((), (), None, None, provider)
    return StoredCall(None, terms, ParsedBody({}, 0), context)


async def test_a_call_gets_the_targets_of_its_model_and_the_configuration_in_force() -> None:
    rig, call = StoryRig(), new_call(body=BOTH)
    await read_body(call, rig.gateway.runtime)
    await choose_routes(call, rig.gateway.runtime)
    assert [str(route) for route in call.routes] == ["up/m", "other/m"]
    assert call.runtime is rig.gateway.runtime


async def test_a_state_that_a_provider_keeps_pins_the_call_to_it() -> None:
    rig, call = StoryRig(), new_call(body=BOTH)
    await read_body(call, rig.gateway.runtime)
    call.state = kept_by("other")
    await choose_routes(call, rig.gateway.runtime)
    assert [str(route) for route in call.routes] == ["other/m"]
    await find_routes(call, rig.gateway.runtime)  # to count
    assert len(call.routes) == 2
    call.state = kept_by("a third one")
    with pytest.raises(BadRequest, match="is not a model of it here"):
        await choose_routes(call, rig.gateway.runtime)


async def test_a_model_that_does_not_exist_is_refused() -> None:
    rig, call = StoryRig(), new_call(body=b'{"model":"none","messages":[]}')
    await read_body(call, rig.gateway.runtime)
    with pytest.raises(RequestError) as refused:
        await choose_routes(call, rig.gateway.runtime)
    assert refused.value.failure.code == UNKNOWN_MODEL


SERVING = Endpoint("http://up.invalid", ("chat",), send_nothing, relays=frozenset(("embeddings", "moderations")))


@pytest.mark.parametrize(
    ("path", "body", "routes"),
    [
        ("embeddings", b'{"model":"both"}', ["up/m"]),
        ("moderations", b'{"input":"x"}', ["up/omni-moderation-latest"]),
        ("moderations", b'{"model":"both"}', ["up/m"]),
    ],
)
async def test_a_relayed_call_gets_the_targets_that_serve_its_path(path: str, body: bytes, routes: list[str]) -> None:
    world = make_world(make_provider(endpoint=SERVING), make_provider("other"), models=MODELS)
    call = new_relayed_call(path, body)
    await read_relayed_body(call, world)
    await choose_relayed_routes(call, world)
    assert [str(route) for route in call.routes] == routes


async def test_a_path_that_no_provider_opts_into_is_refused_with_the_setting_that_allows_it() -> None:
    world, call = make_world(make_provider(), models=MODELS), new_relayed_call("embeddings", b'{"model":"m"}')
    await read_relayed_body(call, world)
    with pytest.raises(RequestError, match='paths = \\["embeddings"\\]') as refused:
        await choose_relayed_routes(call, world)
    assert (refused.value.failure.kind, refused.value.failure.code) == (Kind.NOT_FOUND, "path_not_served")
