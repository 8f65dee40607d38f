"""A request for Kiro: the order of turns, the place of instructions, and the text for turns without any."""

import msgspec

from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque, encode_envelope
from dragoman.hub.profile import Target
from dragoman.hub.request import Request, Role, Text, ToolCall, ToolResult, Turn
from dragoman.protocols.kiro.build import build
from dragoman.protocols.kiro.wire import KiroOptions
from protocols.kiro.kiro_requests import (
    MODEL,
    OPTIONS,
    answer,
    ask,
    assistant,
    chat,
    expect_refusal,
    make_calls,
    messages,
    send,
    tool,
    user,
)

SIGNED = Opaque("kiro", Form.SIGNATURE, "sig==", MODEL)


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


def test_instructions_open_the_only_message() -> None:
    built = ask("messages", messages(user("U"), system="S"))
    assert built.current["content"] == "S\n\nU"
    assert b"system" not in built.body


def test_instructions_open_the_first_message_of_a_history_and_no_other() -> None:
    built = ask("messages", messages(user("U"), assistant("A"), user("V"), system="S"))
    assert [entry["content"] for entry in built.history] == ["S\n\nU", "A"]
    assert built.current["content"] == "V"


def test_several_instructions_are_sent_in_order() -> None:
    turns = ({"role": "system", "content": "one"}, {"role": "developer", "content": "two"}, user("U"))
    built = ask("chat", chat(*turns))
    assert built.current["content"] == "one\n\ntwo\n\nU"
    assert len(built.ledger) == 0


def test_later_instructions_stay_in_place_as_tagged_text() -> None:
    built = ask("chat", chat(user("U"), assistant("A"), {"role": "system", "content": "now"}, user("V")))
    assert built.current["content"] == "<system>\nnow\n</system>\n\nV"
    assert built.approximated == {"/messages/2"}


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


def test_two_turns_of_the_assistant_become_one() -> None:
    built = ask("chat", chat(user("1"), assistant("a"), assistant("b"), user("2")))
    assert built.history[1]["content"] == "a\n\nb"


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
    built = ask("messages", messages(user("1"), make_calls("c"), user(answer("c")), tools=[tool()]), OPTIONS)
    assert built.history[1]["content"]
    assert built.current["content"]
    assert {"/messages/1", "/messages/2"} <= built.invented


def test_text_after_a_call_is_sent_before_it() -> None:
    turn = {**make_calls("c"), "content": [*make_calls("c")["content"], {"type": "text", "text": "late"}]}
    built = ask("messages", messages(user("1"), turn, user(answer("c")), tools=[tool()]))
    assert built.history[1]["content"] == "late"
    assert "/messages/1/content/1" in built.approximated


def test_a_failed_tool_stays_failed() -> None:
    built = ask(
        "messages", messages(user("1"), make_calls("c"), user(answer("c", "no", is_error=True)), tools=[tool()])
    )
    assert built.context["toolResults"][0]["status"] == "error"


def test_an_empty_result_has_text() -> None:
    built = ask("messages", messages(user("1"), make_calls("c"), user(answer("c", "")), tools=[tool()]))
    assert built.context["toolResults"][0]["content"][0]["text"]
    assert "/messages/2/content/0" in built.invented


def test_arguments_that_are_no_object_are_sent_inside_one() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}
    turns = (
        user("1"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    )
    built = ask("chat", chat(*turns))
    assert built.history[1]["toolUses"][0]["input"] == {"arguments": "[1"}
    assert "/messages/1/tool_calls/0" in built.approximated


def test_empty_keys_leave_the_input_of_a_call() -> None:
    arguments = '{"": 1, "a": [{"": 2, "b": ""}]}'
    turns = (
        Turn(Role.USER, (Text("1"),)),
        Turn(Role.ASSISTANT, (ToolCall("c", "f", arguments, "/call"),)),
        Turn(Role.USER, (ToolResult("c", (Text("r"),)),)),
    )
    built = send(Request("chat", "m", turns))
    assert built.history[1]["toolUses"][0]["input"] == {"a": [{"b": ""}]}
    assert "/call" in built.dropped


def test_half_a_surrogate_pair_leaves_every_string() -> None:
    turns = (
        Turn(Role.USER, (Text("a\ud800b"),)),
        Turn(Role.ASSISTANT, (ToolCall("c", "f", '{"k":"x\\ud83dy"}'),)),
        Turn(Role.USER, (ToolResult("c", (Text("\udc00ok 😀"),)),)),
    )
    built = send(Request("chat", "m", turns))
    assert built.history[0]["content"] == "ab"
    assert built.context["toolResults"][0]["content"] == [{"text": "ok 😀"}]


def test_a_signature_of_its_own_is_returned_exactly() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": encode_envelope(SIGNED)}
    turn = {"role": "assistant", "content": [thought, {"type": "text", "text": "A"}]}
    built = ask("messages", messages(user("1"), turn, user("2")))
    assert built.history[1]["reasoningContent"] == {"reasoningText": {"text": "hm", "signature": "sig=="}}
    assert b"dgm1." not in built.body


def test_redacted_reasoning_of_its_own_is_returned_exactly() -> None:
    data = encode_envelope(Opaque("kiro", Form.REDACTED, "cmVk", MODEL))
    turn = {
        "role": "assistant",
        "content": [{"type": "redacted_thinking", "data": data}, {"type": "text", "text": "A"}],
    }
    built = ask("messages", messages(user("1"), turn, user("2")))
    assert built.history[1]["reasoningContent"] == {"redactedContent": "cmVk"}


def test_the_signed_text_wins_over_what_the_client_shows() -> None:
    sealed = encode_envelope(SIGNED, text="exactly this")
    turn = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "about", "signature": sealed}, {"type": "text", "text": "A"}],
    }
    built = ask("messages", messages(user("1"), turn, user("2")))
    assert built.history[1]["reasoningContent"]["reasoningText"]["text"] == "exactly this"


def test_reasoning_of_others_is_dropped() -> None:
    foreign = [
        "native",
        encode_envelope(Opaque("anthropic", Form.SIGNATURE, "x")),
        encode_envelope(Opaque("kiro", Form.SIGNATURE, "x", "another")),
    ]
    for signature in foreign:
        thought = {"type": "thinking", "thinking": "hm", "signature": signature}
        turn = {"role": "assistant", "content": [thought, {"type": "text", "text": "A"}]}
        built = ask("messages", messages(user("1"), turn, user("2")))
        assert "reasoningContent" not in built.history[1]
        assert "/messages/1/content/0" in built.dropped


def test_a_message_holds_one_reasoning_block() -> None:
    thoughts = [{"type": "thinking", "thinking": text, "signature": encode_envelope(SIGNED)} for text in ("one", "two")]
    turn = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "A"}]}
    built = ask("messages", messages(user("1"), turn, user("2")))
    assert built.history[1]["reasoningContent"]["reasoningText"]["text"] == "one"
    assert "/messages/1/content/1" in built.dropped


def test_a_body_above_the_limit_is_refused_as_too_long() -> None:
    options = KiroOptions(conversation_id="c", max_payload_bytes=500)
    assert ask("chat", chat(user("x" * 100)), options)
    failure = expect_refusal(lambda: ask("chat", chat(user("é" * 200)), options))
    assert failure.kind is Kind.CONTEXT_TOO_LONG
    assert "500" in failure.message


def test_options_of_another_make_are_taken_for_none() -> None:
    body = build(Request("chat", "m", (Turn(Role.USER, (Text("hi"),)),)), Target(MODEL, "kiro", options="?"), Ledger())
    assert "conversationId" not in msgspec.json.decode(body)["conversationState"]
