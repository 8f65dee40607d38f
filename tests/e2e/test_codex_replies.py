"""Codex through the three client protocols, judged by the SDKs: what is sent, and what becomes of every answer."""

import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import msgspec
import openai
import pytest

from asking import PATHS, send
from e2e.account_rig import AccountRig, run_codex
from fakes.codex import (
    ACCOUNT,
    RESPONSES,
    TOKEN,
    FakeCodex,
    make_completed,
    make_created,
    make_item_done,
    number_events,
    reply,
    text_events,
)
from fakes.service import json_answer, plain, stream
from gateway import KEY
from raw_http import get
from rig import PROTOCOLS
from sdk_replies import Broke, SdkReply, status_error
from wire_json import Json, JsonObject

MODEL = "codex/gpt-5.5"
Rig = AccountRig[FakeCodex]

clients = pytest.mark.parametrize("client", PROTOCOLS)
modes = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with run_codex(tmp_path) as own:
        yield own


def make_limit_error(now: float) -> dict[str, object]:
    return {
        "type": "usage_limit_reached",
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": int(now + 600),
        "resets_in_seconds": 9999,
    }


@clients
@modes
def test_every_client_gets_the_reply(rig: Rig, client: str, streamed: bool) -> None:
    client_reply = rig.ask(client, streamed)
    assert isinstance(client_reply, SdkReply), client_reply
    assert client_reply.text == "Hello"
    assert client_reply.tokens is not None
    assert (client_reply.tokens.input, client_reply.tokens.output, client_reply.tokens.cached) == (11, 7, 4)
    assert rig.sdk.headers["x-dragoman-route"] == MODEL


def test_a_chat_request_becomes_what_the_backend_takes(rig: Rig) -> None:
    text = rig.sdk.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_tokens=100,
        temperature=0.5,
        extra_headers={"x-dragoman-explain": "1"},
    )
    assert text.choices[0].message.content == "Hello"
    (body,) = rig.fake.bodies
    assert body["instructions"] == "Be brief."
    assert [item["role"] for item in body["input"]] == ["user"]
    assert not body.keys() & {"max_output_tokens", "max_tokens", "temperature"}
    assert (body["store"], body["stream"]) == (False, True)
    losses = msgspec.json.decode(rig.sdk.headers["x-dragoman-loss-detail"])
    assert {(loss["path"], loss["how"]) for loss in losses} == {("/max_tokens", "dropped"), ("/temperature", "dropped")}


def test_a_bare_string_becomes_a_list_and_instructions_are_there(rig: Rig) -> None:
    text = rig.sdk.openai.responses.create(model=MODEL, input="hi", extra_headers={"x-dragoman-explain": "1"})
    assert text.output_text == "Hello"
    (body,) = rig.fake.bodies
    assert len(body["input"]) == 1
    assert body["instructions"]
    losses = msgspec.json.decode(rig.sdk.headers["x-dragoman-loss-detail"])
    assert [(loss["path"], loss["how"]) for loss in losses] == [("/instructions", "invented")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_output_tokens", 100),
        ("top_p", 0.5),
        ("user", "me"),
        ("metadata", {"a": "b"}),
        ("truncation", "auto"),
        ("safety_identifier", "me"),
        ("service_tier", "flex"),
        ("context_management", [{"type": "compaction"}]),
        ("a_field_of_tomorrow", 1),
    ],
)
def test_a_field_that_the_backend_rejects_is_dropped_and_noted(rig: Rig, field: str, value: object) -> None:
    extra = {field: value, "instructions": "Be brief."}
    rig.sdk.openai.responses.create(
        model=MODEL, input="hi", extra_body=extra, extra_headers={"x-dragoman-explain": "1"}
    )
    assert field not in rig.fake.bodies[0]
    losses = msgspec.json.decode(rig.sdk.headers["x-dragoman-loss-detail"])
    assert [loss["path"].split("/")[1] for loss in losses] == [field]


