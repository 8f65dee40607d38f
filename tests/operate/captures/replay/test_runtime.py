"""The surroundings of a captured request are made of what the capture says about them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.operate.captures.replay.recorded_services import RecordedUpstream
from dragoman.operate.captures.replay.runtime import UnsupportedCapture, make_plans, make_runtime
from dragoman.proxy.capture.files import read_capture as read
from dragoman.proxy.capture.format import Capture
from dragoman.proxy.capture.lookups import ReplayingLookups
from dragoman.proxy.runtime import Runtime
from narrowing import present
from proxy.in_memory import make_provider

FIXTURE = Path(__file__).parents[3] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture(**changes: object) -> Capture:
    return replace(read(FIXTURE.read_bytes()), **changes)


def make(capture: Capture) -> Runtime:
    return make_runtime(capture, RecordedUpstream(capture.upstream_requests, 0.0), ReplayingLookups(capture))


async def test_the_runtime_has_the_providers_of_the_capture() -> None:
    capture = fixture()
    assert set(capture.settings.providers) <= set(make(capture).providers)


async def test_a_provider_of_an_unknown_kind_is_named() -> None:
    settings = replace(fixture().settings, providers={"up": {"stanza": {"kind": "gone"}}})
    with pytest.raises(UnsupportedCapture, match="gone"):
        make(fixture(settings=settings))


async def test_a_provider_that_was_not_used_has_the_models_that_were_known() -> None:
    settings = replace(fixture().settings, known_models={"": ("alias",), "other": ("a", "b")})
    runtime = make(fixture(settings=settings))
    assert [model.id for model in runtime.catalogues["other"].list_known()] == ["a", "b"]
    assert runtime.catalogues["other"].complete
    assert "" not in runtime.providers


def test_tools_have_the_names_and_settings_of_the_capture() -> None:
    backends = {"up": {"web_search": "index", "beside functions: web_fetch": "library"}, "gone": {}}
    settings = replace(fixture().settings, tools={"web_search": {"results": 3}}, tool_backends=backends)
    plans = make_plans(fixture(settings=settings), {"up": make_provider()})
    assert set(plans) == {"up"}
    assert (present(plans["up"].search).name, plans["up"].fetch) == ("index", None)
    assert plans["up"].search_settings.results == 3
    instead = present(plans["up"].beside_functions)
    assert (instead.search, present(instead.fetch).name) == (None, "library")


def test_a_capture_from_before_server_tools_has_none() -> None:
    assert make_plans(fixture(), {"up": make_provider()}) == {}
