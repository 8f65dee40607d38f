"""Tools for Kiro: specifications, sentences for the prompt, and calls without their tool or result."""

import pytest

from dragoman.protocols.kiro.wire import KiroOptions
from protocols.kiro.kiro_requests import answer, ask, assistant, chat, expect_refusal, make_calls, messages, tool, user
from wire_json import JsonObject

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
HOSTED = {"type": "web_search"}


def build_with(**fields: object) -> JsonObject:
    return messages(user("1"), **fields)


def after_a_call(**fields: object) -> JsonObject:
    return messages(user("1"), make_calls("c"), user(answer("c")), assistant("A"), user("2"), **fields)


def test_a_tool_is_offered_with_the_current_message_only() -> None:
    built = ask("messages", after_a_call(tools=[tool()]))
    schema = {"json": {"type": "object", "properties": {}}}
    assert built.context["tools"] == [
        {"toolSpecification": {"name": "look", "description": "Looks.", "inputSchema": schema}}
    ]


def test_history_that_names_a_tool_no_longer_offered_gets_a_stub_of_that_name() -> None:
    built = ask("messages", after_a_call(tools=[tool("other")]))
    assert list(built.specs) == ["other", "look"]
    assert "not available" in built.specs["look"]["description"]
    assert "/tools" in built.invented


def test_history_with_calls_and_no_tools_at_all_gets_stubs() -> None:
    built = ask("messages", after_a_call())
    assert list(built.specs) == ["look"]
    assert built.history[1]["toolUses"][0]["name"] == "look"


def test_no_call_allowed_leaves_no_tools_and_no_structured_traffic() -> None:
    built = ask("messages", after_a_call(tools=[tool(), tool("other")], tool_choice={"type": "none"}))
    assert not built.specs
    for field in (b"toolUses", b"toolResults", b"userInputMessageContext"):
        assert field not in built.body
    assert "look" in built.history[1]["content"]
    assert '{"a":1}' in built.history[1]["content"]
    assert "seen" in built.history[2]["content"]
    assert {"/messages/1/content/0", "/messages/2/content/0"} <= built.approximated
    assert {"/tools/0", "/tools/1"} <= built.dropped


def test_a_result_without_its_call_survives_as_text() -> None:
    built = ask("messages", messages(user("1"), assistant("A"), user(answer("gone", "the answer"))))
    assert b"toolResults" not in built.body
    assert "the answer" in built.current["content"]
    assert "/messages/2/content/0" in built.approximated


def test_of_two_results_of_a_call_the_last_counts() -> None:
    turn = user(answer("c", "old"), answer("c", "new"))
    built = ask("messages", messages(user("1"), make_calls("c"), turn, tools=[tool()]))
    assert [result["content"] for result in built.context["toolResults"]] == [[{"text": "new"}]]
    assert "/messages/2/content/0" in built.dropped


def test_a_call_that_was_never_answered_is_answered() -> None:
    built = ask(
        "messages", messages(user("1"), make_calls("c", "d"), user(answer("d"), {"type": "text", "text": "go"}))
    )
    first, second = built.context["toolResults"]
    assert (first["toolUseId"], first["status"]) == ("c", "error")
    assert (second["toolUseId"], second["status"]) == ("d", "success")
    assert "/messages/1/content/0" in built.invented


def test_a_conversation_that_ends_with_a_call_is_answered_too() -> None:
    built = ask("messages", messages(user("1"), make_calls("c")))
    assert [result["toolUseId"] for result in built.context["toolResults"]] == ["c"]


def test_a_late_result_moves_to_its_call() -> None:
    turns = (user("1"), make_calls("c"), user("wait"), assistant("A"), user(answer("c")), assistant("B"), user("2"))
    built = ask("messages", messages(*turns, tools=[tool()]))
    assert built.history[2]["userInputMessageContext"]["toolResults"][0]["toolUseId"] == "c"
    assert built.history[3]["content"] == "A\n\nB"
    assert "/messages/4/content/0" in built.approximated


def test_calls_with_one_id_get_ids_of_their_own() -> None:
    turns = (user("1"), make_calls("c"), user(answer("c", "x")), make_calls("c"), user(answer("c", "y")))
    built = ask("messages", messages(*turns, tools=[tool()]))
    assert built.history[1]["toolUses"][0]["toolUseId"] == "c"
    assert built.history[3]["toolUses"][0]["toolUseId"] == "c-2"
    assert built.context["toolResults"][0]["content"] == [{"text": "y"}]


@pytest.mark.parametrize("name", ["a" * 64, "snake_case", "with-dash"])
def test_a_name_that_fits_stays(name: str) -> None:
    built = ask("chat", chat(user("1"), tools=[{"type": "function", "function": {"name": name, "description": "d"}}]))
    assert list(built.specs) == [name]
    assert not built.tools


