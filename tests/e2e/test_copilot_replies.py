"""Copilot through the three client protocols, judged by the SDKs: each model in its own protocol, and its errors."""

from collections.abc import Iterator
from pathlib import Path

import anthropic
import msgspec
import pytest

from asking import ask
from e2e.account_rig import AccountRig, run_copilot
from e2e.cases import PIXEL, request_for
from fakes.copilot import (
    APP_TOKEN,
    CHAT,
    EXCHANGE,
    INSTALLATION_TOKEN,
    MESSAGES,
    MODELS,
    RESPONSES,
    FakeCopilot,
)
from fakes.service import json_answer, plain
from fakes.upstream import Answer, ReceivedRequest
from narrowing import expect
from rig import PROTOCOLS
from sdk_replies import SdkReply, status_error
from wire_json import Json, JsonObject

ENDPOINTS = {"claude-sonnet-4.5": MESSAGES, "gpt-5.5": RESPONSES, "gpt-4.1": CHAT}
Rig = AccountRig[FakeCopilot]

clients = pytest.mark.parametrize("client", PROTOCOLS)
modes = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with run_copilot(tmp_path) as own:
        yield own


def last(rig: Rig) -> ReceivedRequest:
    return rig.fake.calls[-1]


@clients
@modes
@pytest.mark.parametrize("model", ENDPOINTS)
def test_each_model_gets_requests_in_its_own_protocol(rig: Rig, client: str, streamed: bool, model: str) -> None:
    """No model gets a request at an endpoint that it does not list."""
    reply = rig.ask(client, streamed, f"copilot/{model}")
    assert isinstance(reply, SdkReply), reply
    assert reply.text == "Hello"
    assert [call.path for call in rig.fake.calls] == [ENDPOINTS[model]]
    assert rig.sdk.headers["x-dragoman-route"] == f"copilot/{model}"


@clients
def test_claude_reports_its_cached_tokens(rig: Rig, client: str) -> None:
    reply = rig.ask(client, model="copilot/claude-sonnet-4-5-20250929")
    assert isinstance(reply, SdkReply), reply
    assert reply.tokens is not None
    assert (reply.tokens.input, reply.tokens.cached) == (11, 8)


def test_an_item_keeps_its_first_id(rig: Rig) -> None:
    with rig.sdk.openai.responses.create(model="copilot/gpt-5.5", input="hi", stream=True) as events:
        response = list(events)
    assert "x-dragoman-loss" not in rig.sdk.headers
    ids = {event.item_id for event in response if hasattr(event, "item_id")}
    ids |= {event.item.id for event in response if hasattr(event, "item")}
    ids |= {item.id for event in response if event.type == "response.completed" for item in event.response.output}
    assert ids == {"a"}


HISTORY: list[Json] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED: list[Json] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "two"},
]


@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-5.5", "claude-sonnet-4.5"])
@pytest.mark.parametrize(
    ("messages", "initiator"),
    [(HISTORY, "user"), (CALLED, "agent"), ([*CALLED, {"role": "user", "content": "go on"}], "user")],
    ids=["a person", "a tool", "a person after a tool"],
)
def test_the_initiator_of_the_request_is_sent_correctly(
    rig: Rig, model: str, messages: list[Json], initiator: str
) -> None:
    rig.sdk.openai.chat.completions.create(model=f"copilot/{model}", messages=messages)
    assert last(rig).headers["x-initiator"] == initiator
    assert "copilot-vision-request" not in last(rig).headers


def test_an_image_inside_a_tool_result_is_announced(rig: Rig) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
    messages: list[Json] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [result, {"type": "text", "text": "<reminder>"}]},
    ]
    rig.sdk.anthropic.messages.create(model="copilot/claude-sonnet-4.5", max_tokens=100, messages=messages)
    assert last(rig).headers["copilot-vision-request"] == "true"
    assert last(rig).headers["x-initiator"] == "agent"


def test_requests_identify_the_gateway(rig: Rig) -> None:
    rig.ask("chat")
    headers = last(rig).headers
    assert headers["user-agent"].startswith("dragoman/")
    assert headers["editor-version"].startswith("dragoman/")
    assert headers["copilot-integration-id"] == "dragoman"
    assert headers["x-github-api-version"] == "2026-06-01"
    assert "vscode" not in str(headers)


def test_a_cap_is_sent_in_the_field_that_gpt_models_accept(rig: Rig) -> None:
    rig.sdk.openai.chat.completions.create(
        model="copilot/gpt-4.1", messages=[{"role": "user", "content": "hi"}], max_tokens=50
    )
    assert last(rig).json["max_completion_tokens"] == 50


