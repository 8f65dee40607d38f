"""A reply that is passed on unchanged: how much of it is held, and what is known of it afterwards."""

import asyncio

from dragoman.flow.prepare import Passthrough
from dragoman.flow.relay.relayed_reply import HELD_BYTES, RelayedReply
from dragoman.flow.step import Completed, NoReply, TurnEnd
from dragoman.flow.timeouts import ReplyDeadline, Timeouts
from dragoman.hub.failure import Kind
from dragoman.net.client import HttpClient, OutgoingRequest
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.protocols.relayed_paths import PROTOCOL, RELAYED_PATHS, UPSTREAM
from dragoman.routing import Route
from fakes.upstream import Answer, End, FakeUpstream
from flow.in_memory import MemoryWire, make_exchange, make_provider, run

JSON = "application/json"
SECRET = b"sk-0123456789abcdef"


class Passed:
    """One reply, after it was passed on to a client in memory."""

    def __init__(self, answer: Answer) -> None:
        self.wire, self.accepted = MemoryWire(), 0
        with FakeUpstream([answer]) as fake:
            self.end = run(self._pass(fake))

    async def _pass(self, fake: FakeUpstream) -> TurnEnd:
        client = HttpClient()
        out = OutgoingRequest("POST", f"{fake.url}/embeddings", (), b"{}")
        prepared = Passthrough(
            route=Route("up", "m"),
            provider=make_provider(),
            protocol=PROTOCOL,
            upstream=UPSTREAM,
            out=out,
            options=None,
            secrets=(SECRET,),
            owner=False,
        )
        try:
            response = await client.send(out, head_timeout_s=20)
            self.watch = ReplyMonitor(lambda: 0.0)
            path = RELAYED_PATHS["embeddings"]
            reply = RelayedReply(path, make_exchange(self.wire), prepared, response, self.watch, "req_1")
            now = asyncio.get_running_loop().time()
            return await reply.pass_on(ReplyDeadline("up", Timeouts(20, 20, 20), now), self._accept)
        finally:
            await client.close()

    def _accept(self, reply: RelayedReply) -> None:
        self.accepted += 1


def test_a_short_document_is_one_write_without_the_gateways_secret() -> None:
    passed = Passed(Answer(b'{"echoed":"' + SECRET + b'"}', content_type=JSON, cut=5))
    assert passed.end == Completed()
    assert (passed.accepted, len(passed.wire.writes)) == (1, 1)
    assert SECRET not in passed.wire.written


def test_a_long_document_is_passed_on_before_it_has_come_to_its_end() -> None:
    body = b'{"data":"' + b"x" * (2 * HELD_BYTES) + b'"}'
    passed = Passed(Answer(body, content_type=JSON))
    assert passed.end == Completed()
    assert (passed.wire.reply.body, passed.accepted) == (body, 1)
    assert len(passed.wire.writes) > 2


def test_a_document_that_breaks_off_while_it_is_held_is_no_reply() -> None:
    passed = Passed(Answer(b'{"data":[', content_type=JSON, end=End.CUT))
    assert isinstance(passed.end, NoReply)
    assert (passed.end.failure.kind, passed.accepted, passed.wire.written) == (Kind.LOST, 0, b"")


def test_a_long_document_that_breaks_off_ends_with_the_connection() -> None:
    passed = Passed(Answer(b'{"data":"' + b"x" * (2 * HELD_BYTES), content_type=JSON, end=End.CUT))
    assert isinstance(passed.end, Completed)
    assert passed.wire.dropped
    assert passed.watch.failure is not None
    assert passed.watch.failure.kind is Kind.LOST


def test_a_stream_whose_first_event_is_an_error_is_no_reply() -> None:
    passed = Passed(Answer(b'data: {"error":{"message":"no","code":"server_error"}}\n\n'))
    assert isinstance(passed.end, NoReply)
    assert passed.accepted == 0
