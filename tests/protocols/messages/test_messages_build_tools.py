"""Tools of other protocols' clients and the choice among them, written for one Claude model."""

import pytest

from dragoman.hub.loss import LossKind
from dragoman.hub.request import Cache, Function, Hosted, Pick, Reasoning, ToolChoice
from dragoman.providers.models import find_profile
from protocols.messages.messages_dialogue import build_body, chat, parse, refusal_at
from wire_json import JsonObject

OLD = find_profile("claude-sonnet-4-5")
OPUS_4_6 = find_profile("claude-opus-4-6")
OPUS_5 = find_profile("claude-opus-5")
OPUS_5_5 = find_profile("claude-opus-5-5")
SONNET_5_5 = find_profile("claude-sonnet-5-5")


F = Function("f", "/tools/0", "Does f.", {"type": "object", "properties": {"a": {"type": "string"}}})
G = Function("g", "/tools/1", None, None)
SEARCH = Hosted("web_search", {"type": "web_search"}, "/tools/2")


def test_functions_are_custom_tools_with_an_object_at_the_root() -> None:
    body, losses = build_body(chat(tools=(F, G, Function("h", "/tools/2", parameters={"properties": {}}, strict=True))))
    assert body["tools"] == [
        {"name": "f", "description": "Does f.", "input_schema": F.parameters},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
        {"name": "h", "input_schema": {"type": "object", "properties": {}}, "strict": True},
    ]
    assert "tool_choice" not in body
    assert losses == {}


def test_alternatives_at_the_root_of_a_tools_schema_are_described_in_words() -> None:
    tool = Function("f", "/tools/0", parameters={"anyOf": [{"type": "object"}]}, fields_at="/tools/0/function")
    body, losses = build_body(chat(tools=(tool,)))
    assert body["tools"][0]["input_schema"] == {"type": "object", "description": '(anyOf: [{"type":"object"}])'}
    assert losses == {"/tools/0/function/parameters": LossKind.APPROXIMATED}


def test_a_breakpoint_on_a_tool_is_kept() -> None:
    tool = Function("f", "/tools/0", parameters={"type": "object"}, cache=Cache("/tools/0/cache", "5m"))
    assert build_body(chat(tools=(tool,)))[0]["tools"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}


def make_named_choice(name: str) -> ToolChoice:
    return ToolChoice(Pick.NAMED, "/tool_choice", name)


REQUIRED = ToolChoice(Pick.REQUIRED, "/tool_choice")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(Pick.AUTO, "/tool_choice"), {"type": "auto"}),
        (ToolChoice(Pick.NONE, "/tool_choice"), {"type": "none"}),
        (REQUIRED, {"type": "any"}),
        (make_named_choice("g"), {"type": "tool", "name": "g"}),
    ],
)
def test_every_choice_has_its_value(choice: ToolChoice, sent: JsonObject) -> None:
    body, losses = build_body(chat(tools=(F, G), tool_choice=choice))
    assert (body["tool_choice"], losses) == (sent, {})


