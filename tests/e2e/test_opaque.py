"""Reasoning that only its issuer can read travels through any client and back, to its issuer alone."""

from base64 import b64encode
from collections.abc import Callable, Sequence

import msgspec
import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel

from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from e2e.cases import CASES, request_for
from fakes.upstream import Answer
from rig import PATHS, PROTOCOLS, Rig
from scripting import write_error
from scripting.replies import ScriptedReply, Stop, Text, Thinking, ToolCall
from wire_json import JsonObject

CALL = ToolCall("call_a1", "weather", '{"city":"Ulm"}')
SCRIPTED = {
    "signed": ScriptedReply((Thinking("Weigh it 漢字 up.\n", "c2VhbC1vbmU="), Text("Yes."), CALL), Stop.TOOL),
    "hidden": ScriptedReply((Thinking("", "aGlkZGVuLXNlYWw="), Text("Yes."), CALL), Stop.TOOL),
    "signed and hidden": ScriptedReply(
        (Thinking("First.", "c2lnbmVkLW9uZQ=="), Thinking("", "aGlkZGVuLXR3bw=="), Text("Yes."), CALL), Stop.TOOL
    ),
}
CROSSED = [(client, upstream) for client in PROTOCOLS for upstream in PROTOCOLS if client != upstream]

crossed = pytest.mark.parametrize(("client", "upstream"), CROSSED)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
cases = pytest.mark.parametrize("case", SCRIPTED)


def chat_turns(rig: Rig, request: JsonObject, stream: bool) -> list[JsonObject]:
    completions = rig.sdk.openai.chat.completions
    message: ChatCompletionMessage
    if stream:
        with completions.stream(**{name: value for name, value in request.items() if name != "tools"}) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = completions.create(**request).choices[0].message
    text = message.model_dump(exclude_none=True, exclude={"parsed": True})
    for call in text["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
    return [text, {"role": "tool", "tool_call_id": CALL.id, "content": "sunny"}]


def responses_turns(rig: Rig, request: JsonObject, stream: bool) -> list[JsonObject]:
    output: Sequence[BaseModel]
    if stream:
        with rig.sdk.openai.responses.stream(**request) as events:
            output = events.get_final_response().output
    else:
        output = rig.sdk.openai.responses.create(**request).output
    text = [item.model_dump(exclude_none=True, exclude={"parsed_arguments", "parsed"}) for item in output]
    for item in text:
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return [*text, {"type": "function_call_output", "call_id": CALL.id, "output": "sunny"}]


def messages_turns(rig: Rig, request: JsonObject, stream: bool) -> list[JsonObject]:
    content: Sequence[BaseModel]
    if stream:
        with rig.sdk.anthropic.messages.stream(**request) as events:
            content = events.get_final_message().content
    else:
        content = rig.sdk.anthropic.messages.create(**request).content
    text = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in content]
    result = {"type": "tool_result", "tool_use_id": CALL.id, "content": "sunny"}
    return [{"role": "assistant", "content": text}, {"role": "user", "content": [result]}]


TURNS: dict[str, Callable[[Rig, JsonObject, bool], list[JsonObject]]] = {
    "chat": chat_turns,
    "responses": responses_turns,
    "messages": messages_turns,
}


def first_turns(
    rig: Rig, client: str, upstream: str, scripted: ScriptedReply, stream: bool
) -> tuple[JsonObject, list[JsonObject]]:
    """Have the upstream think and call a tool; return the client's request, and what it appends to its history."""
    rig.play(upstream, scripted, stream=stream)
    request = request_for(client, rig.model(upstream), CASES["sealed reasoning"])
    return request, TURNS[client](rig, request, stream)


def ask_again(
    rig: Rig, client: str, upstream: str, request: JsonObject, turns: list[JsonObject], *refusals: Answer
) -> JsonObject:
    """Send the history, and return the last request that the upstream got."""
    fake = rig.play(upstream, *refusals, "The reply.", stream=False)
    field = "input" if client == "responses" else "messages"
    again: JsonObject = {**request, "model": rig.model(upstream), field: [*request[field], *turns]}
    again["extra_headers"] = {"x-dragoman-explain": "1"}
    match client:
        case "chat":
            rig.sdk.openai.chat.completions.create(**again)
        case "responses":
            rig.sdk.openai.responses.create(**again)
        case _:
            rig.sdk.anthropic.messages.create(**again)
    assert b"dgm1." not in fake.calls[-1].body
    return fake.calls[-1].json


def thoughts_in(upstream: str, body: JsonObject) -> list[tuple[str, str]]:
    """The thoughts of a history and their seals, as an upstream of this protocol finds them."""
    match upstream:
        case "chat":
            details = [detail for turn in body["messages"] for detail in turn.get("reasoning_details") or ()]
            return [(entry.get("text", ""), entry.get("signature") or entry["data"]) for entry in details]
        case "responses":
            items = [item for item in body["input"] if item.get("type") == "reasoning"]
            return [("".join(part["text"] for part in item["summary"]), item["encrypted_content"]) for item in items]
        case _:
            contents = [turn["content"] for turn in body["messages"] if isinstance(turn["content"], list)]
            thoughts = [block for content in contents for block in content if "thinking" in block["type"]]
            return [(block.get("thinking", ""), block.get("signature") or block.get("data")) for block in thoughts]


@crossed
@modes
@cases
def test_opaque_reasoning_returns_to_its_issuer_byte_for_byte(
    rig: Rig, client: str, upstream: str, stream: bool, case: str
) -> None:
    scripted = SCRIPTED[case]
    request, turns = first_turns(rig, client, upstream, scripted, stream)
    body = ask_again(rig, client, upstream, request, turns)
    assert thoughts_in(upstream, body) == [
        (part.text, part.seal) for part in scripted.parts if isinstance(part, Thinking)
    ]