@pytest.mark.parametrize("name", ["a" * 65, "a.b/c", "1st", "_hidden", "-x", "ü" * 70])
def test_a_name_that_does_not_fit_gets_a_stable_alias_everywhere(name: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
    turns = (
        user("1"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    )
    body = chat(*turns, tools=[{"type": "function", "function": {"name": name, "description": "d"}}])
    built = ask("chat", body)
    [alias] = built.specs
    assert alias != name
    assert built.history[1]["toolUses"][0]["name"] == alias
    assert built.tools.tools[alias].name == name
    assert list(ask("chat", body).specs) == [alias]


def test_a_choice_that_cannot_be_forced_is_requested_in_the_prompt() -> None:
    built = ask("messages", build_with(tools=[tool(), tool("other")], tool_choice={"type": "any"}))
    assert "must" in built.current["content"]
    assert "/tool_choice" in built.approximated
    built = ask("messages", build_with(tools=[tool(), tool("other")], tool_choice={"type": "tool", "name": "other"}))
    assert "the tool other" in built.current["content"]
    assert b"tool_choice" not in built.body


def test_a_choice_of_auto_is_no_loss() -> None:
    assert "/tool_choice" not in {
        loss.path for loss in ask("messages", build_with(tools=[tool()], tool_choice={"type": "auto"})).ledger
    }


def test_a_forced_call_without_that_tool_is_refused() -> None:
    assert expect_refusal(lambda: ask("chat", chat(user("1"), tool_choice="required"))).at == "/tool_choice"
    body = build_with(tools=[tool()], tool_choice={"type": "tool", "name": "gone"})
    assert expect_refusal(lambda: ask("messages", body)).at == "/tool_choice"


def test_one_call_at_a_time_is_requested_in_the_prompt() -> None:
    functions = [{"type": "function", "function": {"name": "f", "description": "d"}}]
    built = ask("chat", chat(user("1"), tools=functions, parallel_tool_calls=False))
    assert "at most one tool" in built.current["content"]
    assert "/parallel_tool_calls" in built.approximated


def test_only_allowed_tools_are_offered() -> None:
    functions = [{"type": "function", "function": {"name": name, "description": "d"}} for name in "fg"]
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    built = ask("chat", chat(user("1"), tools=functions, tool_choice=choice))
    assert list(built.specs) == ["g"]
    assert "/tool_choice" in built.approximated
    assert "/tools/0" in built.dropped


def test_a_vendors_tool_beside_others_is_dropped() -> None:
    built = ask("messages", build_with(tools=[SEARCH, tool()]))
    assert list(built.specs) == ["look"]
    assert b"web_search" not in built.body
    assert "/tools/0" in built.dropped


def test_a_vendors_tool_alone_or_forced_is_refused() -> None:
    assert expect_refusal(lambda: ask("messages", build_with(tools=[SEARCH]))).at == "/tools/0"
    body = {"model": "m", "input": "1", "tools": [HOSTED, {"type": "function", "name": "f"}], "tool_choice": HOSTED}
    assert expect_refusal(lambda: ask("responses", body)).at == "/tools/0"


@pytest.mark.parametrize(
    ("protocol", "entry", "at"),
    [
        ("messages", {"type": "hologram_20270101", "name": "hologram"}, "/tools/0"),
        ("responses", {"type": "hologram"}, "/tools/0"),
        ("chat", {"type": "hologram"}, "/tools/0"),
        ("gemini", {"hologram": {}}, "/tools/0/hologram"),
    ],
)
def test_a_tool_of_an_unknown_type_is_dropped_even_where_it_is_alone(protocol: str, entry: JsonObject, at: str) -> None:
    bodies = {
        "messages": build_with(),
        "responses": {"model": "m", "input": "1"},
        "chat": chat(user("1")),
        "gemini": {"contents": [{"parts": [{"text": "1"}]}]},
    }
    built = ask(protocol, {**bodies[protocol], "tools": [entry]})
    assert not built.specs
    assert at in built.dropped


def test_a_tool_offered_twice_is_offered_once() -> None:
    built = ask("messages", build_with(tools=[tool(), tool(description="Again.")]))
    assert built.specs["look"]["description"] == "Looks."
    assert "/tools/1" in built.dropped


@pytest.mark.parametrize("fields", [{"description": ""}, {"description": " \n"}, {"description": None}])
def test_an_empty_description_is_replaced(fields: JsonObject) -> None:
    built = ask("messages", build_with(tools=[tool(**fields)]))
    assert "look" in built.specs["look"]["description"]
    assert "/tools/0/description" in built.invented


def test_a_long_description_moves_into_the_instructions() -> None:
    long = "Looks at things. " * 600
    built = ask("messages", build_with(tools=[tool(description=long)], system="S"))
    assert built.specs["look"]["description"] == "[Full documentation in system prompt under '## Tool: look']"
    assert built.current["content"].startswith("S\n\n# Tool documentation\n\n## Tool: look\n\n" + long)
    assert "/tools/0/description" in built.approximated


def test_the_longest_description_is_configured() -> None:
    options = KiroOptions(tool_description_max=5)
    assert "## Tool: look\n\nLooks." in ask("messages", build_with(tools=[tool()]), options).current["content"]
    assert "## Tool" not in ask("messages", build_with(tools=[tool(description="Look.")]), options).current["content"]


def test_strictness_and_late_loading_are_recorded() -> None:
    built = ask(
        "messages", build_with(tools=[tool(strict=True, defer_loading=True, cache_control={"type": "ephemeral"})])
    )
    assert {"/tools/0/strict", "/tools/0/cache_control"} <= built.dropped
    assert "/tools/0/defer_loading" in built.approximated
    assert b"cachePoint" not in built.body
