"""A cut tool call is completed with one request."""

import socket
from collections.abc import Callable

import msgspec
import pytest

from dragoman.net.headers import Header, Headers
from dragoman.proxy import complete_reply as step
from dragoman.proxy.complete_reply import (
    Completion,
    ask_for_rest,
    call_events,
    complete_arguments,
    complete_call,
    join_arguments,
)
from dragoman.proxy.prepared import Translated
from dragoman.translate.hub.events import CallBlock, Closed, Delta, Event, Opened, TruncatedCall, collect
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.request import Function, Reasoning, Request, Role, Sampling, Text, Turn
from dragoman.upstreams.provider import Attempt, ReplyRules, RequestRules
from fakes.kiro import make_framed, tail, tool, words
from fakes.upstream import Answer, End, FakeUpstream
from narrowing import expect, present
from outgoing import open_http
from proxy.in_memory import make_call, make_provider, prepare_for, run
from replies import END, START, call, text

BROKEN = Failure(Kind.LOST, "the connection broke")
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
CUT = TruncatedCall("call_1", "write", '{"path": "notes/to')
WHOLE = '{"path": "notes/today.md", "lines": 3}'
REQUEST = Request(
    "messages",
    "m",
    (Turn(Role.USER, (Text("Write my notes."),)),),
    tools=(Function("write", parameters=SCHEMA), Function("read")),
    reasoning=Reasoning("/thinking", effort="high"),
    sampling=Sampling(seed=7),
)


@pytest.mark.parametrize(("text", "before"), [("I will write.", "I will write.\n\n"), ("", "")])
def test_the_conversation_continues_with_the_cut_reply_as_text_and_a_request_for_its_rest(
    text: str, before: str
) -> None:
    request = ask_for_rest(REQUEST, text, CUT)
    assert request.turns[0] == REQUEST.turns[0]
    cut, instruction = request.turns[1:]
    assert (cut.role, instruction.role) == (Role.ASSISTANT, Role.USER)
    [shown], [send_request] = cut.parts, instruction.parts
    assert isinstance(shown, Text)
    assert shown.text.startswith(before)
    assert shown.text.endswith(CUT.arguments)
    assert "only the remaining characters" in expect(Text, send_request).text
    assert request.reasoning is None
    assert (request.tools, request.sampling.seed) == (REQUEST.tools, 7)


@pytest.mark.parametrize(
    ("events", "arguments"),
    [
        (text(0, 'day.md", "lin', 'es": 3}'), WHOLE),
        (text(0, f"```json\n{WHOLE}\n```"), WHOLE),
        (call(0, "write", WHOLE), WHOLE),
        ([*text(0, "Here it is:"), *call(1, "write", WHOLE)], WHOLE),
        (call(0, "read", WHOLE), None),
        (call(0, "write", '{"path": "notes/today.md"}'), None),  # the schema wants more
        (text(0, 'day.md", "lines": "three"}'), None),
        (text(0, "I am sorry."), None),
        ([], None),
    ],
    ids=[
        "the rest as text",
        "fenced",
        "a fresh call",
        "a fresh call after words",
        "of another tool",
        "not all of it",
        "of another type",
        "an excuse",
        "nothing",
    ],
)
def test_what_of_an_answer_completes_the_arguments(events: list[Event], arguments: str | None) -> None:
    assert complete_arguments(REQUEST, CUT, collect([START, *events, END])) == arguments


def test_a_completed_call_is_a_block_of_its_own() -> None:
    assert call_events(3, CUT, WHOLE) == (Opened(3, CallBlock("call_1", "write")), Delta(3, WHOLE), Closed(3))


# Over a real socket

BODY = msgspec.json.encode(
    {
        "model": "m",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "Write my notes."}],
        "tools": [{"name": "write", "input_schema": SCHEMA}],
    }
)


def describe(request: Callable[[], Request], headers: Headers, trial: Attempt) -> tuple[Header, ...]:
    return ((b"x-invocation", trial.id.encode()),)


