"""Who answers for a model name, and what a request to them is fitted to."""

import pytest

from dragoman.config.settings import ModelRoute
from dragoman.proxy.runtime import find_targets, list_known_models, target_settings
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams.provider import Catalogue, ModelInfo, Provider
from dragoman.upstreams.rejections.rules import Found
from dragoman.upstreams.routing import Route
from proxy.in_memory import make_provider, make_world, run


def listing(name: str, *models: ModelInfo) -> Provider:
    async def list_models() -> tuple[ModelInfo, ...]:
        return models

    return make_provider(name, catalogue=Catalogue(list_models=list_models))


def make_unlisted(name: str) -> Provider:
    async def list_models() -> tuple[ModelInfo, ...]:
        raise ValueError("no list today")

    return make_provider(name, catalogue=Catalogue(list_models=list_models))


def test_a_configured_name_needs_no_list() -> None:
    world = make_world(make_unlisted("one"), models=(ModelRoute("claude-*", ("one/auto", "two/*")),))
    assert run(find_targets(world, "claude-x")) == (Route("one", "auto"), Route("two", "claude-x"))
    assert run(find_targets(world, "one/anything")) == (Route("one", "anything"),)


def test_a_bare_name_goes_to_whoever_lists_it() -> None:
    world = make_world(listing("one", ModelInfo("a")), listing("two", ModelInfo("b"), ModelInfo("a")))
    assert run(find_targets(world, "b")) == (Route("two", "b"),)
    assert run(find_targets(world, "a")) == (Route("one", "a"), Route("two", "a"))


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    world = make_world(listing("one", ModelInfo("gpt-large"), ModelInfo("other")))
    with pytest.raises(RequestError) as refused:
        run(find_targets(world, "gpt-larg"))
    failure = refused.value.failure
    assert (failure.kind, failure.code, failure.at) == (Kind.NOT_FOUND, "model_not_found", "/model")
    assert "'gpt-larg'" in failure.message
    assert "gpt-large" in failure.message


def test_a_provider_whose_models_could_not_be_listed_is_named() -> None:
    world = make_world(make_unlisted("one"), listing("two", ModelInfo("b")))
    with pytest.raises(RequestError) as refused:
        run(find_targets(world, "a"))
    assert "'one'" in refused.value.failure.message
    assert "one/a" in refused.value.failure.message


def test_what_is_listed_and_learnt_decides_what_a_request_is_fitted_to() -> None:
    world = make_world(listing("one", ModelInfo("m", max_output=1234)))
    route = Route("one", "m")
    run(world.catalogues["one"].wait_for_list())
    plain = target_settings(world, route, "t")
    assert (plain.profile.max_output, plain.profile.no_tools_in, plain.quirks) == (1234, (), frozenset())
    world.learned_quirks.add("t", "one", "m", Found("short_call_ids", "/messages"))
    world.learned_quirks.add("t", "one", "m", Found("no_chat_tools"))
    assert target_settings(world, route, "t").quirks == {"short_call_ids", "no_chat_tools"}
    assert target_settings(world, route, "t").profile.no_tools_in == ("chat",)
    assert target_settings(world, route, "t", strict=True).rules == ()
    assert target_settings(world, route, "u", (Found("short_call_ids"),)).quirks == {"short_call_ids"}
    assert target_settings(world, Route("one", "n"), "t").profile.no_tools_in == ()
    assert target_settings(world, route, "another tenant").profile.no_tools_in == ()


def test_the_names_that_are_known() -> None:
    world = make_world(listing("one", ModelInfo("a")), make_unlisted("two"))
    for catalogue in world.catalogues.values():
        run(catalogue.wait_for_list())
    found = list_known_models(world)
    assert (found["one"].ids, found["one"].complete, found["one"].problem) == (("a",), True, "")
    assert (found["two"].ids, found["two"].complete) == ((), False)
    assert found["two"].problem
