"""The client's side of one call: head, keep-alives and bytes, over as many upstream turns as it takes."""

import asyncio
import time

import msgspec
import pytest

from dragoman.net.headers import Headers
from dragoman.proxy.call import Call
from dragoman.proxy.client_encoding import NOTHING
from dragoman.proxy.held_events import HeldEvents
from dragoman.proxy.prepared import Translated
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.response_writer import DocumentWriter
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from narrowing import expect
from proxy.in_memory import (
    CHAT,
    CHAT_STREAM,
    MESSAGES,
    MESSAGES_STREAM,
    MemoryWire,
    make_call,
    make_document_writer,
    make_provider,
    make_request,
    make_sink,
    prepare_for,
)
from proxy.rigs import SOON_S, WriterRig, encode_events
from replies import END, START, text
from waiting import wait_until_async

BROKEN = Failure(Kind.LOST, "the connection broke")
NONE = Headers([])
COMMENT = b": working\n\n"


async def test_head_and_first_bytes_are_one_write() -> None:
    rig = WriterRig()
    prepared = await rig.begin_translation()
    assert rig.writer.open_stream is None
    await rig.commit(prepared, None, b"data: 1\n\n")
    assert len(rig.wire.writes) == 1
    assert rig.writer.open_stream is not None
    assert rig.writer.committed
    reply = rig.wire.reply
    assert (reply.status, reply.body, reply.complete) == (200, b"data: 1\n\n", False)
    assert reply.headers.get(b"content-type") == b"text/event-stream; charset=utf-8"
    assert reply.headers.get(b"x-dragoman-route") == b"up/m"
    assert reply.headers.get(b"x-request-id") == b"req_1"
    assert reply.headers.get(b"x-vendor") is None


async def test_a_translated_stream_counts_the_losses_of_its_request() -> None:
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}],"seed":7}'
    rig = WriterRig("chat", body)
    prepared = expect(Translated, await rig.begin_translation())
    losses = len(prepared.ledger)
    assert losses
    prepared.ledger.record_dropped("/reply", "which comes too late for the head of a stream")
    await rig.commit(prepared, None, b"")
    assert rig.wire.reply.headers.get(b"x-dragoman-loss") == str(losses).encode()


async def test_a_stream_that_passes_has_the_upstreams_headers_and_no_count_of_losses() -> None:
    rig = WriterRig()
    prepared = await rig.begin_passthrough()
    theirs = [
        (b"content-type", b"text/event-stream"),
        (b"x-vendor", b"1"),
        (b"x-ratelimit-limit-tokens", b"5"),
        (b"set-cookie", b"a=b"),
    ]
    await rig.commit(prepared, Headers(theirs), b"data: 1\n\n")
    headers = rig.wire.reply.headers
    assert (headers.get(b"content-type"), headers.get(b"x-vendor")) == (b"text/event-stream", b"1")
    assert headers.get(b"cache-control") == b"no-cache"
    for absent in (b"x-dragoman-loss", b"set-cookie", b"x-ratelimit-limit-tokens"):
        assert absent not in headers


async def test_events_under_the_name_of_a_document_get_the_right_name() -> None:
    rig = WriterRig()
    prepared = await rig.begin_passthrough()
    await rig.commit(prepared, Headers([(b"content-type", b"application/json")]), b"")
    assert rig.wire.reply.headers.get(b"content-type") == b"text/event-stream; charset=utf-8"


@pytest.mark.parametrize(("names", "trailer"), [(("one", "two"), b"one/m, two/m"), (("one", "one"), None)])
async def test_the_head_is_sent_once_and_a_trailer_names_whoever_else_answered(
    names: tuple[str, str], trailer: bytes | None
) -> None:
    rig = WriterRig()
    for name, data in zip(names, (b"data: 1\n\n", b"data: 2\n\n"), strict=True):
        await rig.commit(await rig.begin_translation(name), None, data)
    rig.encode(START, *text(0, "Hi"), END)
    await rig.writer.finish(rig.writer.encoding.finish())
    reply = rig.wire.reply
    assert reply.headers.get(b"x-dragoman-route") == b"one/m"
    assert reply.body.startswith(b"data: 1\n\ndata: 2\n\n")
    assert reply.trailers == ([] if trailer is None else [(b"x-dragoman-route", trailer)])