def test_a_tool_field_that_copilot_rejects_is_dropped_and_noted(rig: Rig) -> None:
    tool: Json = {"name": "look", "input_schema": {"type": "object"}, "eager_input_streaming": True}
    text = rig.sdk.anthropic.messages.create(
        model="copilot/claude-sonnet-4.5",
        max_tokens=100,
        messages=[{"role": "user", "content": "hi"}],
        tools=[tool],
        extra_headers={"x-dragoman-explain": "1"},
    )
    assert expect(anthropic.types.TextBlock, text.content[0]).text == "Hello"
    losses = msgspec.json.decode(rig.sdk.headers["x-dragoman-loss-detail"])
    assert [loss["path"] for loss in losses] == ["/tools/0/eager_input_streaming"]


@pytest.mark.parametrize("token", [APP_TOKEN, INSTALLATION_TOKEN])
def test_tokens_of_apps_and_installations_are_used_themselves(tmp_path: Path, token: str) -> None:
    with run_copilot(tmp_path, token) as rig:
        assert rig.ask("chat").text == "Hello"
        assert last(rig).headers["authorization"] == f"Bearer {token}"
        assert rig.fake.counts[EXCHANGE] == 0


@clients
@modes
def test_an_expired_session_is_exchanged_anew_once(rig: Rig, client: str, streamed: bool) -> None:
    rig.ask(client)
    exchanged = rig.fake.counts[EXCHANGE]
    rig.fake.sessions.clear()
    reply = rig.ask(client, streamed=streamed)
    assert isinstance(reply, SdkReply), reply
    assert rig.fake.counts[EXCHANGE] == exchanged + 1


def test_a_request_is_sent_again_even_if_the_new_session_is_spelled_like_the_old_one(rig: Rig) -> None:
    session = json_answer({"token": "tid=constant:mac", "expires_at": 4102444800, "refresh_in": 1500})
    rig.fake.sessions.add("tid=constant:mac")
    rig.fake.script(EXCHANGE, *[session] * 9)
    rig.ask("chat")
    exchanged = rig.fake.counts[EXCHANGE]
    rig.fake.script(CHAT, plain("unauthorized: token expired", 401))
    assert rig.ask("chat").text == "Hello"
    assert rig.fake.counts[EXCHANGE] == exchanged + 1


@clients
def test_a_session_rejected_twice_is_reported_as_the_gateways_failure(rig: Rig, client: str) -> None:
    rig.fake.script(CHAT, *[plain("unauthorized: token expired", 401)] * 9)
    error = status_error(rig.ask(client))
    assert error.status_code == 502
    assert "dragoman login copilot" in str(error)
    assert "tid=" not in str(error)
    assert rig.fake.counts[CHAT] == 2


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "model_not_supported", 404),
        (402, "quota_exceeded", 429),
        (422, "content_filter", 400),
        (466, "client_not_supported", 400),
        (429, "rate_limited:premium", 429),
    ],
)
def test_failures_keep_their_meaning(rig: Rig, status: int, code: str, expected: int) -> None:
    answer = json_answer({"error": {"code": code, "message": "no"}}, status, (("retry-after", "600"),))
    rig.fake.script(CHAT, answer)
    error = status_error(rig.ask("responses"))
    assert error.status_code == expected, error
    assert rig.fake.counts[CHAT] == 1


def test_models_are_listed_with_what_they_hold_but_not_the_locked_and_the_malformed(rig: Rig) -> None:
    listed = {model.id: model for model in rig.sdk.anthropic.models.list()}
    assert {id for id in listed if id.startswith("copilot/")} == {f"copilot/{model}" for model in ENDPOINTS}
    claude = listed["copilot/claude-sonnet-4.5"].model_dump()
    assert (claude["max_input_tokens"], claude["max_tokens"]) == (168_000, 32_000)


def test_a_locked_model_is_refused_with_the_page_where_its_terms_are(rig: Rig) -> None:
    error = status_error(rig.ask("chat", model="copilot/grok-locked"))
    assert error.status_code == 404
    assert "https://github.com/settings/copilot/features" in str(error)
    assert rig.fake.calls == []


def test_embeddings_pass_with_the_accounts_session(rig: Rig) -> None:
    embedding = {"object": "embedding", "index": 0, "embedding": [0.25, -1.0]}
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    rig.fake.script("/embeddings", json_answer({"object": "list", "data": [embedding], "model": "e", "usage": usage}))
    found = rig.sdk.openai.embeddings.create(
        model="copilot/text-embedding-3-small", input="Hello", encoding_format="float"
    )
    assert found.data[0].embedding == [0.25, -1.0]
    (sent,) = rig.fake.at("/embeddings")
    assert sent.json["model"] == "text-embedding-3-small"
    assert sent.headers["authorization"].startswith("Bearer tid=")
    assert sent.headers["editor-version"].startswith("dragoman/")


def test_a_list_that_is_refused_leaves_the_old_one(rig: Rig) -> None:
    rig.ask("chat", model="copilot/gpt-5.5")
    rig.fake.script(MODELS, json_answer({"error": {"message": "slow"}}, 429))
    assert rig.ask("chat", model="copilot/gpt-5.5").text == "Hello"
    assert last(rig).path == RESPONSES


