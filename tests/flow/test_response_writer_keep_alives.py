"""A client is kept alive while its reply has not begun, and an upstream's own keep-alives pass."""

import asyncio
import math

import pytest

from dragoman.flow.response_writer import MAX_HELD_BYTES
from dragoman.net.headers import Headers
from flow.in_memory import CHAT_STREAM, MESSAGES_STREAM, run
from flow.rigs import SOON_S, WriterRig
from waiting import wait_until_async

NONE = Headers([])
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
COMMENT = b": working\n\n"


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
    assert rig.writer.head_sent
    assert not rig.writer.committed
    await rig.writer.commit(prepared, NONE, b"data: 1\n\n")
    written = rig.wire.written
    assert rig.wire.reply.body.endswith(b"data: 1\n\n")
    await asyncio.sleep(4 * SOON_S)
    assert rig.wire.written == written
    rig.writer.close()


async def test_keep_alives_begin_again_during_another_turn_of_the_same_reply() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    prepared = await rig.begin_translation()
    await rig.writer.commit(prepared, NONE, b"data: 1\n\n")
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
    await rig.begin_passthrough()
    await asyncio.sleep(3 * SOON_S)
    assert rig.wire.writes == []
    assert rig.writer.keep_alive == b""
    await rig.begin_translation()
    assert rig.writer.keep_alive == rig.call.client.keep_alive
    rig.writer.close()


async def test_a_closed_writer_sends_no_keep_alives() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    await rig.begin_translation()
    rig.writer.close()
    await asyncio.sleep(4 * SOON_S)
    assert rig.wire.writes == []


@pytest.mark.parametrize(
    ("held", "passed", "left"),
    [
        (COMMENT, COMMENT, b""),
        (COMMENT + COMMENT + b": wor", COMMENT + COMMENT, b": wor"),
        (b"", b"", b""),  # the head alone
        (b": one\r\n\r\n: two\r\r", b": one\r\n\r\n: two\r\r", b""),
    ],
)
async def test_an_upstreams_own_keep_alives_are_passed_on(held: bytes, passed: bytes, left: bytes) -> None:
    rig = WriterRig()
    prepared = await rig.begin_passthrough()
    assert await rig.writer.pass_on(prepared, Headers([(b"x-vendor", b"1")]), held) == left
    assert rig.wire.reply.body == passed
    assert rig.wire.reply.headers.get(b"x-vendor") == b"1"
    assert rig.writer.head_sent
    assert not rig.writer.committed


def test_pings_are_keep_alives_for_protocols_that_have_them() -> None:
    async def scene(protocol: str, body: bytes, is_one: bool) -> None:
        rig = WriterRig(protocol, body)
        prepared = await rig.begin_passthrough()
        left = await rig.writer.pass_on(prepared, NONE, PING)
        assert left == (b"" if is_one else PING)
        assert rig.writer.head_sent is is_one

    run(scene("messages", MESSAGES_STREAM, True))
    run(scene("chat", CHAT_STREAM, False))


async def test_what_is_no_keep_alive_is_held_back_with_all_that_follows() -> None:
    rig = WriterRig()
    prepared = await rig.begin_passthrough()
    held = COMMENT + b'data: {"choices":[]}\n\n'
    assert await rig.writer.pass_on(prepared, NONE, held) == held
    assert await rig.writer.pass_on(prepared, NONE, COMMENT) == COMMENT
    assert rig.wire.writes == []
    assert rig.writer.pass_on_at(b"") == math.inf
    await rig.begin_passthrough("another")  # the next target begins anew
    assert rig.writer.pass_on_at(b"") < math.inf


async def test_when_an_upstreams_keep_alives_must_be_passed_on() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    prepared = await rig.begin_passthrough()
    now = asyncio.get_running_loop().time()
    assert rig.writer.pass_on_at(b"") <= now + SOON_S
    assert rig.writer.pass_on_at(COMMENT) < math.inf
    assert rig.writer.pass_on_at(b": wor") == math.inf
    await wait_until_async(lambda: rig.writer.must_pass_on(b""))
    await rig.writer.pass_on(prepared, NONE, COMMENT)
    assert rig.writer.pass_on_at(COMMENT) == math.inf  # from now on they pass as they come
    rig.writer.close()


async def test_too_much_without_a_token_must_be_passed_on_at_once() -> None:
    rig = WriterRig()
    assert not rig.writer.must_pass_on(b"x" * MAX_HELD_BYTES)
    assert rig.writer.must_pass_on(b"x" * (MAX_HELD_BYTES + 1))


async def test_ours_do_not_follow_an_upstreams_own() -> None:
    rig = WriterRig(keep_alive_s=SOON_S)
    prepared = await rig.begin_passthrough()
    await rig.writer.pass_on(prepared, NONE, COMMENT)
    written = rig.wire.written
    await asyncio.sleep(4 * SOON_S)
    assert rig.wire.written == written
    await rig.begin_translation("another")  # whose reply is translated: there ours may stand
    await wait_until_async(lambda: rig.wire.written != written)
    rig.writer.close()