async def test_what_is_kept_for_the_end_goes_out_with_the_next_bytes_or_with_the_end() -> None:
    rig = WriterRig()
    await rig.commit(await rig.begin_passthrough(), NONE, b"data: 1\n\n")
    rig.writer.hold_for_end(b"data: 2\n\n")
    assert rig.writer.write(b"data: 3\n\n")
    rig.writer.hold_for_end(b"data: 4\n\n")
    await rig.writer.finish(NOTHING)
    assert len(rig.wire.writes) == 3
    reply = rig.wire.reply
    assert (reply.body, reply.complete) == (b"data: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n", True)


async def test_a_client_that_reads_slowly_is_waited_for() -> None:
    rig = WriterRig()
    await rig.commit(await rig.begin_passthrough(), NONE, b"data: 1\n\n")
    rig.wire.blocked = True
    assert not rig.writer.write(b"data: 2\n\n")
    await rig.writer.wait_writable()
    assert rig.writer.write(b"data: 3\n\n")


async def test_the_end_of_an_encoded_stream_is_what_its_stages_and_encoder_still_hold() -> None:
    rig = WriterRig()
    prepared = await rig.begin_translation()
    await rig.commit(prepared, None, rig.encode(START, *text(0, "Hi"), END))
    await rig.writer.finish(rig.writer.encoding.finish())
    assert rig.wire.reply.body.endswith(b"data: [DONE]\n\n")


# Failures


async def test_a_failure_after_the_head_alone_is_the_only_event() -> None:
    rig = await begin_due("chat", CHAT_STREAM)
    hold(rig, COMMENT)
    await rig.writer.fail(BROKEN)
    reply = rig.wire.reply
    assert reply.complete
    assert reply.body.startswith(COMMENT)
    assert b"the connection broke" in reply.body


async def test_a_failure_of_a_request_that_only_its_own_protocol_can_parse_is_sent_too() -> None:
    rig = await begin_due("chat", b'{"model":"m","stream":true,"messages":7}')
    with pytest.raises(RequestError):
        rig.call.request()
    hold(rig, COMMENT)
    await rig.writer.fail(BROKEN)
    assert b"the connection broke" in rig.wire.reply.body


async def test_a_failure_after_a_part_of_the_reply_ends_it() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM)
    prepared = await rig.begin_translation()
    begun = rig.encode(START, *text(0, "Half a")[:-1])
    await rig.commit(prepared, None, begun)
    await rig.writer.fail(BROKEN)
    reply = rig.wire.reply
    assert reply.complete
    assert reply.body.startswith(begun)
    assert reply.body.count(b"event: error\n") == 1
    assert b"message_stop" not in reply.body


async def test_the_error_of_a_reply_that_passes_is_already_written() -> None:
    rig = WriterRig()
    await rig.commit(await rig.begin_passthrough(), NONE, b"data: 1\n\n")
    rig.writer.hold_for_end(b'data: {"error":{}}\n\n')
    await rig.writer.fail(BROKEN)
    assert rig.wire.reply.body == b'data: 1\n\ndata: {"error":{}}\n\n'


# Whole replies


def whole(protocol: str = "chat", body: bytes = CHAT, key: str = "") -> tuple[MemoryWire, Call, DocumentWriter]:
    wire = MemoryWire()
    call = make_call(protocol, body, request=make_request(), key=key)
    return wire, call, make_document_writer(make_sink(wire), call)


@pytest.mark.parametrize("key", ["", "environment"])
async def test_an_upstreams_own_body_is_sent_as_it_came(key: str) -> None:
    wire, call, writer = whole(key=key)
    prepared = await prepare_for(call, make_provider())
    body = b'{ "id":1,   "odd": true }'
    theirs = [(b"content-type", b"application/json; a=b"), (b"x-ratelimit-limit-tokens", b"5"), (b"set-cookie", b"c")]
    await writer.send_unchanged(prepared, Headers(theirs), body, prepared.why)
    reply = wire.reply
    assert (reply.status, reply.body, len(wire.writes)) == (200, body, 1)
    assert reply.headers.get(b"content-type") == b"application/json; a=b"
    assert reply.headers.get(b"x-dragoman-route") == b"up/m"
    assert reply.headers.get(b"x-ratelimit-limit-tokens") == (b"5" if key else None)
    assert reply.headers.get(b"set-cookie") is None
    assert reply.headers.get(b"x-dragoman-loss") is None


