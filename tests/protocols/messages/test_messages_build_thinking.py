"""Wishes about reasoning, written in the terms of one Claude model."""

import pytest

from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.profile import Profile
from dragoman.hub.request import Reasoning, Role, Switch, Text, Thinking, ToolCall, ToolResult, Turn
from dragoman.providers.models import find_profile
from protocols.messages.messages_dialogue import build, build_body, chat, parse
from tables import each_row

OLD = find_profile("claude-sonnet-4-5")
OPUS_4_6 = find_profile("claude-opus-4-6")
OPUS_5 = find_profile("claude-opus-5")
OPUS_5_5 = find_profile("claude-opus-5-5")
SONNET_5_5 = find_profile("claude-sonnet-5-5")


def effort(word: str) -> Reasoning:
    return Reasoning("/reasoning_effort", word)


@each_row(
    ("profile", "word", "thinking", "sent"),
    [
        (OPUS_4_6, "high", None, "high"),
        (OPUS_4_6, "minimal", None, "low"),
        (OPUS_4_6, "xhigh", None, "max"),
        (OPUS_5, "xhigh", None, "xhigh"),
        (OPUS_5, "none", {"type": "disabled"}, None),
        (SONNET_5_5, "none", {"type": "between_tools"}, None),
        (OPUS_5_5, "none", None, "low"),
        (find_profile("claude-opus-4-5"), "max", None, "high"),
        (OLD, "none", {"type": "disabled"}, None),
        (OLD, "minimal", {"type": "enabled", "budget_tokens": 1024}, None),
        (OLD, "medium", {"type": "enabled", "budget_tokens": 8192}, None),
        (OLD, "max", {"type": "enabled", "budget_tokens": 32768}, None),
        (find_profile("claude-3-5-sonnet"), "none", None, None),
    ],
)
def test_an_effort_is_sent_in_the_models_own_terms(
    profile: Profile, word: str, thinking: object, sent: str | None
) -> None:
    body, losses = build_body(chat(reasoning=effort(word)), profile)
    assert body.get("thinking") == thinking
    assert body.get("output_config") == (None if sent is None else {"effort": sent})
    assert losses == {"/reasoning_effort": LossKind.APPROXIMATED}


def test_an_effort_for_a_model_that_cannot_think_is_dropped() -> None:
    body, losses = build_body(chat(reasoning=effort("high")), find_profile("claude-3-5-sonnet"))
    assert "thinking" not in body
    assert "/reasoning_effort" in losses


def test_a_budget_is_what_the_configuration_sets_for_an_effort() -> None:
    body, _ = build_body(chat(reasoning=effort("low")), OLD, {"low": 4000})
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4000}


@pytest.mark.parametrize(("cap", "budget"), [(1100, 1024), (2000, 1500), (9000, 7976), (20_000, 16_384)])
def test_a_budget_stays_below_the_cap_and_leaves_room_for_an_answer(cap: int, budget: int) -> None:
    body, losses = build_body(chat(reasoning=effort("high"), max_tokens=cap), OLD)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert losses == {"/reasoning_effort": LossKind.APPROXIMATED}


def test_an_effort_that_is_unknown_is_the_usual_one() -> None:
    assert build_body(chat(reasoning=effort("ultra")), OLD)[0]["thinking"] == {
        "type": "enabled",
        "budget_tokens": 16_384,
    }


def test_thinking_without_room_is_dropped() -> None:
    ledger = Ledger()
    body = build(chat(reasoning=effort("high"), max_tokens=1024), OLD, ledger)
    assert "thinking" not in body
    assert [loss.how for loss in ledger] == [LossKind.DROPPED]


def test_a_request_to_show_reasoning_asks_for_a_summary() -> None:
    requested = Reasoning("/reasoning/effort", "high", show="auto", show_at="/reasoning/summary")
    body, losses = build_body(chat(reasoning=requested), OPUS_5)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "high"}
    assert losses == {"/reasoning/effort": LossKind.APPROXIMATED, "/reasoning/summary": LossKind.APPROXIMATED}


