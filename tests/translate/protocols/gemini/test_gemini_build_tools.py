"""Tools and tool choices, written for Gemini."""

import pytest

from dragoman.translate.hub.failure import BadRequest
from translate.protocols.gemini.gemini_requests import (
    HELLO,
    NEW,
    OLD,
    WEATHER,
    build_from,
    from_chat,
    losses_from_chat,
    refusal_from_chat,
)
from wire_json import JsonObject

CLOCK: JsonObject = {"type": "function", "function": {"name": "clock", "description": "The time."}}
TWO = [WEATHER, CLOCK]
SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
OWN: JsonObject = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}


def make_named_choice(name: str) -> JsonObject:
    return {"type": "function", "function": {"name": name}}


def from_messages(
    tools: list[JsonObject], model: str, quirks: frozenset[str] = frozenset(), **fields: object
) -> JsonObject:
    body: JsonObject = {"model": "m", "max_tokens": 9, "messages": HELLO, "tools": tools, **fields}
    return build_from("messages", body, model, quirks)[0]


def test_functions_are_declared_with_json_schemas_in_one_entry() -> None:
    [entry] = from_chat(tools=TWO)["tools"]
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"name": "weather", "parametersJsonSchema": city}
    assert entry == {"functionDeclarations": [weather, {"name": "clock", "description": "The time."}]}


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {}}, {"type": "object"}, {}])
def test_a_function_without_arguments_has_no_schema(schema: JsonObject) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": schema}}
    assert from_chat(tools=[tool])["tools"] == [{"functionDeclarations": [{"name": "now"}]}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (make_named_choice("clock"), {"mode": "ANY", "allowedFunctionNames": ["clock"]}),
    ],
)
def test_a_choice_becomes_a_mode(choice: object, sent: JsonObject) -> None:
    body = from_chat(tools=TWO, tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": sent}
    assert len(body["tools"][0]["functionDeclarations"]) == 2


@pytest.mark.parametrize(("mode", "sent"), [("auto", "VALIDATED"), ("required", "ANY")])
def test_a_subset_of_tools_keeps_its_names(mode: str, sent: str) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [make_named_choice("clock")]}}
    calling = from_chat(tools=TWO, tool_choice=allowed)["toolConfig"]["functionCallingConfig"]
    assert calling == {"mode": sent, "allowedFunctionNames": ["clock"]}
    lost = {"/tool_choice": "approximated"} if mode == "auto" else {}
    assert losses_from_chat(tools=TWO, tool_choice=allowed) == lost


def test_a_choice_without_functions_is_not_sent() -> None:
    assert "toolConfig" not in from_chat(tool_choice="auto")
    assert refusal_from_chat(tool_choice="required")[0] == "/tool_choice"


def test_a_name_of_128_characters_stays() -> None:
    name = "n" * 128
    tool = {"type": "function", "function": {"name": name}}
    assert from_chat(tools=[tool])["tools"][0]["functionDeclarations"][0]["name"] == name
    longer = {"type": "function", "function": {"name": name + "n"}}
    [sent] = from_chat(tools=[longer])["tools"][0]["functionDeclarations"]
    assert len(sent["name"]) == 128


def test_calls_one_at_a_time_cannot_be_had() -> None:
    assert losses_from_chat(tools=TWO, parallel_tool_calls=False) == {"/parallel_tool_calls": "dropped"}


# Tools that Google runs


def test_a_search_alone_is_googles() -> None:
    body = from_messages([SEARCH], OLD)
    assert body["tools"] == [{"googleSearch": {}}]
    assert "toolConfig" not in body


def test_a_search_beside_functions_sets_the_flag_and_the_mode() -> None:
    body = from_messages([SEARCH, OWN], NEW)
    assert [list(entry) for entry in body["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert body["toolConfig"] == {
        "functionCallingConfig": {"mode": "VALIDATED"},
        "includeServerSideToolInvocations": True,
    }


@pytest.mark.parametrize(("model", "quirks"), [(OLD, frozenset()), (NEW, frozenset({"vertex"}))])
def test_where_google_cannot_mix_them_functions_win(model: str, quirks: frozenset[str]) -> None:
    body = from_messages([SEARCH, OWN], model, quirks)
    assert [list(entry) for entry in body["tools"]] == [["functionDeclarations"]]
    assert "toolConfig" not in body


def test_a_forced_search_that_cannot_run_is_refused() -> None:
    with pytest.raises(BadRequest) as refused:
        from_messages([SEARCH, OWN], OLD, tool_choice={"type": "tool", "name": "web_search"})
    assert refused.value.failure.at == "/tools/0"


def test_blocked_domains_reach_vertex_alone() -> None:
    search = SEARCH | {"blocked_domains": ["a.example"]}
    assert from_messages([search], NEW, frozenset({"vertex"}))["tools"] == [
        {"googleSearch": {"excludeDomains": ["a.example"]}}
    ]
    assert from_messages([search], NEW)["tools"] == [{"googleSearch": {}}]


def test_an_mcp_server_is_reached_by_google() -> None:
    tool: JsonObject = {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://mcp.example/",
        "authorization": "tok",
    }
    request: JsonObject = {"model": "m", "input": "hi", "tools": [tool | {"require_approval": "never"}]}
    transport = {"url": "https://mcp.example/", "headers": {"Authorization": "Bearer tok"}}
    body, _ = build_from("responses", request)
    assert body["tools"] == [{"mcpServers": [{"name": "docs", "streamableHttpTransport": transport}]}]
    with pytest.raises(BadRequest) as refused:
        build_from("responses", request | {"tools": [tool]})
    assert refused.value.failure.at == "/tools/0/require_approval"


def test_a_gemini_client_keeps_its_own_tools_whole() -> None:
    tools = [{"googleSearch": {"timeRangeFilter": {"startTime": "x"}}}, {"fileSearch": {"fileSearchStoreNames": ["a"]}}]
    request: JsonObject = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "tools": tools}
    body, lost = build_from("gemini", request | {"labels": {"Team": "Blue"}, "serviceTier": "flex"})
    assert (body["tools"], body["labels"], body["serviceTier"]) == (tools, {"Team": "Blue"}, "flex")
    assert lost == {}
