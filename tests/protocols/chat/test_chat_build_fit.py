"""What other protocols have and Chat has not: the body for a Chat upstream is still one that OpenAI accepts."""

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import (
    Foreign,
    Function,
    Hosted,
    Reasoning,
    Request,
    Role,
    Switch,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.protocols.chat import PROTOCOL
from wire_json import JsonObject

TARGET = Target("gpt-x", "up")
HI = Turn(Role.USER, (Text("hi", "/hi"),), "/0")
CALLS = Turn(Role.ASSISTANT, (ToolCall("a", "f", "{}", "/a"), ToolCall("b", "f", "{}", "/b")), "/1")
F = Function("f", "/tools/0", parameters={"type": "object"})

Losses = list[tuple[str, LossKind]]


def build_body(
    *turns: Turn, target: Target = TARGET, client: str = "messages", **fields: object
) -> tuple[JsonObject, Losses]:
    assert PROTOCOL.upstream
    ledger = Ledger()
    request = replace(Request(client, "asked", turns or (HI,)), **fields)
    body = msgspec.json.decode(PROTOCOL.upstream.build(request, target, ledger))
    return body, [(loss.path, loss.how) for loss in ledger]


def test_a_call_without_a_result_gets_one_before_anything_else_is_sent() -> None:
    body, losses = build_body(
        HI, CALLS, Turn(Role.USER, (ToolResult("b", (Text("ok"),), "/r"), Text("Go on", "/t")), "/2")
    )
    assert body["messages"][2:] == [
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
        {"role": "tool", "tool_call_id": "a", "content": "[no result]"},
        {"role": "user", "content": "Go on"},
    ]
    assert losses == [("/a", LossKind.INVENTED)]


def test_a_last_call_gets_a_result_too() -> None:
    body, losses = build_body(HI, CALLS)
    assert [message.get("tool_call_id") for message in body["messages"][2:]] == ["a", "b"]
    assert losses == [("/a", LossKind.INVENTED), ("/b", LossKind.INVENTED)]


def test_an_item_that_chat_cannot_represent_leaves_no_empty_message() -> None:
    update = Turn(Role.USER, (Foreign("configuration_update", {"x": 1}, "/1"),), "/1")
    body, losses = build_body(HI, update, HI, client="responses")
    assert body["messages"] == [{"role": "user", "content": "hi"}] * 2
    assert losses == [("/1", LossKind.DROPPED)]


def test_a_long_name_of_the_end_user_is_sent_as_its_digest() -> None:
    body, losses = build_body(user="u" * 65)
    assert len(body["user"]) == 64
    assert body["user"] != "u" * 64
    assert losses == [("/user", LossKind.APPROXIMATED)]
    assert build_body(user="u" * 64)[0]["user"] == "u" * 64
    assert build_body(user="u" * 65, client="responses")[0]["user"] == "u" * 65


def test_warming_a_cache_requests_one_token() -> None:
    body, losses = build_body(max_tokens=0)
    assert body["max_completion_tokens"] == 1
    assert losses == [("/max_tokens", LossKind.APPROXIMATED)]


def test_a_budget_is_one_loss() -> None:
    reasoning = Reasoning("/thinking", budget=5000, budget_at="/b", switch=Switch.ENABLED, switch_at="/thinking")
    body, losses = build_body(reasoning=reasoning)
    assert body["reasoning_effort"] == "medium"
    assert losses == [("/b", LossKind.APPROXIMATED)]


def test_adaptive_thinking_is_sent_beside_its_effort() -> None:
    reasoning = Reasoning("/e", effort="low", switch=Switch.ADAPTIVE, switch_at="/s")
    body, losses = build_body(reasoning=reasoning)
    assert body["reasoning_effort"] == "low"
    assert losses == [("/s", LossKind.APPROXIMATED), ("/e", LossKind.APPROXIMATED)]


def test_thinking_switched_off_loses_its_effort() -> None:
    reasoning = Reasoning("/e", effort="high", switch=Switch.DISABLED, switch_at="/s")
    body, losses = build_body(reasoning=reasoning)
    assert body["reasoning_effort"] == "none"
    assert losses == [("/e", LossKind.DROPPED), ("/s", LossKind.APPROXIMATED)]


@pytest.mark.parametrize(
    ("effort", "sent"),
    [(None, True), ("none", True), ("low", False)],
    ids=["as it likes", "off", "on"],
)
def test_a_model_that_thinks_takes_no_temperature(effort: str | None, sent: bool) -> None:
    target = Target("gpt-5.2", "openai", Profile(sampling_while_thinking=False))
    reasoning = Reasoning("/e", effort=effort) if effort else None
    body, losses = build_body(target=target, client="responses", temperature=0.3, top_p=1, reasoning=reasoning)
    assert body.get("temperature") == (0.3 if sent else None)
    assert losses == ([] if sent else [("/temperature", LossKind.DROPPED)])


def test_what_both_apis_of_one_vendor_know_passes() -> None:
    ext = {"moderation": {"model": "m"}, "prompt_cache_options/mode": "explicit", "truncation": "auto"}
    body, losses = build_body(client="responses", ext=ext)
    assert body["moderation"] == {"model": "m"}
    assert body["prompt_cache_options"] == {"mode": "explicit"}
    assert losses == [("/truncation", LossKind.DROPPED)]


def test_a_lifetime_that_chat_lacks_is_dropped() -> None:
    body, losses = build_body(client="responses", ext={"prompt_cache_options/ttl": "12h"})
    assert "prompt_cache_options" not in body
    assert losses == [("/prompt_cache_options/ttl", LossKind.DROPPED)]


def test_a_tool_without_documentation_never_costs_a_refusal() -> None:
    body, losses = build_body(tools=(Hosted("frobnicate_20270101", {}, "/tools/0", known=False),))
    assert "tools" not in body
    assert losses == [("/tools/0", LossKind.DROPPED)]
    with pytest.raises(RequestError):
        build_body(tools=(Hosted("bash_20250124", {}, "/tools/0"),))


def test_a_dropped_tool_is_one_loss_however_many_fields_it_has() -> None:
    search = Hosted("web_search", {}, "/tools/1", context_size="low", ext={"cache_control": {"type": "ephemeral"}})
    assert build_body(tools=(F, search))[1] == [("/tools/1", LossKind.DROPPED)]
