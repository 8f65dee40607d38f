"""A model name is resolved in a fixed order: explicit, configured, listed, nearly listed, or not at all."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from msgspec import Struct

from dragoman.config.settings import ModelRoute
from dragoman.upstreams.provider import Catalogue
from dragoman.upstreams.routing import (
    KnownModels,
    Route,
    find_configured_targets,
    find_known_id,
    find_listed_targets,
    find_similar_names,
    normalise_id,
)
from fakes.upstream import FakeUpstream
from gateway import KEY, provider_section, running
from tables import each_row

OPENAI = KnownModels(("gpt-5-mini", "gpt-4o-2024-05-13", "gpt-4o-2024-11-20"), complete=True)
CLAUDE = KnownModels(("claude-sonnet-4-5-20250929", "claude-opus-4-1-20250805"), complete=True)
BOTH = {"openai": OPENAI, "claude": CLAUDE}
ROUTES = (
    ModelRoute("fast", ("openai/gpt-5-mini",)),
    ModelRoute("claude-*", ("claude/*", "openai/gpt-5-mini")),
    ModelRoute("gpt-5-mini", ("claude/claude-opus-4-1-20250805",)),
    ModelRoute("claude-opus", ("never/reached",)),
    ModelRoute("openai/gpt-5", ("openai/gpt-5-mini", "claude/claude-opus-4-1-20250805")),
)
CATCH_ALL = (ModelRoute("*", ("claude/*",)),)


class FakeProvider(Struct, frozen=True):
    catalogue: Catalogue = Catalogue()


def find_targets(name: str) -> list[str]:
    """As the gateway asks: what is configured comes before what is listed."""
    configured = find_configured_targets(name, ROUTES, dict.fromkeys(BOTH, FakeProvider()))
    return [str(route) for route in configured or find_listed_targets(name, BOTH)]


def test_a_glob_does_not_hide_a_provider_that_is_named_outright() -> None:
    providers = dict.fromkeys(BOTH, FakeProvider())
    assert find_configured_targets("openai/x", CATCH_ALL, providers) == (Route("openai", "x"),)
    assert find_configured_targets("nobody/x", CATCH_ALL, providers) == (Route("claude", "nobody/x"),)


BY_PROVIDER = (
    ModelRoute("*ude/*", ("openai/any",)),
    ModelRoute("openai/gpt-*", ("openai/*", "claude/fixed", "claude/*")),
    ModelRoute("team/*", ("openai/*",)),
)


@each_row(
    ("name", "targets"),
    [
        ("openai/gpt-5", ["openai/gpt-5", "claude/fixed", "claude/gpt-5"]),  # `*` is the model without its provider
        ("openai/gpt-5/x", ["openai/gpt-5/x", "claude/fixed", "claude/gpt-5/x"]),
        ("openai/o3", ["openai/o3"]),
        ("claude/opus", ["claude/opus"]),  # the provider is not written out
        ("team/gpt-5", ["openai/team/gpt-5"]),  # no provider has this name
    ],
)
def test_a_glob_that_writes_out_a_provider_matches_its_models(name: str, targets: list[str]) -> None:
    found = find_configured_targets(name, BY_PROVIDER, dict.fromkeys(BOTH, FakeProvider()))
    assert [str(route) for route in found] == targets


def test_a_provider_has_what_it_lists_and_without_a_whole_list_anything() -> None:
    assert find_known_id("claude-sonnet-4-5-20250929", CLAUDE) == "claude-sonnet-4-5-20250929"
    assert find_known_id("claude-sonnet-4.5", CLAUDE) == "claude-sonnet-4-5-20250929"
    assert find_known_id("claude-sonnet-9", CLAUDE) is None
    assert find_known_id("claude-sonnet-9", KnownModels(CLAUDE.ids, complete=True, unlisted=("claude-sonnet-9",)))
    assert find_known_id("anything", KnownModels((), complete=False)) == "anything"


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("openai/gpt-5-mini", ["openai/gpt-5-mini"]),
        ("openai/anything/at-all", ["openai/anything/at-all"]),
        ("openai/gpt-5", ["openai/gpt-5-mini", "claude/claude-opus-4-1-20250805"]),  # configured by its whole name
        ("fast", ["openai/gpt-5-mini"]),
        ("claude-new", ["claude/claude-new", "openai/gpt-5-mini"]),
        ("claude-opus", ["claude/claude-opus", "openai/gpt-5-mini"]),  # the first that matches
        ("gpt-5-mini", ["claude/claude-opus-4-1-20250805"]),  # configured before listed
        ("gpt-4o-2024-11-20", ["openai/gpt-4o-2024-11-20"]),
        ("GPT-4o-2024-05-13", ["openai/gpt-4o-2024-05-13"]),
        ("gpt-4o", ["openai/gpt-4o-2024-11-20"]),
        ("gpt-4o-latest", ["openai/gpt-4o-2024-11-20"]),
        ("gpt_4o", ["openai/gpt-4o-2024-11-20"]),
        ("gpt-4o-2023-01-01", ["openai/gpt-4o-2024-11-20"]),
        ("nobody/gpt", []),
        ("gpt", []),
    ],
)
def test_the_first_match_in_the_order_is_used(name: str, targets: list[str]) -> None:
    assert find_targets(name) == targets


@pytest.mark.parametrize(
    ("requested", "listed"),
    [("claude-sonnet-4.5", "claude-sonnet-4-5-20250929"), ("Claude-Opus-4_1@20250805", "claude-opus-4-1-20250805")],
)
def test_dots_dashes_case_and_dates_make_no_difference(requested: str, listed: str) -> None:
    assert normalise_id(requested) == normalise_id(listed)
    assert find_listed_targets(requested, BOTH) == (Route("claude", listed),)


def test_a_name_without_a_date_means_the_vendors_current_one() -> None:
    known = {"p": KnownModels(("m-2025-01-01", "M", "m-2026-01-01"), complete=True)}
    assert find_listed_targets("m-latest", known) == (Route("p", "M"),)
    assert find_listed_targets("m-20250101", known) == (Route("p", "m-2025-01-01"),)


def test_all_providers_that_list_a_model_are_targets_in_configured_order() -> None:
    known = {"b": KnownModels(("m",), True), "a": KnownModels(("m",), True), "c": KnownModels(("other",), True)}
    assert find_listed_targets("m", known) == (Route("b", "m"), Route("a", "m"))


def test_a_provider_without_a_list_is_a_target_of_unlisted_names() -> None:
    known = {"silent": KnownModels((), complete=False), "claude": CLAUDE}
    assert find_listed_targets("gpt-9", known) == (Route("silent", "gpt-9"),)
    assert find_listed_targets("claude-opus-4.1", known) == (Route("claude", "claude-opus-4-1-20250805"),)


def test_similar_names_are_suggested() -> None:
    assert find_similar_names("fats", ROUTES, BOTH)[0] == "fast"
    assert find_similar_names("claude-sonet-4-5", ROUTES, BOTH)[0] == "claude-sonnet-4-5-20250929"
    assert find_similar_names("zzz", ROUTES, BOTH) != ()


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/chat/completions", {"messages": []}, ("error", "code", "model_not_found")),
        ("/v1/responses", {"input": "Hi"}, ("error", "code", "model_not_found")),
        ("/v1/messages", {"messages": [], "max_tokens": 5}, ("error", "type", "not_found_error")),
    ],
)
def test_an_unknown_name_is_an_error_in_the_clients_protocol(
    tmp_path: Path, path: str, body: dict[str, object], code: tuple[str, str, str]
) -> None:
    with (
        FakeUpstream(models=("qwen3-coder",)) as fake,
        running(provider_section("chat", fake.url), tmp_path) as gateway,
    ):
        request = json.dumps({**body, "model": "qwen3-codr"}).encode()
        head = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(gateway.url + path, request, head), timeout=60)
        error = json.loads(refused.value.read())
    assert refused.value.code == 404
    assert error[code[0]][code[1]] == code[2]
    assert "Nearest names: qwen3-coder, up/qwen3-coder." in error["error"]["message"]
    assert fake.calls == []
