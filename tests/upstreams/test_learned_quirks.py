"""What upstreams reject is learned separately for each client key, for a day, and its number is bounded."""

from dragoman.store.learned_rules import MAX_RULES, MAX_RULES_OF_ONE
from dragoman.upstreams.learned_quirks import KEPT_S, LearnedQuirks
from dragoman.upstreams.rejections.rules import Found

FIELD = Found("extra_field", "/tools/*/new")
ROLE = Found("no_developer")
ONCE = Found("no_thinking_with_choice")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rule_is_known_to_the_tenant_that_met_it_for_its_model_or_for_all() -> None:
    memory = LearnedQuirks()
    memory.add("a", "up", "m", FIELD)
    memory.add("a", "up", "m", ROLE)
    memory.add("a", "up", "m", ONCE)
    assert memory.find("a", "up", "m") == (FIELD, ROLE)
    assert memory.find("a", "up", "n") == (ROLE,)
    assert memory.find("b", "up", "m") == memory.find("a", "other", "m") == ()
    assert memory.list_known_to("a") == {"up": ("extra_field /tools/*/new m", "no_developer")}
    assert memory.list_known_to("c") == {}


def test_what_a_capture_holds_is_known_to_whoever_replays_it() -> None:
    texts = ("plain", "no_chat_tools:m", "extra_field /tools/*/new n")
    memory = LearnedQuirks({"up": texts})
    memory.add("a", "up", "m", ROLE)
    assert memory.find("a", "up", "m") == (Found("plain"), Found("no_chat_tools"), ROLE)
    assert memory.find("b", "up", "n") == (Found("plain"), FIELD)
    assert memory.list_known_to("b") == {"up": ("plain", "no_chat_tools  m", "extra_field /tools/*/new n")}
    again = LearnedQuirks(memory.list_known_to("b"))
    assert again.find("b", "up", "m") == (Found("plain"), Found("no_chat_tools"))


def test_a_rule_is_forgotten_a_day_after_it_was_learnt_however_often_it_is_used() -> None:
    clock = Clock()
    memory = LearnedQuirks(clock=clock)
    memory.add("a", "up", "m", FIELD)
    clock.now += KEPT_S - 1
    memory.add("a", "up", "m", FIELD)
    assert memory.find("a", "up", "m") == (FIELD,)
    clock.now += 1
    assert memory.find("a", "up", "m") == ()
    assert memory.list_all() == []


def test_rules_are_forgotten_on_command() -> None:
    memory = LearnedQuirks()
    for provider in ("up", "other"):
        memory.add("a", provider, "m", FIELD)
    memory.forget("up")
    assert [learned.provider for learned in memory.list_all()] == ["other"]
    memory.forget()
    assert memory.list_all() == []


def test_neither_tenants_nor_models_make_it_grow_without_bound() -> None:
    memory = LearnedQuirks()
    for number in range(MAX_RULES_OF_ONE + 5):
        memory.add("a", "up", f"model-{number}", FIELD)
    assert len(memory.list_all()) == MAX_RULES_OF_ONE
    assert memory.find("a", "up", "model-4") == ()
    assert memory.find("a", "up", "model-5") == (FIELD,)
    for number in range(MAX_RULES):
        memory.add(f"t{number}", "up", "m", FIELD)
    assert len(memory.list_all()) == MAX_RULES
    assert memory.find("a", "up", f"model-{MAX_RULES_OF_ONE}") == ()