@crossed
@modes
@cases
def test_another_issuer_gets_none_of_it_and_the_loss_is_noted(
    rig: Rig, client: str, upstream: str, stream: bool, case: str
) -> None:
    scripted = SCRIPTED[case]
    request, turns = first_turns(rig, client, upstream, scripted, stream)
    seals = [part.seal for part in scripted.parts if isinstance(part, Thinking)]
    for other in PROTOCOLS:
        if other == upstream:
            continue
        body = ask_again(rig, client, other, request, turns)
        assert not any(seal in msgspec.json.encode(body).decode() for seal in seals)
        response = msgspec.json.decode(rig.sdk.headers["x-dragoman-loss-detail"])
        assert any(is_a_thought(client, entry["path"]) and entry["how"] == "dropped" for entry in response), response


def is_a_thought(client: str, path: str) -> bool:
    """Whether a pointer of the ledger leads to the thoughts in this client's history."""
    words = path.split("/")[1:]
    return words[0] == ("input" if client == "responses" else "messages") and words[1] == "1"


@pytest.mark.parametrize("client", ["chat", "responses"])
@pytest.mark.parametrize(
    "why",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.1.content.1: Invalid `data` in `redacted_thinking` block",
    ],
)
def test_thoughts_that_their_issuer_does_not_take_back_are_left_out_in_a_second_try(
    rig: Rig, client: str, why: str
) -> None:
    seal = b64encode(f"{client}: {why}".encode()).decode()  # the session remembers what was rejected
    scripted = ScriptedReply((Thinking("Hm.", seal), Text("Yes."), CALL), Stop.TOOL)
    request, turns = first_turns(rig, client, "messages", scripted, False)
    body = ask_again(rig, client, "messages", request, turns, write_error(400, why))
    assert thoughts_in("messages", body) == []
    assert len(rig.fakes["messages"].calls) == 2
    losses = msgspec.json.decode(rig.sdk.headers["x-dragoman-loss-detail"])
    assert any(is_a_thought(client, entry["path"]) and entry["how"] == "dropped" for entry in losses), losses


@pytest.mark.parametrize("client", ["chat", "responses"])
def test_thoughts_of_another_conversation_are_left_to_their_issuer_in_a_second_try(rig: Rig, client: str) -> None:
    request, turns = first_turns(rig, client, "messages", SCRIPTED["signed"], False)
    why = (
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
        "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
        '"drop_block". That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` '
        "header. The `thinking` block that preceded this one when it was created is missing from this request."
    )
    body = ask_again(rig, client, "messages", request, turns, write_error(400, why))
    assert len(thoughts_in("messages", body)) == 1
    assert body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    first, second = rig.fakes["messages"].calls
    assert first.headers.get("anthropic-beta") is None
    assert second.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"


def test_a_foreign_envelope_is_taken_out_of_a_conversation_of_the_same_protocol(rig: Rig) -> None:
    """A Messages client that was answered by a Responses upstream continues with a Messages upstream."""
    request, turns = first_turns(rig, "messages", "responses", SCRIPTED["signed"], False)
    body = ask_again(rig, "messages", "messages", request, turns)
    blocks = [block["type"] for block in body["messages"][1]["content"]]
    assert blocks == ["text", "tool_use"]
    assert rig.sdk.headers["x-dragoman-loss"] != "0"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_the_same_protocol_has_sealed_stays_where_a_foreign_envelope_is_taken_out(rig: Rig, protocol: str) -> None:
    """Without the envelope it would have passed through, whichever vendor of this protocol had issued it."""
    envelope = encode_envelope(Opaque("elsewhere", OpaqueForm.SIGNATURE, "foreign", "m"))
    turns = [*with_thought(protocol, "bmF0aXZl"), *with_thought(protocol, envelope), {"role": "user", "content": "Go."}]
    body = ask_again(rig, protocol, protocol, request_for(protocol, "any/m"), turns)
    assert [seal for _, seal in thoughts_in(protocol, body)] == ["bmF0aXZl"]


BROKEN = ["dgm1.", "dgm1.AAAA", "dgm1.not base64 !", "dgm1." + "A" * 4000]


def with_thought(client: str, token: str) -> list[JsonObject]:
    """A history in which the client's opaque slot holds this."""
    match client:
        case "chat":
            detail = {"type": "reasoning.encrypted", "data": token, "index": 0}
            return [{"role": "assistant", "content": "Yes.", "reasoning_details": [detail]}]
        case "responses":
            return [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": token}]
        case _:
            thought = {"type": "thinking", "thinking": "Hm.", "signature": token}
            return [{"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]}]


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("token", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_envelope_is_never_passed_on(rig: Rig, client: str, upstream: str, token: str) -> None:
    turns = [*with_thought(client, token), {"role": "user", "content": "Go."}]
    body = ask_again(rig, client, upstream, request_for(client, "any/m"), turns)
    assert token not in msgspec.json.encode(body).decode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_words_about_envelopes_are_no_envelope(rig: Rig, protocol: str) -> None:
    """A body that only mentions envelopes passes through unread."""
    fake = rig.play(protocol, "The reply.", stream=False)
    words = b'[{"role":"user","content":"What does dgm1.AAAA mean?"}]'
    body = b'{"odd" :1,"model":"%b/m","max_tokens":9,"messages":%b,"input":%b}' % (protocol.encode(), words, words)
    assert rig.send("POST", PATHS[protocol], body).status == 200
    assert fake.calls[-1].body == body.replace(b'"%b/m"' % protocol.encode(), b'"m"')