def test_strict_mode_rejects_losses_before_the_backend_gets_a_request(rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        rig.sdk.openai.responses.create(
            model=MODEL,
            input="hi",
            instructions="Be brief.",
            max_output_tokens=100,
            extra_headers={"x-dragoman-strict": "1"},
        )
    assert rig.fake.bodies == []


def test_system_messages_are_folded_into_instructions_or_become_the_developers(rig: Rig) -> None:
    given: list[Json] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi again"},
    ]
    rig.sdk.openai.responses.create(model=MODEL, input=given)
    (body,) = rig.fake.bodies
    assert body["instructions"] == "Be brief."
    assert [item["role"] for item in body["input"]] == ["user", "developer", "user"]


def test_cache_breakpoints_and_bare_reasoning_never_reach_the_backend(rig: Rig) -> None:
    given: list[Json] = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        },
    ]
    text = rig.sdk.openai.responses.create(model=MODEL, input=given, instructions="Be brief.")
    assert text.output_text == "Hello"


CODEX_BODY = {
    "model": MODEL,
    "instructions": "You are Codex.",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [],
    "tool_choice": "auto",
    "reasoning": {"effort": "high", "summary": "auto", "context": "all_turns"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread-1",
    "client_metadata": {"x": "y"},
}


def test_what_codex_itself_sends_passes_byte_for_byte(rig: Rig) -> None:
    """But for the model's name, and what only the client may say of itself."""
    headers = {"originator": "codex_cli_rs", "session-id": "s-1", "x-codex-installation-id": "i-1", "version": "0.1"}
    rig.sdk.openai.post("/responses", body=CODEX_BODY, cast_to=object, options={"headers": headers})
    sent = rig.fake.at(RESPONSES)[0]
    assert msgspec.json.decode(sent.body) == {**CODEX_BODY, "model": "gpt-5.5"}
    assert "x-dragoman-loss" not in rig.sdk.headers
    assert (sent.headers["originator"], sent.headers["session-id"]) == ("dragoman", "s-1")
    assert sent.headers["user-agent"].startswith("dragoman/")
    assert not sent.headers.keys() & {"x-codex-installation-id", "version"}


def test_a_request_identifies_the_client_and_keeps_its_session(rig: Rig) -> None:
    for _ in range(2):
        rig.ask("chat")
    first, second = (request.headers for request in rig.fake.at(RESPONSES))
    assert first["chatgpt-account-id"] == ACCOUNT
    assert first["accept"] == "text/event-stream"
    assert first["session-id"] == second["session-id"]
    assert "version" not in first


def test_a_translated_request_has_the_key_of_its_session_as_session_id(rig: Rig) -> None:
    """Whether the client names its session in a header, which is not passed on, or in a field that is left out."""
    turn = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
    named = {**turn, "metadata": {"user_id": "user_1_account__session_abc"}}
    for body, headers in ((turn, {"session-id": "s-1"}), (turn, {"session_id": "s-2"}), (named, {})):
        assert send(rig.gateway, "POST", PATHS["messages"], body, headers=headers).status == 200
    sent = rig.fake.at(RESPONSES)
    ids = [request.headers["session-id"] for request in sent]
    assert ids == [request.json["prompt_cache_key"] for request in sent]
    assert len(set(ids)) == 3


@clients
@modes
def test_an_exhausted_plan_is_reported_with_its_reset_and_not_retried(rig: Rig, client: str, streamed: bool) -> None:
    now = time.time()
    rig.fake.play(json_answer({"error": make_limit_error(now)}, 429))
    error = status_error(rig.ask(client, streamed))
    assert isinstance(error, openai.RateLimitError | anthropic.APIStatusError)
    assert error.status_code == 429
    assert 500 <= int(error.response.headers["retry-after"]) <= 600
    assert error.response.headers["x-should-retry"] == "false"  # else the SDK asks twice more
    assert rig.fake.counts[RESPONSES] == 1
    limits = rig.gateway.app.gateway.runtime.providers["codex"].account.last_limits()
    assert limits is not None
    assert limits.exhausted_until == pytest.approx(now + 600, abs=5)


@clients
@modes
def test_a_quota_inside_a_stream_is_a_real_error(rig: Rig, client: str, streamed: bool) -> None:
    limits: JsonObject = {"type": "codex.rate_limits", "rate_limits": {"limit_reached": True}}
    trouble = {"type": "error", "status_code": 429, "error": make_limit_error(time.time()), "headers": {}}
    rig.fake.play(stream(*number_events(make_created(), limits, trouble)))
    error = status_error(rig.ask(client, streamed))
    assert isinstance(error, openai.RateLimitError | anthropic.APIStatusError)
    assert error.status_code == 429
    assert 500 <= int(error.response.headers["retry-after"]) <= 600
    assert rig.fake.counts[RESPONSES] == 1


@clients
@modes
def test_a_limit_that_is_reached_by_this_very_reply_does_not_end_it(rig: Rig, client: str, streamed: bool) -> None:
    limits: JsonObject = {"type": "codex.rate_limits", "rate_limits": {"limit_reached": True}}
    rig.fake.play(stream(*number_events(make_created(), limits, *text_events("All of it."), make_completed())))
    client_reply = rig.ask(client, streamed)
    assert isinstance(client_reply, SdkReply), client_reply
    assert client_reply.text == "All of it."


@clients
def test_an_empty_last_output_is_filled_in_order(rig: Rig, client: str) -> None:
    """For clients that want a whole reply."""
    rig.fake.play(
        stream(*number_events(make_created(), make_item_done(1, " two"), make_item_done(0, "one"), make_completed()))
    )
    client_reply = rig.ask(client)
    assert isinstance(client_reply, SdkReply), client_reply
    assert client_reply.text == "one two"


def test_an_empty_last_output_is_filled_in_order_for_clients_of_the_same_protocol(rig: Rig) -> None:
    """Where the bytes pass."""
    rig.fake.play(
        stream(*number_events(make_created(), make_item_done(1, " two"), make_item_done(0, "one"), make_completed()))
    )
    body: JsonObject = {**CODEX_BODY}
    del body["stream"], body["client_metadata"]
    with rig.sdk.openai.responses.create(**body, stream=True) as events:
        last = [event for event in events if event.type == "response.completed"]
    assert [item.id for item in last[0].response.output] == ["msg_0", "msg_1"]
    assert last[0].response.output_text == "one two"
    assert "x-dragoman-loss" not in rig.sdk.headers


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"detail": "The 'x' model is not supported when using Codex with a ChatGPT account."}, 404),
        (429, {"error": {"type": "usage_not_included", "message": "Upgrade to use Codex"}}, 403),
        (503, {"error": {"code": "server_is_overloaded", "message": "busy"}}, 503),
        (400, {"error": {"code": "cyber_policy", "message": "no"}}, 400),
        (400, {"error": {"code": "context_length_exceeded", "message": "too long"}}, 400),
    ],
)
def test_failures_keep_their_meaning(rig: Rig, status: int, body: object, expected: int) -> None:
    rig.fake.play(json_answer(body, status))
    error = status_error(rig.ask("chat"))
    assert error.status_code == expected, error
    assert rig.fake.counts[RESPONSES] == (3 if expected == 503 else 1)


