"""A request for Kiro: turns, instructions, tools, images and documents."""

import base64
import time

import msgspec
import pytest

from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Document,
    Image,
    Inline,
    Link,
    Request,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.protocols.kiro import needs_inline
from dragoman.translate.protocols.kiro.build import build
from dragoman.translate.protocols.kiro.wire import MAX_IMAGE_BYTES, MAX_IMAGES, KiroOptions
from tables import each_row
from translate.protocols.kiro.kiro_requests import (
    MODEL,
    Built,
    answer,
    ask,
    assistant,
    chat,
    expect_refusal,
    make_calls,
    messages,
    parse_body,
    send,
    tool,
    user,
)
from wire_json import JsonObject

SIGNED = Opaque("kiro", OpaqueForm.SIGNATURE, "sig==", MODEL)


def think(signature: str, text: str = "hm") -> JsonObject:
    return {"type": "thinking", "thinking": text, "signature": signature}


def ask_after(*thoughts: JsonObject) -> Built:
    """Build a conversation in which the assistant thought and said A."""
    turn = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "A"}]}
    return ask("messages", messages(user("1"), turn, user("2")))


REDACTED = {"type": "redacted_thinking", "data": encode_envelope(Opaque("kiro", OpaqueForm.REDACTED, "cmVk", MODEL))}


@each_row(
    ("thought", "sent"),
    [
        (think(encode_envelope(SIGNED)), {"reasoningText": {"text": "hm", "signature": "sig=="}}),
        (
            think(encode_envelope(SIGNED, text="exactly this"), "about"),  # the signed text wins
            {"reasoningText": {"text": "exactly this", "signature": "sig=="}},
        ),
        (REDACTED, {"redactedContent": "cmVk"}),
    ],
)
def test_reasoning_of_its_own_is_returned_exactly(thought: JsonObject, sent: JsonObject) -> None:
    built = ask_after(thought)
    assert built.history[1]["reasoningContent"] == sent
    assert b"dgm1." not in built.body


@each_row(
    "signature",
    [
        "native",
        encode_envelope(Opaque("anthropic", OpaqueForm.SIGNATURE, "x")),
        encode_envelope(Opaque("kiro", OpaqueForm.SIGNATURE, "x", "another")),
    ],
)
def test_reasoning_of_others_is_dropped(signature: str) -> None:
    built = ask_after(think(signature))
    assert "reasoningContent" not in built.history[1]
    assert "/messages/1/content/0" in built.dropped


def test_a_message_holds_one_reasoning_block() -> None:
    built = ask_after(*(think(encode_envelope(SIGNED), text) for text in ("one", "two")))
    assert built.history[1]["reasoningContent"]["reasoningText"]["text"] == "one"
    assert "/messages/1/content/1" in built.dropped


def test_one_question_is_the_whole_body() -> None:
    assert ask("chat", chat(user("hi"))).body == (
        b'{"conversationState":{"chatTriggerType":"MANUAL","agentTaskType":"vibe","currentMessage":{"userInputMessage":'
        b'{"content":"hi","modelId":"claude-sonnet-4.5","origin":"AI_EDITOR"}},"conversationId":"c-1"}}'
    )


def test_what_the_provider_sets_stands_in_the_body() -> None:
    options = KiroOptions("arn:x", "c-2", "claude-opus-4.5", "KIRO_CLI", "vibe")
    built = ask("chat", chat(user("hi")), options)
    assert built.payload["profileArn"] == "arn:x"
    assert built.payload["agentMode"] == "vibe"
    assert built.state["conversationId"] == "c-2"
    assert (built.current["modelId"], built.current["origin"]) == ("claude-opus-4.5", "KIRO_CLI")


def instruct(text: str, role: str = "system") -> JsonObject:
    return {"role": role, "content": text}


@each_row(
    ("turns", "contents", "approximated"),
    [
        ((instruct("S"), user("U")), ["S\n\nU"], set()),
        ((instruct("S"), user("U"), assistant("A"), user("V")), ["S\n\nU", "A", "V"], set()),
        ((instruct("one"), instruct("two", "developer"), user("U")), ["one\n\ntwo\n\nU"], set()),
        (  # later ones stay in place
            (user("U"), assistant("A"), instruct("now"), user("V")),
            ["U", "A", "<system>\nnow\n</system>\n\nV"],
            {"/messages/2"},
        ),
        ((user("1"), assistant("a"), assistant("b"), user("2")), ["1", "a\n\nb", "2"], set()),
    ],
)
def test_instructions_open_the_first_message_and_turns_alternate(
    turns: tuple[JsonObject, ...], contents: list[str], approximated: set[str]
) -> None:
    built = ask("chat", chat(*turns))
    assert [entry["content"] for entry in (*built.history, built.current)] == contents
    assert built.approximated == approximated
    assert len(built.ledger) == len(approximated)


