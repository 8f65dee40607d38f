"""Providers whose names for models differ from the clients' names."""

from msgspec import Struct

from dragoman.config.settings import ModelRoute
from dragoman.upstreams.kiro.model_cache import UNLISTED, resolve_name
from dragoman.upstreams.provider import Catalogue
from dragoman.upstreams.routing import KnownModels, Route, find_configured_targets, find_listed_targets

IDS = ("auto", "claude-sonnet-4.5", "claude-opus-4.6")


class FakeProvider(Struct, frozen=True):
    catalogue: Catalogue


PLAIN = FakeProvider(Catalogue())
KIRO = FakeProvider(Catalogue(rename=lambda name: resolve_name(name, IDS)))
LISTED = {"kiro": KnownModels(IDS, True, KIRO.catalogue.rename), "other": KnownModels(("gpt-fake",), True)}


def test_an_explicit_provider_and_name_is_renamed() -> None:
    found = find_configured_targets("kiro/claude-sonnet-4-5-20250929", (), {"kiro": KIRO})
    assert found == (Route("kiro", "claude-sonnet-4.5"),)


def test_each_target_of_a_route_gets_its_own_name() -> None:
    routes = (ModelRoute("claude-*", ("kiro/*", "other/*", "gone/*")),)
    found = find_configured_targets("claude-opus-4-6", routes, {"kiro": KIRO, "other": PLAIN})
    assert found == (
        Route("kiro", "claude-opus-4.6"),
        Route("other", "claude-opus-4-6"),
        Route("gone", "claude-opus-4-6"),
    )


def test_a_bare_name_finds_the_provider_that_lists_it_under_another_name() -> None:
    assert find_listed_targets("claude-4.6-opus-high", LISTED) == (Route("kiro", "claude-opus-4.6"),)


def test_a_listed_name_is_never_changed() -> None:
    assert find_listed_targets("gpt-fake", LISTED) == (Route("other", "gpt-fake"),)


def test_an_unlisted_name_goes_to_a_provider_without_a_list() -> None:
    unsure = {"kiro": KnownModels(IDS, False, KIRO.catalogue.rename), "other": KnownModels(("gpt-fake",), True)}
    assert find_listed_targets("claude-haiku-4-5-20251001", unsure) == (Route("kiro", "claude-haiku-4.5"),)
    assert find_listed_targets("claude-haiku-4-5-20251001", LISTED) == ()


def test_a_model_that_is_served_without_being_listed_is_found_by_its_bare_name() -> None:
    kiro = KnownModels(IDS, True, KIRO.catalogue.rename, unlisted=UNLISTED)
    found = find_listed_targets("claude-3-7-sonnet-20250219", {**LISTED, "kiro": kiro})
    assert found == (Route("kiro", "CLAUDE_3_7_SONNET_20250219_V1_0"),)
    assert find_listed_targets("claude-opus-9", {**LISTED, "kiro": kiro}) == ()
    claude = KnownModels(("claude-sonnet-4-20250514",), True)
    assert find_listed_targets("claude-sonnet-4", {"kiro": kiro, "claude": claude}) == (
        Route("claude", "claude-sonnet-4-20250514"),
    )
