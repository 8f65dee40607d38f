"""A background response is queued here unless its upstream keeps it and runs it itself."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dragoman.proxy.call import Call
from dragoman.proxy.steps.accept_background import is_queued, skip_events
from dragoman.state.context import Context
from dragoman.state.stored_call import ParsedBody, StoredCall, Terms
from dragoman.upstreams.routing import Route
from proxy.in_memory import make_provider, make_world
from proxy.steps.story_rig import new_call


def make_state(*, background: bool = True, keeper: str = "", conversation: str | None = None) -> StoredCall:
    terms, context = Terms("t", keeps=True, retention_s=0), Context((), (), None, conversation, keeper)
    return StoredCall(None, terms, ParsedBody({"background": background}, 0), context)


def make_call_to(*keeping: bool) -> Call:
    """Return a call with a target for each of these, which keeps its replies itself or not."""
    call, providers = new_call("responses"), []
    for number, keeps in enumerate(keeping):
        provider = make_provider(f"p{number}", ("responses",))
        providers.append(replace(provider, endpoint=replace(provider.endpoint, stores_replies=keeps)))
    call.runtime = make_world(*providers)
    call.routes = tuple(Route(provider.name, "m") for provider in providers)
    return call


@pytest.mark.parametrize(
    ("state", "keeping", "expected"),
    [
        (None, [False], False),
        (make_state(background=False), [False], False),
        (make_state(), [False], True),
        (make_state(), [True], False),
        (make_state(), [True, False], True),
        (make_state(keeper="p0"), [True, False], False),
        (make_state(conversation="conv_1"), [True], True),
    ],
)
async def test_who_runs_a_background_response(
    state: StoredCall | None, keeping: Sequence[bool], expected: bool
) -> None:
    assert is_queued(make_call_to(*keeping), state) is expected


def test_events_that_a_client_has_are_skipped() -> None:
    assert skip_events(b"data: 1\n\ndata: 2\n\ndata: 3\n\n", 2) == b"data: 3\n\n"