def test_cloudflare_is_no_reason_to_sign_in_again(rig: Rig) -> None:
    page = plain("<html><title>Attention Required! | Cloudflare</title></html>", 403)
    rig.fake.script(RESPONSES, page)
    error = status_error(rig.ask("chat"))
    assert error.status_code == 403
    assert "Cloudflare" in str(error)
    assert rig.fake.counts[TOKEN] == 0


@clients
def test_a_stream_without_its_end_is_no_success(rig: Rig, client: str) -> None:
    rig.fake.play(stream(*number_events(make_created(), *text_events("It was"))))
    client_reply = rig.ask(client, streamed=True)
    assert isinstance(client_reply, Broke), client_reply


@clients
@modes
def test_an_invalidated_token_is_renewed_once(rig: Rig, client: str, streamed: bool) -> None:
    rig.fake.access.clear()
    client_reply = rig.ask(client, streamed)
    assert isinstance(client_reply, SdkReply), client_reply
    assert rig.fake.counts[TOKEN] == 1
    assert rig.fake.counts[RESPONSES] == 2


def test_a_websocket_is_declined_and_none_is_tried_upstream(rig: Rig) -> None:
    """Codex gets an answer at once that makes it use HTTP, the only transport that we use to the backend."""
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: ZmFrZQ==")
    assert get(rig.gateway.port, "/v1/responses", *upgrade, key=KEY).status == 426
    for _ in range(2):
        assert rig.ask("responses", streamed=True).text == "Hello"
    assert all("upgrade" not in request.headers for request in rig.fake.requests)


