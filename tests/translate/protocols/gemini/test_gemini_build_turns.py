"""Conversations of other protocols' clients, as Gemini's contents."""

import pytest

from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from translate.protocols.gemini.gemini_requests import GEMMA, HELLO, NEW, OLD, build_from, from_chat, losses_from_chat
from wire_json import JsonObject

DUMMY = "skip_thought_signature_validator"
PNG, PDF = "iVBORw0KGgo=", "JVBERi0xLjQ="


def call(id: str, name: str = "look", arguments: str = "{}") -> JsonObject:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(id: str, content: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": id, "content": content}


def contents(*messages: JsonObject) -> list[JsonObject]:
    found: list[JsonObject] = from_chat(messages=[*HELLO, *messages])["contents"]
    return found


def from_messages(*messages: JsonObject, model: str = NEW) -> list[JsonObject]:
    body: JsonObject = {"model": "m", "max_tokens": 9, "messages": [*HELLO, *messages]}
    found: list[JsonObject] = build_from("messages", body, model)[0]["contents"]
    return found


def test_results_follow_in_the_order_of_their_calls_under_the_functions_names() -> None:
    calls = [call("a", "first", '{"x":1}'), call("b", "second", "")]
    [_, model, user] = contents(
        {"role": "assistant", "content": "Both.", "tool_calls": calls}, answer("b", "two"), answer("a", "one")
    )
    assert model["parts"] == [
        {"text": "Both."},
        {"functionCall": {"id": "a", "name": "first", "args": {"x": 1}}, "thoughtSignature": DUMMY},
        {"functionCall": {"id": "b", "name": "second", "args": {}}},
    ]
    assert user["role"] == "user"
    assert user["parts"] == [
        {"functionResponse": {"id": "a", "name": "first", "response": {"output": "one"}}},
        {"functionResponse": {"id": "b", "name": "second", "response": {"output": "two"}}},
    ]


def test_an_error_result_says_so() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "gone", "is_error": True}
    [*_, user] = from_messages(use, {"role": "user", "content": [result, {"type": "text", "text": "And?"}]})
    assert user["parts"] == [
        {"functionResponse": {"id": "t", "name": "look", "response": {"error": "gone"}}},
        {"text": "And?"},
    ]


def test_a_call_without_a_result_is_refused_by_its_id() -> None:
    with pytest.raises(BadRequest) as refused:
        contents({"role": "assistant", "tool_calls": [call("a"), call("b")]}, answer("a", "one"))
    assert "'b'" in refused.value.failure.message
    assert refused.value.failure.at == "/messages/1/tool_calls/1"


def test_arguments_in_history_are_never_rewritten() -> None:
    arguments = '{"title":"T","format":"F","const":1,"$schema":"S"}'
    [_, model, _] = contents({"role": "assistant", "tool_calls": [call("a", "f", arguments)]}, answer("a", ""))
    assert model["parts"][0]["functionCall"]["args"] == {"title": "T", "format": "F", "const": 1, "$schema": "S"}


def test_instructions_are_joined_and_later_ones_stay_in_their_place() -> None:
    body = from_chat(
        messages=[
            {"role": "system", "content": "One."},
            {"role": "developer", "content": "Two."},
            *HELLO,
            {"role": "system", "content": "Late."},
        ]
    )
    assert body["systemInstruction"] == {"parts": [{"text": "One."}, {"text": "Two."}]}
    [turn] = body["contents"]
    assert turn["parts"][0] == {"text": "hi"}
    assert "Late." in turn["parts"][1]["text"]


def test_gemma_reads_instructions_before_the_first_text() -> None:
    body = from_chat(GEMMA, messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    assert "systemInstruction" not in body
    assert body["contents"] == [{"role": "user", "parts": [{"text": "Be brief."}, {"text": "hi"}]}]


def test_a_reply_that_should_be_continued_is_followed_by_a_user() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    roles = [turn["role"] for turn in from_chat(messages=messages)["contents"]]
    assert roles == ["user", "model", "user"]
    assert losses_from_chat(messages=messages) == {"/messages/1": "approximated"}


def test_a_conversation_that_begins_with_the_model_gets_a_user_first() -> None:
    messages = [{"role": "assistant", "content": "Hello!"}, *HELLO]
    assert [turn["role"] for turn in from_chat(messages=messages)["contents"]] == ["user", "model", "user"]
    assert losses_from_chat(messages=messages) == {"/messages/0": "invented"}


# Signatures


def make_thinking(signature: str, issuer: str = "gemini", text: str = "Hm.") -> JsonObject:
    token = encode_envelope(Opaque(issuer, OpaqueForm.SIGNATURE, signature, "gemini-3.5-flash"))
    return {"type": "thinking", "thinking": text, "signature": token}


def use(id: str) -> JsonObject:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}}