def test_instructions_of_messages_open_the_only_message() -> None:
    built = ask("messages", messages(user("U"), system="S"))
    assert built.current["content"] == "S\n\nU"
    assert b"system" not in built.body


def test_turns_of_one_side_become_one_and_results_stand_with_the_text() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "d"}]}
    results = [{"role": "tool", "tool_call_id": id, "content": id.upper()} for id in "cd"]
    built = ask("chat", chat(user("1"), user("2"), calls, *results, user("3")))
    assert built.history[0]["content"] == "1\n\n2"
    assert [use["toolUseId"] for use in built.history[1]["toolUses"]] == ["c", "d"]
    assert built.current["content"] == "3"
    assert built.context["toolResults"] == [
        {"toolUseId": "c", "status": "success", "content": [{"text": "C"}]},
        {"toolUseId": "d", "status": "success", "content": [{"text": "D"}]},
    ]


def test_a_conversation_that_the_assistant_opens_gets_a_first_turn() -> None:
    built = ask("chat", chat(assistant("a"), user("2")))
    assert len(built.history) == 2
    assert "/messages/0" in built.invented


def test_a_prefill_becomes_part_of_the_history_and_a_sentence_asks_for_the_rest() -> None:
    built = ask("messages", messages(user("1"), assistant("The answer is")))
    assert built.history[1]["content"] == "The answer is"
    assert len(built.current["content"].split()) > 3
    assert built.approximated == {"/messages/1"}


def test_a_turn_that_has_no_content_is_left_out() -> None:
    built = ask("chat", chat(user("1"), assistant(""), user("2")))
    assert "history" not in built.state
    assert built.current["content"] == "1\n\n2"
    assert "/messages/1" in built.dropped


def test_an_empty_question_still_has_text() -> None:
    built = ask("chat", chat(user("")))
    assert built.current["content"].strip() not in ("", ".", "Continue")
    assert built.invented


def test_white_space_is_left_out_of_texts() -> None:
    built = ask("messages", messages(user({"type": "text", "text": " \n"}, {"type": "text", "text": "hi"})))
    assert built.current["content"] == "hi"
    assert "/messages/0/content/0" in built.dropped


def test_a_turn_of_calls_or_results_only_still_has_text() -> None:
    built = ask("messages", messages(user("1"), make_calls("c"), user(answer("c")), tools=[tool()]))
    assert built.history[1]["content"]
    assert built.current["content"]
    assert {"/messages/1", "/messages/2"} <= built.invented


def test_text_after_a_call_is_sent_before_it() -> None:
    turn = {**make_calls("c"), "content": [*make_calls("c")["content"], {"type": "text", "text": "late"}]}
    built = ask("messages", messages(user("1"), turn, user(answer("c")), tools=[tool()]))
    assert built.history[1]["content"] == "late"
    assert "/messages/1/content/1" in built.approximated


def test_a_failed_tool_stays_failed_and_an_empty_result_has_text() -> None:
    result = answer("c", "", is_error=True)
    built = ask("messages", messages(user("1"), make_calls("c"), user(result), tools=[tool()]))
    assert built.context["toolResults"][0]["status"] == "error"
    assert built.context["toolResults"][0]["content"][0]["text"]
    assert "/messages/2/content/0" in built.invented


def send_call(arguments: str, question: str = "1", returned: str = "r") -> Built:
    first, call = Turn(Role.USER, (Text(question),)), Turn(Role.ASSISTANT, (ToolCall("c", "f", arguments, "/call"),))
    return send(Request("chat", "m", (first, call, Turn(Role.USER, (ToolResult("c", (Text(returned),)),)))))


def test_arguments_that_are_no_object_are_sent_inside_one() -> None:
    built = send_call("[1")
    assert built.history[1]["toolUses"][0]["input"] == {"arguments": "[1"}
    assert "/call" in built.approximated


