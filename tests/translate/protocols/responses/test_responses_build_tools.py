"""Hub tools in, the tools of a Responses body out."""

import pytest

from dragoman.translate.hub.loss import LossKind
from dragoman.translate.hub.request import Custom, Function, Grammar, Hosted, Pick, ToolChoice
from translate.protocols.responses.responses_bodies import build_body, expect_refusal_at, find_losses, request_of


def test_tools_are_flat_and_strictness_is_explicit() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    request = request_of(
        protocol="chat",
        tools=(
            Function("f", "/tools/0", description="F.", parameters=schema),
            Function("g", "/tools/1", strict=True),
            Custom("p", "/tools/2", grammar=Grammar("lark", "start: x")),
            Custom("q", "/tools/3"),
        ),
    )
    assert build_body(request)["tools"] == [
        {"type": "function", "name": "f", "description": "F.", "parameters": schema, "strict": False},
        {"type": "function", "name": "g", "parameters": {"type": "object", "properties": {}}, "strict": True},
        {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "custom", "name": "q"},
    ]
    assert find_losses(request) == []


def test_defer_loading_is_kept_only_where_tools_can_be_searched() -> None:
    late = Function("f", "/tools/0", deferred=True)
    alone = request_of(tools=(late, Function("g", "/tools/1")))
    assert "defer_loading" not in build_body(alone)["tools"][0]
    assert find_losses(alone) == [("/tools/0/defer_loading", LossKind.APPROXIMATED)]
    searched = request_of(tools=(late, Hosted("tool_search", {}, "/tools/1")))
    assert build_body(searched)["tools"][0]["defer_loading"] is True


def test_another_vendors_web_search_becomes_ours_with_its_domains_and_place() -> None:
    search = Hosted(
        "web_search",
        {},
        "/tools/0",
        allowed_domains=("a.example",),
        blocked_domains=("b.example",),
        max_uses=3,
        location={"type": "approximate", "country": "DE"},
    )
    request = request_of(tools=(search,))
    assert build_body(request)["tools"] == [
        {
            "type": "web_search",
            "filters": {"allowed_domains": ["a.example"]},
            "user_location": {"type": "approximate", "country": "DE"},
        }
    ]
    assert find_losses(request) == [
        ("/tools/0/blocked_domains", LossKind.DROPPED),
        ("/tools/0/max_uses", LossKind.DROPPED),
        ("/tools/0", LossKind.APPROXIMATED),
    ]


def test_code_execution_and_mcp_become_their_likes() -> None:
    request = request_of(
        tools=(
            Hosted("code_execution", {}, "/tools/0"),
            Hosted("mcp", {}, "/mcp_servers/0", server_url="https://m.example", server_name="m", authorization="t"),
        )
    )
    assert build_body(request)["tools"] == [
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {
            "type": "mcp",
            "server_label": "m",
            "server_url": "https://m.example",
            "authorization": "t",
            "require_approval": "never",
        },
    ]


def test_a_hosted_tool_without_a_like_is_dropped_beside_others_and_refused_alone_or_forced() -> None:
    memory = Hosted("memory", {"type": "memory"}, "/tools/0")
    beside = (memory, Function("f", "/tools/1"))
    assert find_losses(request_of(tools=beside)) == [("/tools/0", LossKind.DROPPED)]
    assert expect_refusal_at(request_of(tools=(memory,))) == "/tools/0"
    forced = ToolChoice(Pick.NAMED, "/tool_choice", hosted="memory")
    assert expect_refusal_at(request_of(tools=beside, tool_choice=forced)) == "/tools/0"


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        (ToolChoice(Pick.AUTO, "/c"), "auto"),
        (ToolChoice(Pick.NONE, "/c"), "none"),
        (ToolChoice(Pick.REQUIRED, "/c"), "required"),
        (ToolChoice(Pick.NAMED, "/c", "f"), {"type": "function", "name": "f"}),
        (ToolChoice(Pick.NAMED, "/c", "p", custom=True), {"type": "custom", "name": "p"}),
        (ToolChoice(Pick.NAMED, "/c", hosted="code_execution"), {"type": "code_interpreter"}),
        (
            ToolChoice(Pick.NAMED, "/c", hosted="web_search"),
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        ),
        (
            ToolChoice(Pick.REQUIRED, "/c", allowed=("f", "p")),
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "p"}],
            },
        ),
    ],
)
def test_tool_choice_is_written_in_every_form(choice: ToolChoice, wire: object) -> None:
    tools = (Function("f", "/tools/0"), Custom("p", "/tools/1"), Hosted("web_search", {}, "/tools/2"))
    assert build_body(request_of(tools=tools, tool_choice=choice))["tool_choice"] == wire


def test_a_demanded_call_without_tools_is_refused() -> None:
    assert expect_refusal_at(request_of(tool_choice=ToolChoice(Pick.REQUIRED, "/tool_choice"))) == "/tool_choice"


def test_no_parallel_calls_is_carried() -> None:
    assert build_body(request_of(parallel=False))["parallel_tool_calls"] is False
