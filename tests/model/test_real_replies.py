"""A real model's replies in every client's protocol: words, ends, usage, calls, schemas and cuts."""

import threading
from collections.abc import Callable

import anthropic
import msgspec
import openai
import pytest

from model.sdk_requests import PROTOCOLS, Broken, Question, SdkReply, Sdks

Show = Callable[[object], None]

SUN = "Tell me in one short sentence what the sun is."
CAP = 12
CAPPED = {"messages": "max_tokens", "responses": "max_output_tokens", "chat": "length"}
ENDED = {"messages": "end_turn", "responses": "completed", "chat": "stop"}
CALLED = {"messages": "tool_use", "responses": "completed", "chat": "tool_calls"}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
# No free text: the server's grammar lets it hold line ends, which JSON does not.
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "London"]}}, "required": ["city"]}

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
whole_and_streaming = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])


class Pieces:
    """Counts the pieces of a stream; at one of them, something else is done."""

    def __init__(self, at: int = 0, do: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._at = at
        self._do = do

    def __call__(self) -> None:
        self.count += 1
        if self.count == self._at:
            self._do()


def fetch_reply(sdks: Sdks, protocol: str, streaming: bool, question: Question) -> tuple[SdkReply, int]:
    pieces = Pieces()
    return PROTOCOLS[protocol](sdks, question, pieces if streaming else None), pieces.count


def is_near(counted: int, true: int) -> bool:
    """The gateway estimates with a tokeniser that is not the model's."""
    return true / 2 <= counted <= true * 2


@every_protocol
@whole_and_streaming
def test_a_reply_stops_at_the_cap_with_that_reason(sdks: Sdks, protocol: str, streaming: bool, show: Show) -> None:
    reply, pieces = fetch_reply(sdks, protocol, streaming, Question(SUN, cap=CAP))
    show(reply)
    assert reply.text
    assert reply.stop == CAPPED[protocol]
    assert pieces >= CAP // 2 or not streaming, "real tokens come one by one"
    if not streaming:
        assert reply.output == CAP, "the server tells the usage of whole replies"


@every_protocol
@whole_and_streaming
def test_a_complete_reply_has_that_stop_reason(sdks: Sdks, protocol: str, streaming: bool, show: Show) -> None:
    reply, _ = fetch_reply(sdks, protocol, streaming, Question(SUN))
    show(reply)
    assert "sun" in reply.text.lower()
    assert reply.stop == ENDED[protocol]


@every_protocol
def test_usage_that_a_stream_does_not_report_is_estimated(sdks: Sdks, protocol: str, show: Show) -> None:
    expected, _ = fetch_reply(sdks, protocol, False, Question(SUN))
    estimated, _ = fetch_reply(sdks, protocol, True, Question(SUN))
    show(f"reported {expected.input}+{expected.output}, estimated {estimated.input}+{estimated.output}")
    assert estimated.text == expected.text
    assert is_near(estimated.output, expected.output)
    assert estimated.input > 0


@every_protocol
@whole_and_streaming
def test_a_call_that_is_forced_is_made_once(sdks: Sdks, protocol: str, streaming: bool, show: Show) -> None:
    question = Question("What will the weather be in Paris in the next 3 days?", tool="get_weather", schema=WEATHER)
    reply, pieces = fetch_reply(sdks, protocol, streaming, question)
    show(reply)
    ((name, arguments),) = reply.calls
    assert name == "get_weather"
    assert set(msgspec.json.decode(arguments, type=dict[str, object])) == {"city", "days"}
    assert reply.stop == CALLED[protocol]
    assert pieces > 1 or not streaming


@every_protocol
@whole_and_streaming
def test_a_reply_follows_its_schema(sdks: Sdks, protocol: str, streaming: bool, show: Show) -> None:
    reply, _ = fetch_reply(sdks, protocol, streaming, Question("Which city is the capital of France?", schema=CITY))
    show(reply)
    assert msgspec.json.decode(reply.text) in ({"city": "Paris"}, {"city": "London"})


def status_of(error: BaseException) -> int:
    assert isinstance(error, anthropic.APIStatusError | openai.APIStatusError)
    return error.status_code


@every_protocol
@whole_and_streaming
def test_a_server_that_fails_at_a_schema_is_an_upstream_error(sdks: Sdks, protocol: str, streaming: bool) -> None:
    """Use the section without quirks."""
    with pytest.raises((anthropic.InternalServerError, openai.InternalServerError)) as refused:
        fetch_reply(sdks, protocol, streaming, Question("Where?", schema=CITY, model="plain/smollm2"))
    assert status_of(refused.value) == 500


@every_protocol
def test_a_stream_that_another_request_cuts_is_never_taken_for_whole(sdks: Sdks, protocol: str, show: Show) -> None:
    intruder: list[SdkReply] = []

    def intrude() -> None:
        other = Question("Say hello.", cap=5)
        thread = threading.Thread(target=lambda: intruder.append(PROTOCOLS["chat"](sdks, other, None)))
        thread.start()
        thread.join()

    pieces = Pieces(at=5, do=intrude)
    with pytest.raises((anthropic.APIError, openai.APIError, Broken)) as cut:
        PROTOCOLS[protocol](sdks, Question("Write a long story about a dragon and a knight.", cap=1500), pieces)
    show(f"cut after {pieces.count} pieces: {cut.value!r}")
    assert intruder[0].text
    assert pieces.count >= 5


@every_protocol
@whole_and_streaming
def test_a_prompt_that_does_not_fit_is_refused(sdks: Sdks, protocol: str, streaming: bool, show: Show) -> None:
    """For a whole reply the server reports the reason; a stream is empty, which is not a reply either."""
    with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as refused:
        fetch_reply(sdks, protocol, streaming, Question("dragon " * 5000))
    show(refused.value)
    assert status_of(refused.value) == (502 if streaming else 400)
