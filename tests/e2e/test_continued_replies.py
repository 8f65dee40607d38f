"""If so configured, a stream that breaks off after text is continued by the next target, as one correct reply."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import pytest

from asking import make_body
from dragoman.proxy.outcome import CLIENT_GONE, FailedAttempt
from dragoman.translate.hub.usage import UsageSource
from e2e.cases import WEATHER, request_for
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running
from raw_http import request_bytes
from rig import PATHS, PROTOCOLS
from scripting import write_reply
from scripting.replies import Ending, ScriptedReply, Stop, Text, Tokens, ToolCall
from sdk_replies import STREAMS, Broke, Halted, Sdk, SdkReply
from waiting import wait_until

SETTINGS = """
[retry]
attempts = 1
continue_streams = true
[[models]]
name = "three"
to = ["one/vendor-model", "two/vendor-model", "three/vendor-model"]
"""
IMPATIENT = "[server]\nidle_timeout_s = 0.3\n"
AFTER_STOP = {"chat": b"data: {", "messages": b"event: message_stop", "responses": b"event: response.completed"}
BEGUN, MORE, REST = "It was a dark and stormy night; ", "the rain fell in torrents, ", "except at intervals."


@dataclass
class Relay:
    gateway: Running
    fakes: tuple[FakeUpstream, ...]
    speaks: tuple[str, ...]
    sdk: Sdk

    def play(self, *answers: Answer) -> None:
        for fake in self.fakes:
            fake.requests.clear()
        for fake, answer in zip(self.fakes, answers, strict=False):
            fake.answers = [answer]

    @property
    def calls(self) -> list[int]:
        return [len(fake.calls) for fake in self.fakes]


@pytest.fixture(scope="module", params=PROTOCOLS)
def relay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with run_relay(tmp_path_factory.mktemp("gateway"), request.param) as shared:
        yield shared


@pytest.fixture(params=[1, pytest.param(0, marks=pytest.mark.rest), pytest.param(2, marks=pytest.mark.rest)])
def client(request: pytest.FixtureRequest, relay: Relay) -> str:
    """A client of the protocol that the second target speaks; the other two in `make test-rest`."""
    return relay.speaks[int(request.param)]


@contextmanager
def run_relay(directory: Path, first: str, settings: str = "") -> Iterator[Relay]:
    """Three targets of three protocols, beginning with this one."""
    turn = PROTOCOLS.index(first)
    speaks = (*PROTOCOLS[turn:], *PROTOCOLS[:turn])
    with ExitStack() as stack:
        fakes = tuple(stack.enter_context(FakeUpstream()) for _ in speaks)
        names = ("one", "two", "three")
        sections = [
            provider_section(protocol, fake.url, name)
            for protocol, fake, name in zip(speaks, fakes, names, strict=True)
        ]
        gateway = stack.enter_context(running("\n".join([settings + SETTINGS, *sections]), directory))
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield Relay(gateway, fakes, speaks, sdk)


def make_reply(protocol: str, text: str, ending: Ending = Ending.PROPER) -> Answer:
    return write_reply(protocol, ScriptedReply((Text(text),), ending=ending))


def make_broken_reply(protocol: str, text: str, end: End) -> Answer:
    """Its words, and then not even the next event."""
    return write_reply(protocol, ScriptedReply((Text(text),), ending=Ending.NONE), end=end)


def read_reply(relay: Relay, client: str) -> SdkReply | Broke:
    reply = STREAMS[client][0](relay.sdk, request_for(client, "three"))
    assert not isinstance(reply, Halted), reply
    return reply


def test_a_broken_stream_is_continued_by_another_target(relay: Relay) -> None:
    one, two, _ = relay.speaks
    for row in product(PROTOCOLS, (End.CLEAN, End.CUT, End.RESET)):
        client, end = row
        relay.play(make_broken_reply(one, BEGUN, end), make_reply(two, MORE + REST))
        reply = read_reply(relay, client)
        assert isinstance(reply, SdkReply), (row, reply)
        assert reply.text == BEGUN + MORE + REST, row
        assert reply.stop in ("stop", "end_turn", "completed"), row
        assert relay.calls == [1, 1, 0], row


@pytest.mark.parametrize("first", PROTOCOLS)
def test_a_stream_that_stalls_is_continued_by_another_target(tmp_path: Path, first: str) -> None:
    """For a client of each protocol at the same time."""
    with run_relay(tmp_path, first, IMPATIENT) as relay, ThreadPoolExecutor(len(PROTOCOLS)) as pool:
        one, two, _ = relay.speaks
        relay.play(make_broken_reply(one, BEGUN, End.HANG), make_reply(two, MORE + REST))
        for reply in pool.map(lambda client: read_reply(relay, client), PROTOCOLS):
            assert isinstance(reply, SdkReply), reply
            assert reply.text == BEGUN + MORE + REST
            assert reply.stop in ("stop", "end_turn", "completed")
        assert relay.calls == [3, 3, 0]


def test_a_stream_with_an_error_in_its_middle_is_continued_by_another_target(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    relay.play(make_reply(one, BEGUN, ending=Ending.ERROR), make_reply(two, REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == BEGUN + REST


def test_a_reply_is_continued_twice(relay: Relay, client: str) -> None:
    one, two, three = relay.speaks
    relay.play(make_broken_reply(one, BEGUN, End.CUT), make_broken_reply(two, MORE, End.CUT), make_reply(three, REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == BEGUN + MORE + REST
    outcome = relay.gateway.outcome(relay.sdk.headers["x-request-id"])
    assert outcome.route == "three/vendor-model"
    assert [step.route for step in outcome.failed_attempts] == ["one/vendor-model", "two/vendor-model"]


def test_the_next_target_gets_the_text_so_far(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    relay.play(make_broken_reply(one, BEGUN, End.CUT), make_reply(two, REST))
    read_reply(relay, client)
    assert BEGUN.strip().encode() in relay.fakes[1].calls[0].body
    assert BEGUN.strip().encode() not in relay.fakes[0].calls[0].body


def test_usage_of_all_upstreams_is_summed_and_marked_as_estimated(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    relay.play(make_broken_reply(one, BEGUN, End.CUT), make_reply(two, REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.tokens is not None
    last = Tokens()
    assert reply.tokens.input > last.input
    assert reply.tokens.output > last.output
    usage = relay.gateway.outcome(relay.sdk.headers["x-request-id"]).usage
    assert usage is not None
    assert (usage.input, usage.output) == (reply.tokens.input, reply.tokens.output)
    assert usage.source is UsageSource.ESTIMATED


def test_without_a_continuation_only_the_actual_usage_is_reported(relay: Relay, client: str) -> None:
    refuses = Answer(b'{"error": {"message": "no"}}', status=401, content_type="application/json")
    used = []
    for others in ((make_reply(relay.speaks[1], REST), refuses), (refuses, refuses)):
        relay.play(make_broken_reply(relay.speaks[0], BEGUN, End.CUT), *others)
        read_reply(relay, client)
        usage = relay.gateway.outcome(relay.sdk.headers["x-request-id"]).usage
        assert usage is not None
        used.append(usage.output)
    assert 0 < used[1] < used[0]


def test_a_reply_that_lacks_only_the_end_of_its_stream_is_not_continued(relay: Relay, client: str) -> None:
    """The text is complete, so nothing may be added. Only Responses has no stop before its end."""
    one, two, _ = relay.speaks
    stream = make_reply(one, BEGUN).body
    relay.play(Answer(stream[: stream.rindex(AFTER_STOP[one])], end=End.CUT), make_reply(two, REST))
    reply = read_reply(relay, client)
    if one == "responses":
        assert relay.calls == [1, 1, 0]
        return
    assert isinstance(reply, SdkReply if one == "chat" else Broke), reply
    assert reply.text == BEGUN
    assert relay.calls == [1, 0, 0]


def test_a_continuation_may_end_with_a_tool_call(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    calls = write_reply(two, [Text(REST), WEATHER])
    relay.play(make_broken_reply(one, BEGUN, End.CUT), calls)
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == BEGUN + REST
    assert [name for _, name, _ in reply.calls] == [WEATHER.name]


def test_a_continuation_may_have_nothing_to_add(relay: Relay, client: str, caplog: pytest.LogCaptureFixture) -> None:
    one, two, _ = relay.speaks
    trips = relay.gateway.app.gateway.guard_trips
    for has_marker, calls in ((True, []), (False, [WEATHER]), (True, [WEATHER])):

        def add_little(
            sent_request: ReceivedRequest, has_marker: bool = has_marker, calls: list[ToolCall] = calls
        ) -> Answer:
            return write_reply(two, [*([Text(marker_in(sent_request.body))] if has_marker else []), *calls])

        relay.play(make_broken_reply(one, BEGUN, End.CUT))
        relay.fakes[1].choose = add_little
        try:
            reply = read_reply(relay, client)
        finally:
            relay.fakes[1].choose = None
        assert isinstance(reply, SdkReply), (has_marker, calls, reply)
        assert (reply.text, len(reply.calls)) == (BEGUN, len(calls)), (has_marker, calls)
    assert relay.gateway.app.gateway.guard_trips == trips
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_blanks_are_no_beginning_that_a_vendor_would_take(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    relay.play(make_broken_reply(one, "\n\n", End.CUT), make_reply(two, REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == "\n\n" + REST
    assert b"interrupted" not in relay.fakes[1].calls[0].body


def test_without_a_continuation_the_first_failure_is_reported(
    relay: Relay, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    refuses = Answer(b'{"error": {"message": "no"}}', status=401, content_type="application/json")
    relay.play(make_broken_reply(relay.speaks[0], BEGUN, End.CUT), refuses, refuses)
    reply = read_reply(relay, client)
    assert isinstance(reply, Broke), reply
    assert reply.text == BEGUN
    assert relay.calls == [1, 1, 1]
    outcome = relay.gateway.outcome(relay.sdk.headers["x-request-id"])
    assert outcome.outcome in ("lost", "truncated")  # the others would be at fault with their credentials
    assert outcome.attempts == 3
    assert outcome.failed_attempts[1:] == (
        FailedAttempt("two/vendor-model", "credential"),
        FailedAttempt("three/vendor-model", "credential"),
    )
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_leaves_while_a_continuation_is_awaited_is_gone(relay: Relay, client: str) -> None:
    relay.play(make_broken_reply(relay.speaks[0], BEGUN, End.RESET), Answer(headless=True, end=End.HANG))
    body = msgspec.json.encode(make_body(client, "three", stream=True))
    with socket.create_connection(("127.0.0.1", relay.gateway.port), timeout=60) as sock:
        sock.sendall(request_bytes(PATHS[client], body, f"x-request-id: left-{client}"))
        wait_until(lambda: relay.calls == [1, 1, 0])
    outcome = relay.gateway.outcome(f"left-{client}")
    assert (outcome.outcome, outcome.error_code, outcome.attempts) == (CLIENT_GONE, None, 2)
    assert outcome.failed_attempts == (
        FailedAttempt("one/vendor-model", "lost"),
        FailedAttempt("two/vendor-model", CLIENT_GONE),
    )
    assert outcome.usage is not None


def test_a_reply_with_a_tool_call_is_not_continued(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    begun = ScriptedReply((Text(BEGUN), WEATHER), Stop.TOOL, ending=Ending.NONE)
    relay.play(write_reply(one, begun, end=End.CUT), make_reply(two, REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, Broke), reply
    assert relay.calls == [1, 0, 0]


def test_the_trailer_names_everyone_who_answered(relay: Relay) -> None:
    one, two, _ = relay.speaks
    relay.play(make_broken_reply(one, BEGUN, End.CUT), make_reply(two, REST))
    body = b'{"model": "three", "stream": true, "messages": [{"role": "user", "content": "Go on."}]}'
    with socket.create_connection(("127.0.0.1", relay.gateway.port), timeout=60) as sock:
        sock.sendall(request_bytes(PATHS["chat"], body, "connection: close"))
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"x-dragoman-route: one/vendor-model\r\n" in raw.partition(b"\r\n\r\n")[0]
    assert raw.endswith(b"0\r\nx-dragoman-route: one/vendor-model, two/vendor-model\r\n\r\n")


ROWS = "| 12 | the same in every row |\n" * 6
assert len(ROWS) == 186


def marker_in(body: bytes) -> str:
    """Return the marker that the next upstream must write in front of its continuation."""
    found = re.search(rb"\[\[continue:[0-9a-f]{12}\]\]", body)
    assert found is not None, body
    return found[0].decode()


def test_an_exact_continuation_of_equal_rows_loses_nothing(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    for place in (1, 17, 31, 45, 62, 100, 181):
        relay.play(make_broken_reply(one, ROWS[:place], End.CUT), make_reply(two, ROWS[place:]))
        reply = read_reply(relay, client)
        assert isinstance(reply, SdkReply), (place, reply)
        assert reply.text == ROWS, place
        assert relay.calls == [1, 1, 0], place


def test_a_repetition_before_the_marker_is_left_out_and_counted_as_a_loss(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks

    def repeat_before_marker(sent_request: ReceivedRequest) -> Answer:
        return make_reply(two, BEGUN[-12:] + marker_in(sent_request.body) + REST)

    def obey_marker(sent_request: ReceivedRequest) -> Answer:
        return make_reply(two, marker_in(sent_request.body) + REST)

    losses = []
    for answer in (obey_marker, repeat_before_marker):
        relay.play(make_broken_reply(one, BEGUN, End.CUT))
        relay.fakes[1].choose = answer
        try:
            reply = read_reply(relay, client)
        finally:
            relay.fakes[1].choose = None
        assert isinstance(reply, SdkReply), reply
        assert reply.text == BEGUN + REST
        losses.append(relay.gateway.outcome(relay.sdk.headers["x-request-id"]).losses)
    assert losses[1] == losses[0] + 1


def test_a_repetition_without_a_marker_is_kept(relay: Relay, client: str) -> None:
    one, two, _ = relay.speaks
    relay.play(make_broken_reply(one, BEGUN, End.CUT), make_reply(two, BEGUN + REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == BEGUN + BEGUN + REST


def test_a_target_that_fails_before_its_first_word_is_passed_over(relay: Relay, client: str) -> None:
    """Its failure comes inside a stream: it is no failure of the target that goes on after it."""
    one, two, three = relay.speaks
    fails = write_reply(two, ScriptedReply((), ending=Ending.ERROR))
    relay.play(make_broken_reply(one, BEGUN, End.CUT), fails, make_reply(three, REST))
    reply = read_reply(relay, client)
    assert isinstance(reply, SdkReply), reply
    assert reply.text == BEGUN + REST
    assert relay.calls == [1, 1, 1]
    assert relay.gateway.outcome(relay.sdk.headers["x-request-id"]).outcome == "ok"


QUOTA = b'data: {"error":{"message":"No more.","type":"quota","param":null,"code":"insufficient_quota"}}\n\n'
SPENT = Answer(make_broken_reply("chat", BEGUN, End.CLEAN).body + QUOTA)
NOWHERE = provider_section("chat", "http://127.0.0.1:9/v1", "other")  # a closed port


@pytest.mark.parametrize(
    ("first", "more", "to"),
    [
        pytest.param(make_broken_reply("chat", BEGUN, End.RESET), "", '"up/m"', id="where there is no other target"),
        pytest.param(SPENT, NOWHERE, '"up/m", "other/m"', id="before the next target if the credential is at fault"),
        pytest.param(
            make_broken_reply("chat", BEGUN, End.CUT), NOWHERE, '"up/m", "other/m"', id="after the next target, else"
        ),
    ],
)
def test_another_credential_of_the_same_target_continues(tmp_path: Path, first: Answer, more: str, to: str) -> None:
    answers = [first, make_reply("chat", REST)]
    settings = "[retry]\nattempts = 1\ncontinue_streams = true\n"
    with FakeUpstream(choose=lambda _: answers.pop(0)) as fake, ExitStack() as stack:
        pool = provider_section("chat", fake.url).replace('"sk-fake-upstream"', '["fake-key-1", "fake-key-2"]')
        toml = "\n".join([settings, pool, more, f'[[models]]\nname = "duo"\nto = [{to}]\n'])
        gateway = stack.enter_context(running(toml, tmp_path))
        gateway.settle()
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        reply = STREAMS["messages"][0](sdk, request_for("messages", "duo"))
        assert isinstance(reply, SdkReply), reply
        assert reply.text == BEGUN + REST
        presented = {call.headers["authorization"] for call in fake.calls}
        assert presented == {"Bearer fake-key-1", "Bearer fake-key-2"}
        steps = [step.route for step in gateway.outcome(sdk.headers["x-request-id"]).failed_attempts]
        assert steps == (["up/m", "other/m"] if first.end is End.CUT else ["up/m"])