def complete(*answers: Answer) -> tuple[Completion, FakeUpstream, Translated]:
    async def send_request() -> tuple[Completion, Translated]:
        async with open_http() as client:
            provider = make_provider(
                protocols=("kiro",),
                url=fake.url,
                send=client.send,
                requests=RequestRules(headers=describe),
                replies=ReplyRules(withholds_cut_calls=True),
            )
            prepared = await prepare_for(make_call("messages", BODY), provider)
            assert isinstance(prepared, Translated)
            return await complete_call(prepared, "I will write.", CUT), prepared

    with FakeUpstream(list(answers)) as fake:
        completion, prepared = run(send_request())
        return completion, fake, prepared


@pytest.mark.parametrize(
    "answer",
    [
        make_framed(words('day.md", "lines": 3}'), tail()),
        make_framed(tool("t9", "write", input=WHOLE, stop=True), tail("TOOL_USE")),
        make_framed(words('day.md", "lines": 3}'), tail(), cut=7),
    ],
    ids=["as text", "as a call", "in small pieces"],
)
def test_the_rest_is_requested_once_and_its_usage_reported(answer: Answer) -> None:
    completion, fake, prepared = complete(answer)
    assert msgspec.json.decode(present(completion.arguments)) == msgspec.json.decode(WHOLE)
    assert completion.usage is not None
    [request] = fake.calls
    content = request.json["conversationState"]["currentMessage"]["userInputMessage"]["content"]
    assert "only the remaining characters" in content
    assert request.path == prepared.out.url.partition(str(fake.port))[2]


def test_it_is_another_request_with_an_id_of_its_own_that_a_replay_repeats() -> None:
    ids = []
    for _ in range(2):
        _, fake, prepared = complete(make_framed(words("?"), tail()))
        ids.append(fake.calls[0].headers["x-invocation"])
        assert dict(prepared.out.headers)[b"x-invocation"].decode() != ids[-1]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b'{"message":"no"}', status=500, content_type="application/json"),
        make_framed(words('day.md", '), end=End.CUT),
        Answer(headless=True, end=End.RESET),
        make_framed(words("I am sorry."), tail()),
    ],
    ids=["an error", "cut in the middle", "no answer", "an excuse"],
)
def test_without_a_usable_answer_the_call_stays_cut(answer: Answer) -> None:
    completion, fake, _ = complete(answer)
    assert completion.arguments is None
    assert len(fake.calls) == 1


def test_an_answer_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "TIMEOUT_S", 0.2)
    completion, _, _ = complete(make_framed(words("day"), end=End.HANG))
    assert completion == Completion()


def test_an_answer_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_BYTES", 100)
    completion, _, _ = complete(make_framed(words("x" * 200), tail()))
    assert completion == Completion()


# The rest of a cut tool call, in the forms in which models send it

BEGUN = '{"path": "notes/to'


@pytest.mark.parametrize(
    "rest",
    [
        'day.md", "lines": 3}',
        '\n day.md", "lines": 3}\n'.strip(),
        '```json\nday.md", "lines": 3}\n```',
        'notes/today.md", "lines": 3}',  # with the last words repeated
        WHOLE,  # all over again
        f"```\n{WHOLE}\n```",
        'Here is the rest:\n\n```json\nday.md", "lines": 3}\n```\nDone.',
    ],
)
def test_the_rest_completes_the_arguments(rest: str) -> None:
    assert join_arguments(BEGUN, rest, SCHEMA) == WHOLE


@pytest.mark.parametrize(
    "rest",
    ['day.md", "lines": "three"}', 'day.md"}', "I am sorry, I cannot.", 'day.md", "lines": 3', ""],
    ids=["wrong type", "a required field is missing", "prose", "cut again", "nothing"],
)
def test_what_the_schema_does_not_accept_is_not_used(rest: str) -> None:
    assert join_arguments(BEGUN, rest, SCHEMA) is None


def test_a_tool_without_a_schema_takes_any_object() -> None:
    assert join_arguments('{"a":', "1}", None) == '{"a":1}'
    assert join_arguments("[1,", "2]", None) is None


def test_a_schema_that_points_elsewhere_is_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        schema = {"type": "object", "properties": {"a": {"$ref": f"http://127.0.0.1:{port}/schema"}}}
        assert join_arguments('{"a":', "1}", schema) == '{"a":1}'
        with pytest.raises(TimeoutError):
            listener.accept()
