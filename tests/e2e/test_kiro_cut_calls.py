"""Tool calls that Kiro cuts: the rest is requested in the same turn, or the next turn names what was lost."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import anthropic
import msgspec
import pytest
from anthropic.types import MessageParam, ToolParam

from asking import EXPLAIN
from asking import ask as send_body
from dragoman.translate.hub.usage import UsageSource
from dragoman.translate.profiles.token_count import count_text
from e2e.account_rig import KiroRig, run_kiro
from fakes.kiro import make_framed, tail, tool, words
from fakes.upstream import Answer, End, Gate
from raw_http import dial, request_bytes
from tables import each_row
from waiting import wait_until

MODEL = "kiro/claude-sonnet-4.5"
WRITE: ToolParam = {
    "name": "write",
    "description": "Writes a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path", "lines"],
    },
}
CUT = make_framed(words("I will write it."), tool("t1", "write", input='{"path": "notes/to'))
QUESTION: MessageParam = {"role": "user", "content": "Write my notes."}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KiroRig]:
    with run_kiro(tmp_path_factory.mktemp("mending")) as shared:
        shared.gateway.settle()
        yield shared


def ask(rig: KiroRig, *messages: MessageParam, model: str = MODEL) -> anthropic.types.Message:
    with rig.sdk.anthropic.messages.stream(
        model=model,
        max_tokens=1000,
        tools=[WRITE],
        messages=list(messages or (QUESTION,)),
    ) as stream:
        return stream.get_final_message()


def current(rig: KiroRig, index: int) -> str:
    """Return the text of the last user message of a request to Kiro."""
    state = msgspec.json.decode(rig.fake.chats[index].body)["conversationState"]
    return str(state["currentMessage"]["userInputMessage"]["content"])


@pytest.mark.parametrize(
    "rest",
    [
        make_framed(words('day.md", '), words('"lines": 3}'), tail()),
        make_framed(words('```json\nday.md", "lines": 3}\n```'), tail()),
        make_framed(tool("t9", "write", input='{"path": "notes/today.md", "lines": 3}', stop=True), tail()),
        make_framed(words('[Called write with args: {"path": "notes/today.md", "lines": 3}]'), tail()),
        make_framed(words("<thinking>Where was I?</thinking>\n\n"), words('day.md", "lines": 3}'), tail()),
    ],
    ids=["as text", "as fenced text", "as a fresh call", "as a call written into the text", "after tagged thoughts"],
)
def test_the_missing_arguments_are_requested_once_and_the_call_is_complete(rig: KiroRig, rest: Answer) -> None:
    rig.play(CUT, rest)
    message = ask(rig)
    text, call = message.content
    assert isinstance(text, anthropic.types.TextBlock)
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (text.text, call.name, call.input) == ("I will write it.", "write", {"path": "notes/today.md", "lines": 3})
    assert message.stop_reason == "tool_use"
    assert len(rig.fake.chats) == 2
    assert "only the remaining characters" in current(rig, 1)
    request = rig.fake.chats[1].body.decode()
    assert "I will write it." in request
    assert "notes/to" in request


def test_the_request_for_missing_arguments_disables_thinking(rig: KiroRig) -> None:
    rig.play(CUT, make_framed(words('day.md", "lines": 3}'), tail()))
    message = rig.sdk.anthropic.messages.create(
        model=MODEL,
        max_tokens=9000,
        thinking={"type": "enabled", "budget_tokens": 4000},
        tools=[WRITE],
        messages=[QUESTION],
    )
    assert message.stop_reason == "tool_use"
    assert ["<thinking_mode>" in chat.body.decode() for chat in rig.fake.chats] == [True, False]


def test_the_request_for_missing_arguments_is_a_separate_request(rig: KiroRig) -> None:
    rig.play(CUT, make_framed(words('day.md", "lines": 3}'), tail()))
    assert ask(rig).stop_reason == "tool_use"
    first, second = rig.fake.chats
    assert first.headers["amz-sdk-invocation-id"] != second.headers["amz-sdk-invocation-id"]
    assert first.headers["amz-sdk-request"] == second.headers["amz-sdk-request"] == "attempt=1; max=3"


@pytest.mark.parametrize(
    "rest",
    [
        make_framed(words('day.md", "lines": "three"}'), tail()),
        make_framed(words("I would rather not."), tail()),
        make_framed(words('day.md", "lin'), tail()),
        Answer(b"{}", status=500, content_type="application/json"),
    ],
    ids=["against the schema", "prose", "cut again", "an error"],
)
def test_missing_arguments_that_do_not_fit_are_not_used(rig: KiroRig, rest: Answer) -> None:
    rig.play(CUT, rest)
    message = ask(rig)
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "max_tokens"
    assert len(rig.fake.chats) == 2


@pytest.mark.parametrize(
    "rest", [words('day.md", "lines": 3}'), words("I would rather not.")], ids=["mended", "in vain"]
)
@pytest.mark.parametrize("first", [b"", tail(percentage=1.0)], ids=["its tail cut too", "with its tail"])
def test_the_usage_of_both_requests_counts_whatever_the_second_returned(
    rig: KiroRig, first: bytes, rest: bytes
) -> None:
    cut = make_framed(words("I will write it."), tool("t1", "write", input='{"path": "notes/to'), first)
    rig.play(cut, make_framed(rest, tail(percentage=2.0)))
    ask(rig)
    outcome = rig.gateway.outcome(rig.sdk.headers["x-request-id"])
    assert (outcome.outcome, outcome.attempts) == ("ok", 2)
    usage = outcome.usage
    assert usage is not None
    assert usage.credits == pytest.approx(0.02 if first else 0.01)
    if first:
        assert (usage.input + usage.output, usage.source) == (6000, UsageSource.DERIVED)
    else:  # what the first one used is estimated
        assert usage.input + usage.output > 4000
        assert usage.source is UsageSource.ESTIMATED


def test_counts_that_only_the_second_request_reported_are_not_those_of_both(rig: KiroRig) -> None:
    rig.play(CUT, make_framed(words('day.md", "lines": 3}'), tail(uncachedInputTokens=900, outputTokens=30)))
    message = ask(rig)
    usage = rig.gateway.outcome(rig.sdk.headers["x-request-id"]).usage
    assert usage is not None
    assert usage.source is UsageSource.ESTIMATED
    assert usage.input > 900
    assert usage.output >= 30 + count_text("I will write it.") + count_text('{"path": "notes/to')
    assert (message.usage.input_tokens, message.usage.output_tokens) == (usage.input, usage.output)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [b"", tail(percentage=1.0)], ids=["its tail cut too", "with its tail"])
def test_a_client_that_leaves_while_the_rest_is_awaited_is_gone(rig: KiroRig, first: bytes, stream: bool) -> None:
    cut = make_framed(words("I will write it."), tool("t1", "write", input='{"path": "notes/to'), first)
    rig.play(cut, Answer(headless=True, end=End.HANG))
    question = {"model": MODEL, "max_tokens": 1000, "stream": stream, "tools": [WRITE], "messages": [QUESTION]}
    name = f"left-{stream}-{len(first)}"
    with dial(rig.gateway.port) as sock:
        sock.sendall(request_bytes("/v1/messages", msgspec.json.encode(question), f"x-request-id: {name}"))
        wait_until(lambda: len(rig.fake.chats) == 2)
    outcome = rig.gateway.outcome(name)
    assert (outcome.outcome, outcome.error_code, outcome.attempts) == ("client_gone", None, 2)
    assert outcome.usage is not None
    if first:
        assert outcome.usage.input + outcome.usage.output == 2000
    assert outcome.usage.output >= count_text("I will write it.")


def test_the_next_request_of_the_conversation_names_the_lost_call(rig: KiroRig) -> None:
    question: MessageParam = {"role": "user", "content": "Write my diary."}
    rig.play(CUT, make_framed(words("No."), tail()), make_framed(words("Sorry."), tail()))
    first = ask(rig, question)
    assert first.stop_reason == "max_tokens"
    reply_text: MessageParam = {"role": "assistant", "content": "I will write it."}
    ask(rig, question, reply_text, {"role": "user", "content": "Well?"})
    found = current(rig, 2)
    assert "Well?" in found
    assert "'write'" in found
    assert '{"path": "notes/to' in found
    ask(rig, {"role": "user", "content": "Another matter."})
    assert "notes/to" not in rig.fake.chats[3].body.decode()


WHOLE = '{"path": "a", "lines": 1}'
SHORT = '{"path": "a", "li'


def version(arguments: object, *, stop: bool) -> bytes:
    """Return one version of a call; Kiro may send the same call several times."""
    return tool("t1", "write", input=arguments, **({"stop": True} if stop else {}))


@each_row(
    ("order", "versions", "losses"),
    [
        ("complete, complete", version(WHOLE, stop=True) + version(WHOLE, stop=True), []),
        ("complete, incomplete", version(WHOLE, stop=True) + version(SHORT, stop=True), []),
        ("empty, complete", version("", stop=True) + version(WHOLE, stop=True), []),
        ("incomplete, complete as an object", version(SHORT, stop=False) + version(json.loads(WHOLE), stop=True), []),
        ("incomplete, complete", version(SHORT, stop=True) + version(WHOLE, stop=True), []),
        ("incomplete without a stop, complete", version(SHORT, stop=False) + version(WHOLE, stop=True), []),
        ("complete without a stop, complete", version(WHOLE, stop=False) + version(WHOLE, stop=True), []),
        (  # what was sent cannot be taken back
            "complete, complete with other arguments",
            version(WHOLE, stop=True) + version(WHOLE.replace("1", "200"), stop=True),
            [("/toolUses/t1", "dropped")],
        ),
    ],
)
def test_the_most_complete_version_of_a_repeated_call_is_made_once(
    rig: KiroRig, order: str, versions: bytes, losses: list[tuple[str, str]]
) -> None:
    rig.play(make_framed(words("I will write it."), versions, tail()))
    function = {"name": "write", "description": "Writes a file.", "parameters": WRITE["input_schema"]}
    tools = [{"type": "function", "function": function}]
    reply = send_body(rig.gateway, "chat", MODEL, headers=EXPLAIN, tools=tools)
    (choice,) = reply.json["choices"]
    calls = [json.loads(call["function"]["arguments"]) for call in choice["message"].get("tool_calls", ())]
    assert (calls, choice["finish_reason"]) == ([json.loads(WHOLE)], "tool_calls")
    assert len(rig.fake.chats) == 1
    assert reply.losses == losses


def test_without_repair_no_further_request_is_made(rig: KiroRig) -> None:
    rig.play(CUT)
    assert ask(rig, model="plain/claude-sonnet-4.5").stop_reason == "max_tokens"
    assert len(rig.fake.chats) == 1


def test_the_client_gets_keep_alives_while_a_call_is_completed(tmp_path: Path) -> None:
    """While the arguments come, and while their rest is awaited; no first token is awaited for that."""
    begun, awaited = threading.Event(), threading.Event()
    cut = make_framed(tool("t1", "write"), tool("t1", input='{"path": "notes/to'), gate=Gate(begun, at=150), cut=150)
    rest = make_framed(words('day.md", "lines": 3}'), tail(), gate=Gate(awaited, at=-1))
    settings = "[server]\nkeep_alive_s = 0.05\nfirst_token_timeout_s = 1\n"
    with run_kiro(tmp_path, settings=settings) as rig:
        rig.play(cut, rest)
        question = {"model": MODEL, "max_tokens": 1000, "stream": True, "tools": [WRITE], "messages": [QUESTION]}
        seen = b""
        with dial(rig.gateway.port) as sock:
            sock.sendall(request_bytes("/v1/messages", msgspec.json.encode(question)))
            for pings, gate in ((2, begun), (30, awaited)):  # 30 of them take longer than a first token may
                while seen.count(b"event: ping") < pings:
                    seen += (piece := sock.recv(65536))
                    assert piece, seen
                gate.set()
            while b"event: message_stop" not in seen:
                seen += (piece := sock.recv(65536))
                assert piece, seen
        assert rig.fake.counts["/generateAssistantResponse"] == 2
    assert b'"stop_reason":"tool_use"' in seen
    assert b"notes/today.md" in seen