def rebuild_thinking(profile: Profile, **fields: object) -> tuple[object, object, dict[str, LossKind]]:
    """What a client of Messages itself gets for its thinking on another model."""
    body = {"model": "m", "max_tokens": 20_000, "messages": [{"role": "user", "content": "hi"}], **fields}
    out, losses = build_body(parse(body), profile)
    return out.get("thinking"), out.get("output_config"), losses


def test_adaptive_thinking_becomes_a_budget_on_older_models() -> None:
    assert rebuild_thinking(OLD, thinking={"type": "adaptive"}, output_config={"effort": "low"}) == (
        {"type": "enabled", "budget_tokens": 2048},
        None,
        {"/thinking": LossKind.APPROXIMATED},
    )


def test_a_budget_becomes_an_effort_on_newer_models() -> None:
    assert rebuild_thinking(OPUS_5, thinking={"type": "enabled", "budget_tokens": 8192}) == (
        {"type": "adaptive"},
        {"effort": "medium"},
        {"/thinking/budget_tokens": LossKind.APPROXIMATED},
    )


def test_an_effort_is_capped_while_thinking_is_off() -> None:
    assert rebuild_thinking(OPUS_5, thinking={"type": "disabled"}, output_config={"effort": "max"}) == (
        {"type": "disabled"},
        {"effort": "high"},
        {"/output_config/effort": LossKind.APPROXIMATED},
    )


def test_thinking_that_cannot_be_switched_off_is_recorded() -> None:
    assert rebuild_thinking(OPUS_5_5, thinking={"type": "disabled"}) == (
        None,
        {"effort": "low"},
        {"/thinking": LossKind.APPROXIMATED},
    )


def test_thinking_on_a_model_of_its_own_kind_is_exact() -> None:
    given = {"type": "enabled", "budget_tokens": 5000, "display": "omitted"}
    assert rebuild_thinking(OPUS_4_6, thinking=given, output_config={"effort": "max"}) == (given, {"effort": "max"}, {})


def test_a_switch_counts_over_an_effort() -> None:
    requested = Reasoning("/e", "high", switch=Switch.DISABLED, switch_at="/t")
    assert build_body(chat(reasoning=requested), OPUS_4_6)[0]["thinking"] == {"type": "disabled"}


def loop(*thoughts: Thinking) -> list[Turn]:
    """A conversation in which a tool has just answered."""
    return [
        Turn(Role.USER, (Text("hi"),)),
        Turn(Role.ASSISTANT, (*thoughts, ToolCall("c", "f", "{}"))),
        Turn(Role.USER, (ToolResult("c", (Text("done"),)),)),
    ]


@pytest.mark.parametrize("thoughts", [(), (Thinking("mine", opaque=Opaque("openai", Form.ENCRYPTED, "x", "m")),)])
def test_a_budget_is_not_requested_where_the_reasoning_before_the_last_calls_is_gone(
    thoughts: tuple[Thinking, ...],
) -> None:
    body, losses = build_body(chat(loop(*thoughts), reasoning=effort("high"), temperature=0.5), OLD)
    assert "thinking" not in body
    assert body["temperature"] == 0.5
    assert losses["/reasoning_effort"] is LossKind.DROPPED


def test_a_budget_is_requested_where_the_reasoning_before_the_last_calls_came_back() -> None:
    thought = Thinking("", opaque=Opaque("anthropic", Form.REDACTED, "x", "m"))
    body, _ = build_body(chat(loop(thought), reasoning=effort("low")), OLD)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


def test_a_budget_is_requested_again_once_the_loop_is_over() -> None:
    turns = [*loop(), Turn(Role.ASSISTANT, (Text("so"),)), Turn(Role.USER, (Text("and?"),))]
    body, _ = build_body(chat(turns, reasoning=effort("low")), OLD)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


def test_thinking_without_a_budget_needs_no_reasoning_back() -> None:
    requested = Reasoning("/reasoning/effort", "high", show="auto", show_at="/reasoning/summary")
    assert build_body(chat(loop(), reasoning=requested), OPUS_4_6)[0]["thinking"] == {
        "type": "adaptive",
        "display": "summarized",
    }
