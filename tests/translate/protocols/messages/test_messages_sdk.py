"""The official SDK reads what the encoder writes and must end with the intended reply."""

from collections.abc import Callable

import anthropic
import httpx2
import pytest
from anthropic.types import Message, ToolUseBlock
from anthropic.types.beta import BetaMessage

from dragoman.translate.hub.events import Ended, Event, Failed
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from narrowing import expect
from replies import START, text
from tables import each_row
from translate.protocols.messages.messages_dialogue import CLIENT, STREAMS, decode, encode, fixture, make_context, whole
from wire_json import JsonObject

ASK: JsonObject = {"model": "claude-asked", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
FINISHED = [name for name in STREAMS if isinstance(decode(fixture(f"{name}.sse"))[-1], Ended)]


def client(answer: Callable[[], httpx2.Response]) -> anthropic.Anthropic:
    transport = httpx2.MockTransport(lambda request: answer())
    http = httpx2.Client(transport=transport)
    return anthropic.Anthropic(api_key="sk-fake-key", base_url="http://127.0.0.1:1", http_client=http, max_retries=0)


def make_stream_client(stream: bytes) -> anthropic.Anthropic:
    return client(lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream))


def make_client(status: int, body: bytes) -> anthropic.Anthropic:
    return client(lambda: httpx2.Response(status, headers={"content-type": "application/json"}, content=body))


def plain(value: object) -> object:
    """Without what is null or empty: the SDK fills in such fields."""
    if isinstance(value, dict):
        kept = {key: plain(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, [], {})}
    return [plain(item) for item in value] if isinstance(value, list) else value


def content_of(message: Message | BetaMessage) -> object:
    return plain([block.model_dump() for block in message.content])


@each_row("name", [name for name in FINISHED if name != "cut_arguments"])
@each_row("beta", [False, True])
def test_the_sdk_assembles_the_reply_that_was_intended(name: str, beta: bool) -> None:
    events = decode(fixture(f"{name}.sse"))
    sdk = make_stream_client(encode(events))
    messages = sdk.beta.messages if beta else sdk.messages
    with messages.stream(**ASK) as stream:
        message = stream.get_final_message()
    expected = whole(events)
    assert content_of(message) == plain(expected["content"])
    assert (message.stop_reason, message.stop_sequence) == (expected["stop_reason"], expected["stop_sequence"])
    assert (message.model, message.role, message.type) == ("claude-asked", "assistant", "message")
    counted = message.usage.model_dump()
    usage = expected["usage"]
    assert isinstance(usage, dict)
    assert {key: counted[key] for key in usage if key != "cache_creation"} == {
        key: value for key, value in usage.items() if key != "cache_creation"
    }


def test_the_sdk_reads_cut_off_arguments_as_far_as_they_go() -> None:
    with make_stream_client(encode(decode(fixture("cut_arguments.sse")))).messages.stream(**ASK) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    assert message.content[0].model_dump()["input"] == {"path": "a.txt"}


def test_the_sdk_reads_the_whole_reply() -> None:
    events = decode(fixture("tools.sse"))
    message = make_client(200, CLIENT.encode_whole(events, make_context(), Ledger())).messages.create(**ASK)
    assert expect(ToolUseBlock, message.content[1]).input == {"city": "Zürich"}
    assert message.stop_reason == "tool_use"


def test_an_error_in_mid_stream_is_the_sdks_exception() -> None:
    events: list[Event] = [START, *text(0, "Half"), Failed(Failure(Kind.OVERLOADED, "busy"))]
    with (
        pytest.raises(anthropic.APIStatusError, match="busy"),
        make_stream_client(encode(events)).messages.stream(**ASK) as stream,
    ):
        stream.get_final_message()


@each_row(
    ("kind", "exception"),
    [
        (Kind.BAD_REQUEST, anthropic.BadRequestError),
        (Kind.AUTH, anthropic.AuthenticationError),
        (Kind.FORBIDDEN, anthropic.PermissionDeniedError),
        (Kind.NOT_FOUND, anthropic.NotFoundError),
        (Kind.CONFLICT, anthropic.ConflictError),
        (Kind.RATE_LIMITED, anthropic.RateLimitError),
        (Kind.CONTEXT_TOO_LONG, anthropic.BadRequestError),
        (Kind.CREDENTIAL, anthropic.InternalServerError),
        (Kind.OVERLOADED, anthropic.InternalServerError),
        (Kind.TIMEOUT, anthropic.InternalServerError),
        (Kind.BUG, anthropic.InternalServerError),
    ],
)
def test_every_failure_is_the_right_exception_of_the_sdk(kind: Kind, exception: type[Exception]) -> None:
    rendered = CLIENT.render_error(Failure(kind, "why"), "req_1")
    with pytest.raises(exception, match="why"):
        make_client(rendered.status, rendered.body).messages.create(**ASK)