def test_the_models_of_the_plan_are_listed(rig: Rig) -> None:
    ids = [model.id for model in rig.sdk.openai.models.list()]
    assert "codex/gpt-5.5" in ids
    assert "codex/codex-auto-review" not in ids


def test_a_second_turn_brings_back_the_backends_own_reasoning(rig: Rig) -> None:
    thought = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "ZmFrZS1zZWFs"}
    response = {"type": "response.output_item.done", "output_index": 0, "item": thought}
    rig.fake.play(
        stream(*number_events(make_created(), response, *text_events("Yes.", 1), make_completed())), reply("Again.")
    )
    first = rig.sdk.openai.responses.create(model=MODEL, input="hi", include=["reasoning.encrypted_content"])
    given: list[Json] = [item.model_dump(exclude_none=True) for item in first.output]
    rig.sdk.openai.responses.create(model=MODEL, input=[*given, {"role": "user", "content": "more"}])
    sent = [item for item in rig.fake.bodies[1]["input"] if item.get("type") == "reasoning"]
    assert [item["encrypted_content"] for item in sent] == ["ZmFrZS1zZWFs"]


THOUGHT = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "ZmFrZS1zZWFs"}
TURNS: list[Json] = [{"role": "user", "content": "hi"}, THOUGHT, {"role": "user", "content": "more"}]


def test_reasoning_that_passed_as_it_was_comes_back_where_the_request_must_be_built_anew(rig: Rig) -> None:
    """A stream passes byte for byte; the next turn requests a whole reply, or has what the backend refuses."""
    rig.sdk.openai.responses.create(model=MODEL, input=TURNS, temperature=0.5)
    (sent,) = [item for item in rig.fake.bodies[0]["input"] if item.get("type") == "reasoning"]
    assert sent["encrypted_content"] == THOUGHT["encrypted_content"]


def test_reasoning_of_another_service_is_dropped_once_the_backend_rejects_it(rig: Rig) -> None:
    response = {"message": "The encrypted content could not be verified.", "code": "invalid_encrypted_content"}
    rig.fake.play(json_answer({"error": response}, 400), reply("Fine."))
    text = rig.sdk.openai.responses.create(model=MODEL, input=TURNS)
    assert text.output_text == "Fine."
    kinds = [[item.get("type") for item in body["input"]] for body in rig.fake.bodies]
    assert [("reasoning" in kind) for kind in kinds] == [True, False]
    rig.fake.play(reply("Fine."))
    newer = {**THOUGHT, "id": "rs_1", "encrypted_content": "bmV3LXNlYWw="}
    turns: list[Json] = [*TURNS, newer, {"role": "user", "content": "and more"}]
    rig.sdk.openai.responses.create(model=MODEL, input=turns)
    sealed = [item["encrypted_content"] for item in rig.fake.bodies[-1]["input"] if item.get("type") == "reasoning"]
    assert (len(rig.fake.bodies), sealed) == (1, ["bmV3LXNlYWw="])


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("gpt-5.5-deep", "ultra", {"effort": "max", "summary": "auto"}),
        ("gpt-5.5-deep", "xhigh", {"effort": "xhigh", "summary": "auto"}),
        ("gpt-5.5-plain", "high", {"effort": "medium"}),
        ("gpt-5.5", "ultra", {"effort": "max", "summary": "auto"}),
    ],
)
def test_reasoning_is_requested_as_the_model_list_allows_it(
    rig: Rig, model: str, effort: str, sent: JsonObject
) -> None:
    rig.gateway.settle()
    reasoning: Json = {"effort": effort, "summary": "auto"}
    rig.sdk.openai.responses.create(model=f"codex/{model}", input="hi", reasoning=reasoning)
    assert rig.fake.bodies[-1]["reasoning"] == sent