def test_empty_keys_leave_the_input_of_a_call() -> None:
    built = send_call('{"": 1, "a": [{"": 2, "b": ""}]}')
    assert built.history[1]["toolUses"][0]["input"] == {"a": [{"b": ""}]}
    assert "/call" in built.dropped


def test_half_a_surrogate_pair_leaves_every_string() -> None:
    built = send_call('{"k":"x\\ud83dy"}', "a\ud800b", "\udc00ok 😀")
    assert built.history[0]["content"] == "ab"
    assert built.context["toolResults"][0]["content"] == [{"text": "ok 😀"}]


def test_a_body_above_the_limit_is_refused_as_too_long() -> None:
    options = KiroOptions(conversation_id="c", max_payload_bytes=500)
    assert ask("chat", chat(user("x" * 100)), options)
    failure = expect_refusal(lambda: ask("chat", chat(user("é" * 200)), options))
    assert failure.kind is Kind.CONTEXT_TOO_LONG
    assert "500" in failure.message


def test_options_of_another_make_are_taken_for_none() -> None:
    body = build(Request("chat", "m", (Turn(Role.USER, (Text("hi"),)),)), Target(MODEL, "kiro", options="?"), Ledger())
    assert "conversationId" not in msgspec.json.decode(body)["conversationState"]


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


def function(name: str) -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": "d"}}


@each_row("name", ["a" * 64, "snake_case", "with-dash"])
def test_a_name_that_fits_stays(name: str) -> None:
    built = ask("chat", chat(user("1"), tools=[function(name)]))
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
    body = chat(*turns, tools=[function(name)])
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


def image(media_type: str, data: str = "AA==") -> JsonObject:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def document(media_type: str, data: bytes) -> JsonObject:
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, "title": "a.txt"}


