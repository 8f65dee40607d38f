"""Quirks are learnt separately for each client key, and their number is bounded."""

from dragoman.upstreams.learned_quirks import MAX_QUIRK_ENTRIES, MAX_QUIRKS, LearnedQuirks


def test_a_quirk_is_known_to_the_tenant_that_met_it() -> None:
    quirks = LearnedQuirks()
    quirks.add("a", "up", "plain")
    quirks.add("a", "up", "max_tokens")
    quirks.add("b", "other", "plain")
    assert quirks.quirks("a", "up") == {"plain", "max_tokens"}
    assert quirks.quirks("b", "up") == frozenset()
    assert quirks.list_known_to("a") == {"up": ("max_tokens", "plain")}
    assert quirks.list_known_to("c") == {}


def test_what_a_capture_holds_is_known_to_whoever_replays_it() -> None:
    quirks = LearnedQuirks({"up": ("plain",)})
    quirks.add("a", "up", "max_tokens")
    assert quirks.quirks("a", "up") == {"plain", "max_tokens"}
    assert quirks.list_known_to("b") == {"up": ("plain",)}


def test_neither_tenants_nor_quirks_grow_without_bound() -> None:
    quirks = LearnedQuirks()
    for number in range(MAX_QUIRKS + 5):
        quirks.add("a", "up", f"no_chat_tools:model-{number}")
    assert len(quirks.quirks("a", "up")) == MAX_QUIRKS
    for number in range(MAX_QUIRK_ENTRIES):
        quirks.quirks("a", "up")
        quirks.add(f"t{number}", "up", "plain")
    assert quirks.quirks("a", "up")
    assert not quirks.quirks("t0", "up")