def test_one_call_at_a_time_needs_a_choice() -> None:
    assert build_body(chat(tools=(F,), parallel=False))[0]["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }
    assert build_body(chat(tools=(F,), parallel=False, tool_choice=REQUIRED))[0]["tool_choice"] == {
        "type": "any",
        "disable_parallel_tool_use": True,
    }
    assert "tool_choice" not in build_body(chat(parallel=False))[0]


def test_a_model_that_cannot_be_forced_is_offered_only_the_named_tool() -> None:
    body, losses = build_body(chat(tools=(F, G), tool_choice=make_named_choice("g")), OPUS_5_5)
    assert [tool["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == {"type": "auto"}
    assert losses == {"/tools/0": LossKind.DROPPED, "/tool_choice": LossKind.APPROXIMATED}


def test_a_thinking_model_of_the_older_kind_cannot_be_forced() -> None:
    request = chat(tools=(F,), tool_choice=REQUIRED, reasoning=Reasoning("/reasoning_effort", "low"))
    assert build_body(request, OLD)[0]["tool_choice"] == {"type": "auto"}
    assert build_body(request, OPUS_4_6)[0]["tool_choice"] == {"type": "any"}


def test_only_allowed_tools_are_offered() -> None:
    choice = ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("g",))
    body, losses = build_body(chat(tools=(F, G), tool_choice=choice))
    assert [tool["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == {"type": "any"}
    assert losses == {"/tools/0": LossKind.DROPPED, "/tool_choice": LossKind.APPROXIMATED}


def test_a_forced_call_of_nothing_is_refused() -> None:
    assert refusal_at(chat(tool_choice=REQUIRED)) == "/tool_choice"
    assert refusal_at(chat(tools=(F,), tool_choice=make_named_choice("ghost"))) == "/tool_choice"


def test_a_server_is_allowed_by_its_label() -> None:
    raw = {"require_approval": "never"}
    server = Hosted("mcp", raw, "/tools/1", server_url="https://mcp.example.com", server_name="s")
    body, _ = build_body(chat(tools=(F, server), tool_choice=ToolChoice(Pick.AUTO, "/tool_choice", allowed=("s",))))
    assert body["tools"] == [{"type": "mcp_toolset", "mcp_server_name": "s"}]


def test_a_search_is_anthropics_own() -> None:
    location = {"type": "approximate", "country": "CH"}
    search = Hosted("web_search", {}, "/tools/0", ("example.com",), max_uses=2, location=location)
    body, losses = build_body(chat(tools=(search,), tool_choice=ToolChoice(Pick.NAMED, "/tc", hosted="web_search")))
    assert body["tools"] == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "allowed_domains": ["example.com"],
            "max_uses": 2,
            "user_location": location,
        }
    ]
    assert body["tool_choice"] == {"type": "tool", "name": "web_search"}
    assert losses == {"/tools/0": LossKind.APPROXIMATED}


def test_a_limit_of_tool_calls_is_a_limit_of_searches() -> None:
    body, losses = build_body(chat(tools=(SEARCH,), max_tool_calls=4))
    assert body["tools"][0]["max_uses"] == 4
    assert losses["/max_tool_calls"] is LossKind.APPROXIMATED
    assert build_body(chat(tools=(F,), max_tool_calls=4))[1] == {"/max_tool_calls": LossKind.DROPPED}


def test_a_hosted_tool_without_an_equal_is_dropped_beside_others_and_refused_alone_or_forced() -> None:
    image = Hosted("image_generation", {}, "/tools/1")
    body, losses = build_body(chat(tools=(F, image)))
    assert [tool["name"] for tool in body["tools"]] == ["f"]
    assert losses == {"/tools/1": LossKind.DROPPED}
    assert refusal_at(chat(tools=(image,))) == "/tools/1"
    forced = ToolChoice(Pick.NAMED, "/tool_choice", hosted="image_generation")
    assert refusal_at(chat(tools=(F, image), tool_choice=forced)) == "/tools/1"


def test_code_is_run_by_anthropic_unless_a_container_is_named() -> None:
    code = Hosted("code_execution", {"container": {"type": "auto"}}, "/tools/0")
    assert build_body(chat(tools=(code,)))[0]["tools"] == [
        {"type": "code_execution_20250825", "name": "code_execution"}
    ]
    kept = Hosted("code_execution", {"container": "cntr_1"}, "/tools/0")
    assert refusal_at(chat(tools=(kept,))) == "/tools/0/container"


def test_an_mcp_server_is_listed_with_its_tools() -> None:
    server = Hosted(
        "mcp",
        {"require_approval": "never"},
        "/tools/0",
        server_url="https://mcp.example.com",
        server_name="s",
        authorization="fake",
        allowed_tools=("a",),
        ext={"headers": {"x": "y"}},
    )
    body, losses = build_body(chat(tools=(server,)))
    assert body["mcp_servers"] == [
        {"type": "url", "url": "https://mcp.example.com", "name": "s", "authorization_token": "fake"}
    ]
    assert body["tools"] == [
        {
            "type": "mcp_toolset",
            "mcp_server_name": "s",
            "default_config": {"enabled": False},
            "configs": {"a": {"enabled": True}},
        }
    ]
    assert losses == {"/tools/0": LossKind.APPROXIMATED, "/tools/0/headers": LossKind.DROPPED}


@pytest.mark.parametrize("raw", [{}, {"require_approval": "always"}])
def test_an_mcp_server_that_asks_for_approval_is_refused(raw: JsonObject) -> None:
    server = Hosted("mcp", raw, "/tools/0", server_url="https://mcp.example.com", server_name="s")
    assert refusal_at(chat(tools=(server,), protocol="responses")) == "/tools/0/require_approval"


def test_an_mcp_server_of_a_protocol_without_approvals_is_called() -> None:
    server = Hosted("mcp", {}, "/tools/0/mcpServers/0", server_url="https://mcp.example.com", server_name="s")
    body, _ = build_body(chat(tools=(server,), protocol="gemini"))
    assert body["mcp_servers"] == [{"type": "url", "url": "https://mcp.example.com", "name": "s"}]


def test_deferred_tools_wait_for_a_search_where_there_is_one() -> None:
    deferred = Function("f", "/tools/0", parameters={"type": "object"}, deferred=True)
    body, losses = build_body(chat(tools=(deferred,)))
    assert "defer_loading" not in body["tools"][0]
    assert losses == {"/tools/0/defer_loading": LossKind.APPROXIMATED}
    found, _ = build_body(chat(tools=(deferred, Hosted("tool_search", {}, "/tools/1"))))
    assert found["tools"][0]["defer_loading"] is True
    assert found["tools"][1] == {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}


def test_a_search_for_tools_that_the_client_runs_is_dropped() -> None:
    deferred = Function("f", "/tools/0", parameters={"type": "object"}, deferred=True)
    search = Hosted("tool_search", {"execution": "client"}, "/tools/1")
    body, losses = build_body(chat(tools=(deferred, search)))
    assert body["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]
    assert losses == {"/tools/1": LossKind.DROPPED, "/tools/0/defer_loading": LossKind.APPROXIMATED}


def test_a_search_for_tools_is_dropped_where_none_is_deferred() -> None:
    body, losses = build_body(chat(tools=(F, Hosted("tool_search", {}, "/tools/1"))))
    assert [tool["name"] for tool in body["tools"]] == ["f"]
    assert losses == {"/tools/1": LossKind.DROPPED}


def test_a_client_of_messages_may_name_a_tool_of_a_server() -> None:
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}],
        "mcp_servers": [{"type": "url", "name": "s", "url": "https://mcp.example.com"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}],
        "tool_choice": {"type": "tool", "name": "remote"},
    }
    assert build_body(parse(body))[0] == {**body, "model": "claude-up"}