PNG = image("image/png", "aW1n")
FORCED_SEARCH = {"input": "1", "tools": [HOSTED, {"type": "function", "name": "f"}], "tool_choice": HOSTED}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
LARGE = image("image/png", "A" * (MAX_IMAGE_BYTES * 4 // 3 + 8))
IN_FIRST = "/messages/0/content/0"


def test_blanks_in_an_images_data_are_left_out_and_cost_little() -> None:
    def seconds(data: str) -> float:
        body = messages(user(image("image/png", data)))
        before = time.process_time()
        sent = ask("messages", body)
        spent = time.process_time() - before
        assert sent.body.count(b"A" * 2_000_000) == 1
        return spent

    assert min(seconds("A \n" * 2_000_000) for _ in range(3)) < 30 * min(seconds("A" * 2_000_000) for _ in range(3))


@each_row(
    ("protocol", "body", "at"),
    [
        ("chat", chat(user("1"), tool_choice="required"), "/tool_choice"),
        ("messages", build_with(tools=[tool()], tool_choice={"type": "tool", "name": "gone"}), "/tool_choice"),
        ("messages", build_with(tools=[SEARCH]), "/tools/0"),
        ("responses", {"model": "m", **FORCED_SEARCH}, "/tools/0"),
        ("messages", messages(user(image("image/bmp"))), IN_FIRST),
        ("messages", messages(user(image("image/svg+xml"))), IN_FIRST),
        ("messages", messages(user(image(""))), IN_FIRST),
        ("messages", messages(user(LARGE)), IN_FIRST),
        ("messages", messages(user(*[PNG] * (MAX_IMAGES + 1))), "/messages/0"),
        ("messages", messages(user(document("application/pdf", b"%PDF"))), IN_FIRST),
        ("messages", messages(user(document("text/plain", b"\xff\xfe"))), IN_FIRST),  # which is no text
        ("chat", chat(user({"type": "text", "text": "x"}, FILE)), "/messages/0/content/1"),
        ("chat", chat(user(SOUND, {"type": "text", "text": "x"})), IN_FIRST),
    ],
)
def test_what_kiro_cannot_be_given_is_refused_by_name(protocol: str, body: JsonObject, at: str) -> None:
    assert parse_body(protocol, body, Ledger())
    assert expect_refusal(lambda: ask(protocol, body)).at == at


def test_a_pdf_is_refused_with_its_type() -> None:
    body = messages(user(document("application/pdf", b"%PDF")))
    assert "application/pdf" in expect_refusal(lambda: ask("messages", body)).message


def test_as_many_images_as_kiro_takes_are_sent() -> None:
    assert ask("messages", messages(user(*[PNG] * MAX_IMAGES)))


def test_one_call_at_a_time_is_requested_in_the_prompt() -> None:
    built = ask("chat", chat(user("1"), tools=[function("f")], parallel_tool_calls=False))
    assert "at most one tool" in built.current["content"]
    assert "/parallel_tool_calls" in built.approximated


def test_only_allowed_tools_are_offered() -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    built = ask("chat", chat(user("1"), tools=[function("f"), function("g")], tool_choice=choice))
    assert list(built.specs) == ["g"]
    assert "/tool_choice" in built.approximated
    assert "/tools/0" in built.dropped


def test_a_vendors_tool_beside_others_is_dropped() -> None:
    built = ask("messages", build_with(tools=[SEARCH, tool()]))
    assert list(built.specs) == ["look"]
    assert b"web_search" not in built.body
    assert "/tools/0" in built.dropped


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
    assert "/tools/0/strict" in built.dropped
    assert "/tools/0/defer_loading" in built.approximated
    assert b"cachePoint" not in built.body


def image_url(url: str, **fields: object) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def test_a_jpg_is_a_jpeg_without_the_prefix_of_its_url() -> None:
    built = ask("chat", chat(user({"type": "text", "text": "look"}, image_url("data:image/jpg;base64,AA=="))))
    assert built.current["images"] == [{"format": "jpeg", "source": {"bytes": "AA=="}}]
    assert b"data:" not in built.body


def test_a_prefix_inside_the_data_is_stripped_and_white_space_with_it() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "data:image/webp;base64,AA\nAA"}
    built = ask("messages", messages(user({"type": "image", "source": source})))
    assert built.current["images"] == [{"format": "webp", "source": {"bytes": "AAAA"}}]


def test_a_picture_without_text_gets_some() -> None:
    built = ask("messages", messages(user(PNG)))
    assert built.current["content"]
    assert "/messages/0" in built.invented


def test_a_linked_image_is_refused_by_name_and_with_advice_to_enable_fetching() -> None:
    body = chat(user({"type": "text", "text": "look"}, image_url("https://pictures.example/a.png")))
    failure = expect_refusal(lambda: ask("chat", body))
    assert failure.at == "/messages/0/content/1"
    assert needs_inline(Image(Link("https://pictures.example/a.png")))
    assert needs_inline(Document(Link("https://pictures.example/a.txt")))
    assert not needs_inline(Image(Inline("image/png", "AA==")))
    assert not needs_inline(Text("https://pictures.example/a.png"))


def test_an_image_in_a_result_is_attached_to_its_message() -> None:
    content = [{"type": "text", "text": "see"}, PNG]
    built = ask("messages", messages(user("1"), make_calls("c"), user(answer("c", content)), tools=[tool()]))
    assert built.current["images"] == [{"format": "png", "source": {"bytes": "aW1n"}}]
    [result] = built.context["toolResults"]
    assert result["content"][0] == {"text": "see"}
    assert "aW1n" not in str(result)
    assert "/messages/2/content/0/content/1" in built.approximated


def test_images_of_the_history_stay_there() -> None:
    built = ask(
        "messages", messages(user(PNG, {"type": "text", "text": "1"}), {"role": "assistant", "content": "A"}, user("2"))
    )
    assert len(built.history[0]["images"]) == 1
    assert "images" not in built.current


def test_an_image_between_two_texts_loses_its_place() -> None:
    text = {"type": "text", "text": "x"}
    assert "/messages/0/content/1" in ask("messages", messages(user(text, PNG, text))).approximated
    assert not ask("messages", messages(user(PNG, text))).approximated


def test_the_level_of_detail_is_recorded_as_lost() -> None:
    url = "data:image/png;base64,AA=="
    built = ask("chat", chat(user({"type": "text", "text": "x"}, image_url(url, detail="high"))))
    assert any(path.startswith("/messages/0/content/1") and path.endswith("detail") for path in built.dropped)


def test_a_text_document_is_sent_as_text() -> None:
    built = ask(
        "messages", messages(user(document("text/markdown", "# é".encode()), {"type": "text", "text": "sum up"}))
    )
    assert built.current["content"] == '<document title="a.txt">\n# é\n</document>\n\nsum up'
    assert "/messages/0/content/0" in built.approximated