def test_what_is_left_of_the_account_is_kept(rig: Rig) -> None:
    rig.fake.headers = (
        ("x-quota-snapshot-premium_interactions", "ent=300&ov=0.0&ovPerm=false&rem=12.5&rst=2026-12-01T00%3A00%3A00Z"),
        ("x-quota-snapshot-chat", "ent=-1&ov=0.0&ovPerm=false&rem=100.0&rst=2026-12-01"),
    )
    rig.ask("chat")
    limits = rig.gateway.app.gateway.runtime.providers["copilot"].account.last_limits()
    assert limits is not None
    premium, chat = limits.windows["premium_interactions"], limits.windows["chat"]
    assert (premium.used_percent, premium.resets_at, premium.unlimited) == (87.5, 1796083200.0, False)
    assert chat.unlimited


def test_thoughts_of_a_chat_model_return_with_their_signature(rig: Rig) -> None:
    deltas = [
        {"role": "assistant", "content": None, "reasoning_text": "Weigh it up."},
        {"content": None, "reasoning_opaque": "ZmFrZS1vcGFxdWU="},
        {"content": "Yes."},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    head = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4.1"}
    encoded = [msgspec.json.encode({**head, **chunk}) for chunk in chunks]
    rig.fake.script(CHAT, Answer(b"".join(b"data: %b\n\n" % data for data in [*encoded, b"[DONE]"])))
    client_thread: JsonObject = {"model": "copilot/gpt-4.1", "max_tokens": 100}
    user: Json = {"role": "user", "content": "Well?"}
    with rig.sdk.anthropic.messages.stream(**client_thread, messages=[user]) as stream:
        text = stream.get_final_message()
    assert [block.type for block in text.content] == ["thinking", "text"]
    history: Json = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in text.content]}
    rig.sdk.anthropic.messages.create(**client_thread, messages=[user, history, user])
    response = last(rig).json["messages"][1]
    assert (response["reasoning_text"], response["reasoning_opaque"]) == ("Weigh it up.", "ZmFrZS1vcGFxdWU=")
    assert "reasoning_content" not in response


@clients
def test_a_reply_that_copilot_splits_is_received_whole(rig: Rig, client: str) -> None:
    """Text in one choice and the call in another: whoever reads the first choice alone would miss the call."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    text = {"index": 0, "message": {"role": "assistant", "content": "Let me look."}, "finish_reason": "stop"}
    calls = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4.1"}
    details = {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, **details}
    rig.fake.script(CHAT, json_answer({**head, "choices": [text, calls], "usage": usage}))
    reply = rig.ask(client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == "Let me look."
    assert [name for _, name, _ in reply.calls] == ["f"]


@modes
def test_a_reply_that_calls_a_tool_does_not_finish_with_stop(rig: Rig, streamed: bool) -> None:
    """Copilot may end such a reply with `stop`, at which clients do not run the tool."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    head = {"id": "c", "created": 1, "model": "gpt-4.1"}
    request = request_for("chat", "copilot/gpt-4.1")
    tools: Json = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    if streamed:
        deltas: list[tuple[JsonObject, Json]] = [({"role": "assistant", "tool_calls": [call]}, None), ({}, "stop")]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
        encoded = [msgspec.json.encode({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        rig.fake.script(CHAT, Answer(b"".join(b"data: %b\n\n" % data for data in [*encoded, b"[DONE]"])))
        with rig.sdk.openai.chat.completions.create(**request, tools=tools, stream=True) as stream:
            finishes = [chunk.choices[0].finish_reason for chunk in stream]
    else:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        rig.fake.script(CHAT, json_answer({**head, "object": "chat.completion", "choices": choices}))
        finishes = [rig.sdk.openai.chat.completions.create(**request, tools=tools).choices[0].finish_reason]
    assert finishes[-1] == "tool_calls"


@modes
def test_a_refusal_with_a_good_status_is_learnt_from(rig: Rig, streamed: bool) -> None:
    """Copilot says so with HTTP 200: as the body, or as the first event."""
    words = "This model does not support assistant message prefill. The conversation must end with a user message."
    error = msgspec.json.encode({"error": {"message": words, "code": "invalid_request_body"}})

    def refuse(request: ReceivedRequest) -> Answer | None:
        if request.path != MESSAGES or request.json["messages"][-1]["role"] == "user":
            return None
        return Answer(b"data: " + error + b"\n\n") if streamed else Answer(error, content_type="application/json")

    rig.fake.intercept = refuse
    turns: list[Json] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    for expected in (2, 3):
        reply = ask(rig.gateway, "messages", "copilot/claude-sonnet-4.5", stream=streamed, messages=turns)
        assert (reply.status, reply.headers["x-dragoman-loss"]) == (200, "1")
        assert len(rig.fake.at(MESSAGES)) == expected