def result(id: str) -> JsonObject:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "ok"}]}


def test_a_signature_returns_byte_for_byte_on_the_first_call_of_its_step() -> None:
    first = {"role": "assistant", "content": [make_thinking("AB+/=="), {"type": "text", "text": "So."}, use("a")]}
    second = {"role": "assistant", "content": [make_thinking("CD-_", text=""), use("b")]}
    [_, one, _, two, _] = from_messages(first, result("a"), second, result("b"))
    assert one["parts"] == [
        {"text": "Hm.", "thought": True},
        {"text": "So."},
        {"functionCall": {"id": "a", "name": "look", "args": {}}, "thoughtSignature": "AB+/=="},
    ]
    assert two["parts"] == [{"functionCall": {"id": "b", "name": "look", "args": {}}, "thoughtSignature": "CD-_"}]


def test_a_signature_of_text_returns_on_the_text() -> None:
    turn = {"role": "assistant", "content": [make_thinking("AB=="), {"type": "text", "text": "So."}]}
    [_, one, _] = from_messages(turn, {"role": "user", "content": "And?"})
    assert one["parts"] == [{"text": "Hm.", "thought": True}, {"text": "So.", "thoughtSignature": "AB=="}]


def test_another_vendors_reasoning_is_replaced_by_the_placeholder() -> None:
    other = {"role": "assistant", "content": [make_thinking("AB==", issuer="anthropic"), use("a")]}
    [_, one, _] = from_messages(other, result("a"))
    assert one["parts"] == [{"functionCall": {"id": "a", "name": "look", "args": {}}, "thoughtSignature": DUMMY}]


def test_a_part_of_googles_own_tools_returns_as_it_came() -> None:
    part = '{"toolCall":{"id":"s","toolType":"GOOGLE_SEARCH_WEB"},"thoughtSignature":"AB=="}'
    token = encode_envelope(Opaque("gemini", OpaqueForm.DETAIL, part, "gemini-3.5-flash"))
    searched = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": token}, use("a")]}
    [_, one, _] = from_messages(searched, result("a"))
    assert one["parts"][0] == {"toolCall": {"id": "s", "toolType": "GOOGLE_SEARCH_WEB"}, "thoughtSignature": "AB=="}


# Media


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"inlineData": {"mimeType": "image/png", "data": PNG}},
        ),
        (
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"}},
            {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://a.example/b.webp?size=1"}},
            {"fileData": {"mimeType": "image/webp", "fileUri": "https://a.example/b.webp?size=1"}},
        ),
    ],
)
def test_media_are_sent_inline_or_by_address(part: JsonObject, sent: JsonObject) -> None:
    [turn] = from_chat(messages=[{"role": "user", "content": [part]}])["contents"]
    assert turn["parts"] == [sent]


def test_a_type_that_must_be_guessed_is_a_loss() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://a.example/picture"}}
    assert losses_from_chat(messages=[{"role": "user", "content": [part]}]) == {"/messages/0/content/0": "invented"}


def test_an_image_of_a_result_stands_in_it_or_after_all_results() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    shown = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    plain = {"type": "tool_result", "tool_use_id": "b", "content": "ok"}
    turns = ({"role": "assistant", "content": [use("a"), use("b")]}, {"role": "user", "content": [shown, plain]})
    [*_, new] = from_messages(*turns)
    inline = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    assert new["parts"][0]["functionResponse"]["parts"] == [inline]
    [*_, old] = from_messages(*turns, model=OLD)
    assert [next(iter(part)) for part in old["parts"]] == ["functionResponse", "functionResponse", "text", "inlineData"]


def test_a_file_of_another_vendor_is_refused() -> None:
    part = {"type": "file", "file": {"file_id": "file-1"}}
    with pytest.raises(BadRequest) as refused:
        from_chat(messages=[{"role": "user", "content": [part]}])
    assert refused.value.failure.at == "/messages/0/content/0"


def test_turns_of_one_role_stay_together_when_nothing_is_left_between_them() -> None:
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "foreign"}]}
    turns = from_messages(thought, {"role": "user", "content": "b"})
    assert turns == [{"role": "user", "parts": [{"text": "hi"}, {"text": "b"}]}]
