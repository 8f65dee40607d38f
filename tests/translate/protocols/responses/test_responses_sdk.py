"""The openai SDK's own accumulators read every stream we emit and end with the intended reply."""

import httpx2
import msgspec
import openai
import pytest
from openai import BaseModel, OpenAI
from openai.types.responses import ResponseStreamEvent

from dragoman.translate.hub.events import Ended, Failed, Started, Stop
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import EVENT_STREAM
from narrowing import expect
from replies import call
from tables import each_row
from translate.protocols.responses.responses_kit import (
    CLIENT,
    HELLO,
    STREAMS,
    client_over,
    encode_events,
    events_of,
    fixture,
    judge_reply,
    make_context,
    payloads,
)
from wire_json import JsonObject

ENDED = [name for name in STREAMS if isinstance(events_of(fixture(f"{name}.sse"))[-1], Ended)]
COMPLETED = [name for name in ENDED if name not in ("length", "filtered")]


def plain(item: BaseModel) -> JsonObject:
    """An item as it was sent, without what the SDK's parsing adds to it."""
    decoded = msgspec.json.decode(item.to_json(), type=JsonObject)
    decoded.pop("parsed_arguments", None)
    for part in decoded.get("content") or []:
        part.pop("parsed", None)
    return decoded


@each_row("name", COMPLETED)
def test_the_accumulator_ends_with_the_very_response_that_was_sent(name: str) -> None:
    stream = encode_events(events_of(fixture(f"{name}.sse")))
    sent = payloads(stream)[-1]["response"]
    got = judge_reply(stream)
    assert isinstance(sent, dict)
    assert [plain(item) for item in got.output] == sent["output"]
    assert got.id == sent["id"]
    assert (got.created_at, got.completed_at) == (1794700000, 1794700002)
    assert got.usage is not None
    assert got.usage.to_dict() == sent["usage"]


@each_row("name", ENDED)
def test_raw_events_validate_against_the_sdks_own_types(name: str) -> None:
    for event in read_raw(encode_events(events_of(fixture(f"{name}.sse")))):
        type(event).model_validate(event.to_dict())


def test_text_and_calls_accumulate_as_intended() -> None:
    got = judge_reply(encode_events(events_of(fixture("tools_interleaved.sse"))))
    assert got.output_text == "Let me look."
    assert [(item.call_id, item.name, item.arguments) for item in got.output if item.type == "function_call"] == [
        ("call_a", "weather", '{"city":"Paris"}'),
        ("call_b", "weather", '{"city":"Oslo"}'),
    ]


def test_reasoning_accumulates_with_its_encrypted_content() -> None:
    got = judge_reply(encode_events(events_of(fixture("reasoning.sse"))))
    thought = got.output[0]
    assert thought.type == "reasoning"
    assert [part.text for part in thought.summary] == ["**Plan**\n\nThen act."]
    assert thought.encrypted_content == "gAAAA-opaque-1"


def test_a_whole_body_reads_as_the_same_reply() -> None:
    events = events_of(fixture("tools_interleaved.sse"))
    client = client_over(CLIENT.encode_whole(events, make_context(), Ledger()), "application/json")
    whole = client.responses.create(model="gpt-x", input="hi")
    assert [plain(item) for item in whole.output] == [plain(item) for item in judge_reply(encode_events(events)).output]


def test_the_accumulators_deltas_add_up_to_the_done_events() -> None:
    text = ""
    for event in read_raw(encode_events(events_of(fixture("custom_call.sse")))):
        if event.type == "response.custom_tool_call_input.delta":
            text += event.delta
        elif event.type == "response.custom_tool_call_input.done":
            assert event.input == text
    assert text == "*** Begin Patch\n*** End Patch\n"


def read_raw(stream: bytes) -> list[ResponseStreamEvent]:
    return list(client_over(stream).responses.create(model="gpt-x", input="hi", stream=True))


def test_an_error_in_mid_stream_raises_with_its_code() -> None:
    with pytest.raises(openai.APIError) as raised:
        read_raw(encode_events([*HELLO[:3], Failed(Failure(Kind.OVERLOADED, "busy"))]))
    assert raised.value.code == "server_error"


def test_a_repaired_passthrough_raises_too() -> None:
    failure, started = Failure(Kind.TRUNCATED, "cut"), Started("resp_0f1e2d3c", "m")
    with pytest.raises(openai.APIError):
        read_raw(fixture("truncated.sse") + CLIENT.render_stream_error(failure, started, 5, EVENT_STREAM))


@each_row(
    ("kind", "error"),
    [
        (Kind.BAD_REQUEST, openai.BadRequestError),
        (Kind.CONTEXT_TOO_LONG, openai.BadRequestError),
        (Kind.AUTH, openai.AuthenticationError),
        (Kind.FORBIDDEN, openai.PermissionDeniedError),
        (Kind.NOT_FOUND, openai.NotFoundError),
        (Kind.CONFLICT, openai.ConflictError),
        (Kind.QUOTA, openai.RateLimitError),
        (Kind.RATE_LIMITED, openai.RateLimitError),
        (Kind.LIMITED, openai.RateLimitError),
        (Kind.SPENT, openai.RateLimitError),
        (Kind.OVERLOADED, openai.InternalServerError),
        (Kind.CREDENTIAL, openai.InternalServerError),
        (Kind.TIMEOUT, openai.InternalServerError),
        (Kind.BUG, openai.InternalServerError),
    ],
)
def test_a_rendered_failure_raises_the_right_class(kind: Kind, error: type[openai.APIStatusError]) -> None:
    rendered = CLIENT.render_error(Failure(kind, "why", at="/input/0/content"), "req_1")

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(rendered.status, content=rendered.body, headers={"content-type": "application/json"})

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    client = OpenAI(api_key="sk-fake-0", base_url="http://127.0.0.1:9/v1", http_client=http, max_retries=0)
    with pytest.raises(error) as raised:
        client.responses.create(model="gpt-x", input="hi")
    assert expect(dict, raised.value.body)["message"] == "why"
    assert raised.value.param == "input[0].content"


def test_a_call_that_was_cut_is_marked_incomplete_for_the_sdk() -> None:
    last = read_raw(encode_events([Started("", ""), *call(0, "f", '{"a'), Ended(Stop.LENGTH)]))[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details
    assert last.response.incomplete_details.reason == "max_output_tokens"
    item = last.response.output[0]
    assert item.type == "function_call"
    assert item.status == "incomplete"
