"""Keys and lifetimes of OpenAI's prompt caches in translated requests."""

import pytest

from dragoman.translate.hub.caching import CacheMode, CachePlan
from translate.caching.sessions import build
from wire_json import JsonObject

CHAT: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: JsonObject = {"model": "m", "input": "hi"}
KEYED = CachePlan(CacheMode.AUTO, key="of the session")
PAIRS = [("chat", "responses", CHAT), ("responses", "chat", RESPONSES)]


@pytest.mark.parametrize(("client", "upstream", "body"), PAIRS)
def test_the_clients_own_key_comes_before_that_of_its_session(client: str, upstream: str, body: JsonObject) -> None:
    assert build(client, upstream, body, "m", KEYED)["prompt_cache_key"] == "of the session"
    assert build(client, upstream, {**body, "prompt_cache_key": "own"}, "m", KEYED)["prompt_cache_key"] == "own"


@pytest.mark.parametrize(("client", "upstream", "body"), PAIRS)
def test_a_host_that_knows_no_keys_gets_none(client: str, upstream: str, body: JsonObject) -> None:
    plan = CachePlan(CacheMode.AUTO, takes_keys=False, key="of the session")
    assert "prompt_cache_key" not in build(client, upstream, {**body, "prompt_cache_key": "own"}, "m", plan)


@pytest.mark.parametrize(("client", "upstream", "body"), PAIRS)
def test_two_lifetimes_are_never_sent_together(client: str, upstream: str, body: JsonObject) -> None:
    both = {**body, "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"}
    sent = build(client, upstream, both, "m", KEYED)
    assert "prompt_cache_options" in sent
    assert "prompt_cache_retention" not in sent
    sent = build(client, upstream, {**body, "prompt_cache_retention": "24h"}, "m", KEYED)
    assert sent["prompt_cache_retention"] == "24h"


POINT: JsonObject = {"prompt_cache_breakpoint": {"mode": "explicit"}}
ONLY_CLIENTS = CachePlan(CacheMode.CLIENT, breakpoints=True)
SYSTEM_PARTS = [("chat", "text", "messages"), ("responses", "input_text", "input")]


@pytest.mark.parametrize(("client", "kind", "field"), SYSTEM_PARTS)
def test_a_marked_part_of_the_instructions_gets_no_breakpoint_of_ours_beside_it(
    client: str, kind: str, field: str
) -> None:
    content = [{"type": kind, "text": "Be brief.", **POINT}, {"type": kind, "text": "Be kind."}]
    turns = [{"role": "system", "content": content}, {"role": "user", "content": "hi"}]
    other = "responses" if client == "chat" else "chat"
    sent = build(client, other, {"model": "m", field: turns}, "gpt-5.6", ONLY_CLIENTS)
    [first, second] = sent["input" if other == "responses" else "messages"][0]["content"]
    assert "prompt_cache_breakpoint" in first
    assert "prompt_cache_breakpoint" not in second


def test_a_marked_tool_result_keeps_its_breakpoint() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42", **POINT}]}
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}, result]
    sent = build("chat", "responses", {"model": "m", "messages": chat}, "gpt-5.6", ONLY_CLIENTS)
    assert sent["input"][-1]["output"] == [{"type": "input_text", "text": "42", **POINT}]

    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_text", "text": "42", **POINT}],
    }
    items = [{"role": "user", "content": "hi"}, call, output]
    sent = build("responses", "chat", {"model": "m", "input": items}, "gpt-5.6", ONLY_CLIENTS)
    assert sent["messages"][-1]["content"] == [{"type": "text", "text": "42", **POINT}]


@pytest.mark.parametrize("breakpoints", [False, True])
def test_the_form_of_a_tool_result_depends_on_the_model_alone(breakpoints: bool) -> None:
    plan = CachePlan(CacheMode.AUTO, breakpoints=breakpoints)
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "hi"}, call, {"type": "function_call_output", "call_id": "c1", "output": "42"}]
    sent = build("responses", "chat", {"model": "m", "input": items}, "m", plan)
    assert sent["messages"][-1]["content"] == ([{"type": "text", "text": "42"}] if breakpoints else "42")