async def test_a_translated_body_is_the_fold_of_its_events_and_counts_all_losses() -> None:
    wire, call, writer = whole("messages", MESSAGES)
    prepared = expect(Translated, await prepare_for(call, make_provider()))
    writer.encoding.begin_turn(prepared.ledger, None, ReplyMonitor(lambda: 0.0))
    encode_events(writer, START, *text(0, "Hel", "lo"), END)
    prepared.ledger.record_dropped("/reply", "something of the reply")
    await writer.send_folded(prepared, prepared.ledger, prepared.why)
    reply = wire.reply
    assert msgspec.json.decode(reply.body)["content"][0]["text"] == "Hello"
    assert reply.headers.get(b"content-type") == b"application/json"
    assert reply.headers.get(b"x-dragoman-loss") == str(len(prepared.ledger)).encode()


async def test_another_turn_forgets_what_was_collected_of_the_one_before() -> None:
    wire, call, writer = whole()
    prepared = await prepare_for(call, make_provider("other", ("messages",)))
    for words in ("Bye", "Hi"):
        writer.encoding.begin_turn(Ledger(), None, ReplyMonitor(lambda: 0.0))
        encode_events(writer, START, *text(0, words), END)
    await writer.send_folded(prepared, Ledger(), prepared.why)
    assert msgspec.json.decode(wire.reply.body)["choices"][0]["message"]["content"] == "Hi"
    assert wire.reply.headers.get(b"x-dragoman-route") == b"other/m"


async def test_a_whole_reply_has_nothing_to_send_before_its_end() -> None:
    wire, _, writer = whole()
    writer.encoding.begin_turn(Ledger(), None, ReplyMonitor(lambda: 0.0))
    encode_events(writer, START, *text(0, "Hi"), END)
    writer.close()
    assert wire.writes == []
    assert (writer.committed, writer.open_stream) == (False, None)


@pytest.mark.parametrize("explains", [True, False])
async def test_the_reason_is_given_to_a_client_that_asks_for_it(explains: bool) -> None:
    headers = [(b"x-dragoman-explain", b"1")] if explains else []
    wire = MemoryWire()
    call = make_call("chat", CHAT, headers)
    prepared = await prepare_for(call, make_provider())
    await make_document_writer(make_sink(wire), call).send_unchanged(prepared, NONE, b"{}", prepared.why)
    why = wire.reply.headers.get(b"x-dragoman-why")
    assert why == (b"passed; the upstream speaks chat" if explains else None)


# A client is kept alive while its reply has not begun, and an upstream's own keep-alives pass
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.mark.parametrize(
    ("protocol", "body", "sign"), [("chat", CHAT_STREAM, b": "), ("messages", MESSAGES_STREAM, PING)]
)
async def test_a_client_of_a_translated_reply_is_kept_alive_until_it_begins(
    protocol: str, body: bytes, sign: bytes
) -> None:
    rig = WriterRig(protocol, body, SOON_S)
    prepared = await rig.begin_translation()
    await wait_until_async(lambda: len(rig.wire.writes) >= 3)
    assert rig.wire.reply.body.startswith(sign)
    assert rig.writer.open_stream is not None
    assert not rig.writer.committed
    await rig.commit(prepared, None, b"data: 1\n\n")
    written = rig.wire.written
    assert rig.wire.reply.body.endswith(b"data: 1\n\n")
    await asyncio.sleep(4 * SOON_S)
    assert rig.wire.written == written
    rig.writer.close()


async def test_keep_alives_begin_again_during_another_turn_of_the_same_reply() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    await rig.commit(await rig.begin_translation(), None, b"data: 1\n\n")
    written = len(rig.wire.writes)
    rig.writer.resume_keep_alives()
    await wait_until_async(lambda: len(rig.wire.writes) > written)
    assert rig.wire.reply.body.startswith(b"data: 1\n\n: ")
    rig.writer.close()
    rig.writer.close()


async def test_nothing_of_ours_is_put_into_what_passes_and_nothing_is_sent_before_a_turn() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    await asyncio.sleep(3 * SOON_S)
    assert rig.wire.writes == []
    assert (await rig.open_passed()).keep_alive is None
    assert (await rig.open_translated()).keep_alive is not None
    assert rig.writer.keep_alive == rig.call.client.keep_alive
    rig.writer.close()


async def test_a_closed_writer_sends_no_keep_alives() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    await rig.begin_translation()
    rig.writer.close()
    await asyncio.sleep(4 * SOON_S)
    assert rig.wire.writes == []


# Of a reply that passes through, the upstream's own keep-alives pass, and all else is held until the first token
OPENING = b'event: message_start\ndata: {"type":"message_start"}\n\n'


async def begin_due(protocol: str = "messages", body: bytes = MESSAGES_STREAM) -> WriterRig:
    """Return a writer whose client must be kept alive, while a reply that passes through is awaited."""
    rig = WriterRig(protocol, body, keep_alive_s=0.0)
    await rig.begin_passthrough()
    rig.writer.begin_answer(Headers([(b"x-vendor", b"1")]))
    rig.writer.close()  # no timer: what is tested is what passes at once
    return rig


def hold(rig: WriterRig, data: bytes, held: HeldEvents | None = None) -> bool:
    """Hold bytes of a reply that passes, and pass the keep-alives among them that are due."""
    held = HeldEvents(rig.call.client.keep_alive) if held is None else held
    held.add(data)
    return rig.writer.pass_keep_alives(held)


@pytest.mark.parametrize(
    ("held", "passed", "left"),
    [
        (COMMENT, COMMENT, b""),
        (COMMENT + COMMENT + b": wor", COMMENT + COMMENT, b": wor"),
        (b": one\r\n\r\n: two\r\r", b": one\r\n\r\n: two\r\r", b""),
        (OPENING + PING, PING, OPENING),
        (COMMENT + OPENING + COMMENT + PING + OPENING, COMMENT + COMMENT + PING, OPENING + OPENING),
        (b": said of\n" + OPENING, b"", b": said of\n" + OPENING),
        (b"event:ping\ndata: {}\n\n", b"event:ping\ndata: {}\n\n", b""),
        (b"\n\n", b"\n\n", b""),
    ],
)
async def test_an_upstreams_own_keep_alives_are_passed_on(held: bytes, passed: bytes, left: bytes) -> None:
    for size in (1, 7, len(held)):  # however they are cut
        rig = await begin_due()
        events = HeldEvents(rig.call.client.keep_alive)
        for at in range(0, len(held), size):
            assert hold(rig, held[at : at + size], events)
        assert (rig.writer.open_stream is not None) is bool(passed)
        if passed:
            assert rig.wire.reply.body == passed
            assert rig.wire.reply.headers.get(b"x-vendor") == b"1"
        assert not rig.writer.committed
        assert len(events) == len(left)
        assert events.take() == left


async def test_pings_are_keep_alives_for_protocols_that_have_them() -> None:
    rig = await begin_due("chat", CHAT_STREAM)
    events = HeldEvents(rig.call.client.keep_alive)
    hold(rig, PING, events)
    assert rig.writer.open_stream is None
    assert events.take() == PING


async def test_before_a_keep_alive_is_due_everything_is_held_in_its_order() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM)
    await rig.begin_passthrough()
    events = HeldEvents(PING)
    assert hold(rig, OPENING + PING, events)
    assert hold(rig, COMMENT, events)
    assert rig.wire.writes == []
    assert events.take() == OPENING + PING + COMMENT


async def test_a_ping_that_is_held_passes_when_a_keep_alive_is_due() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM, SOON_S)
    await rig.begin_passthrough()
    events = HeldEvents(PING)
    hold(rig, OPENING + PING, events)
    await wait_until_async(lambda: rig.wire.written)
    assert rig.wire.reply.body == PING
    await asyncio.sleep(4 * SOON_S)  # ours do not follow an upstream's own
    assert rig.wire.reply.body == PING
    assert events.take() == OPENING
    await rig.begin_translation("another")  # whose reply is translated: there ours may stand
    await wait_until_async(lambda: rig.wire.reply.body != PING)
    rig.writer.close()


async def test_ours_are_sent_until_the_first_byte_of_a_reply_that_passes() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM, SOON_S)
    await rig.begin_passthrough()
    await wait_until_async(lambda: len(rig.wire.writes) >= 2)
    hold(rig, OPENING)
    written = rig.wire.written
    assert rig.wire.reply.body.startswith(PING)
    await asyncio.sleep(4 * SOON_S)
    assert rig.wire.written == written
    rig.writer.close()


async def test_a_client_that_reads_a_flood_of_keep_alives_slowly_is_waited_for() -> None:
    rig = await begin_due()
    events = HeldEvents(PING)
    rig.wire.blocked = True
    assert not hold(rig, COMMENT, events)
    await rig.writer.wait_writable()
    assert hold(rig, OPENING, events)


def test_holding_takes_linear_time() -> None:
    held = HeldEvents(PING)
    began = time.process_time()
    for _ in range(20_000):  # 20 MB without the end of an event
        held.add(b"x" * 1000)
        assert held.take_keep_alives() == b""
    for _ in range(20_000):
        held.add(OPENING + COMMENT)
        assert held.take_keep_alives()
    assert time.process_time() - began < 10
