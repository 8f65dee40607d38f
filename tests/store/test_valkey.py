"""The connection to Valkey: calls in batches, a deadline, a breaker, and channels, against a real server."""

import asyncio
import time

import pytest

from dragoman.store.valkey import QUIET_S, Script, SharedStateError, Valkey, parse_address
from tenancy.meters import PATIENT_S
from valkey_server import ValkeyServer
from waiting import wait_until_async

ECHO = Script("return {KEYS[1], ARGV[1]}")


async def test_scripts_and_commands_are_answered_in_their_order(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url))
    try:
        await shared.execute("SET", "a", 7)
        answers = await asyncio.gather(*(shared.run(ECHO, ["k"], [number]) for number in range(500)))
        assert answers == [[b"{dragoman:1}:k", b"%d" % number] for number in range(500)]
        assert await shared.execute("GET", "a") == b"7"
    finally:
        await shared.stop()


async def test_a_script_is_sent_again_to_a_server_that_has_forgotten_it(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url))
    try:
        assert await shared.run(ECHO, ["k"], [1])
        valkey.execute("SCRIPT", "FLUSH")
        assert await shared.run(ECHO, ["k"], [2]) == [b"{dragoman:1}:k", b"2"]
    finally:
        await shared.stop()


async def test_an_error_of_the_server_is_of_its_call_alone(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url))
    try:
        wrong, right = await asyncio.gather(
            shared.execute("INCR", "a", "b"), shared.execute("SET", "b", "1"), return_exceptions=True
        )
        assert isinstance(wrong, SharedStateError)
        assert right == b"OK"
        assert shared.misses == 0
    finally:
        await shared.stop()


async def test_a_frozen_server_costs_three_deadlines_and_is_found_again(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url))
    returned: list[bool] = []
    shared.on_return.append(lambda: returned.append(True))
    try:
        await shared.execute("SET", "a", "1")
        valkey.freeze()
        for _ in range(3):
            with pytest.raises(SharedStateError):
                await shared.execute("GET", "a")
        began = time.monotonic()
        with pytest.raises(SharedStateError, match="does not answer"):
            await shared.execute("GET", "a")
        assert shared.is_out
        assert time.monotonic() - began < 0.04  # nothing was asked
        valkey.thaw()
        await wait_until_async(lambda: not shared.is_out)
        assert returned
        assert await shared.execute("GET", "a") == b"1"
    finally:
        valkey.thaw()
        await shared.stop()


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    ],
)
async def test_a_server_that_takes_no_writes_is_out_and_logged_once(
    valkey: ValkeyServer, caplog: pytest.LogCaptureFixture, begin: tuple[str, ...], end: tuple[str, ...]
) -> None:
    shared = Valkey(parse_address(valkey.url), PATIENT_S)
    try:
        await shared.execute("SET", "a", "1")
        assert valkey.execute(*begin) == b"+OK"
        await wait_until_async(lambda: shared.is_out)  # nothing but its probes has asked
        with pytest.raises(SharedStateError, match="does not answer"):
            await shared.execute("GET", "a")
        assert valkey.execute(*end) == b"+OK"
        await wait_until_async(lambda: not shared.is_out)
        assert await shared.execute("SET", "a", "2") == b"OK"
        assert len(caplog.messages) == 1
    finally:
        valkey.execute(*end)
        await shared.stop()


async def test_a_cause_that_comes_late_is_logged_once(valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    shared = Valkey(parse_address(valkey.url), 0.3)
    try:
        await shared.execute("SET", "a", "1")
        valkey.freeze()
        await wait_until_async(lambda: shared.is_out)
        valkey.kill()
        misses = shared.misses
        await wait_until_async(lambda: shared.misses > misses + 1)
        first, second = caplog.messages
        assert ("no answer within 300 ms" in first, "Connect call failed" in second) == (True, True)
    finally:
        await shared.stop()


async def test_what_waits_behind_a_frozen_call_fails_with_it(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url), 0.3)
    try:
        await shared.execute("SET", "a", "1")
        valkey.freeze()
        first = asyncio.ensure_future(shared.execute("GET", "a"))
        await asyncio.sleep(0.01)  # it was sent
        second = asyncio.ensure_future(shared.execute("GET", "a"))
        await asyncio.wait([first])
        assert first.exception()
        assert (await asyncio.wait([second], timeout=0))[0]
        assert isinstance(second.exception(), SharedStateError)
        assert shared.misses == 1
    finally:
        valkey.thaw()
        await shared.stop()


async def test_a_channel_is_read_again_after_the_server_was_away(valkey: ValkeyServer) -> None:
    listening, speaking = Valkey(parse_address(valkey.url)), Valkey(parse_address(valkey.url))
    messages: list[bytes] = []
    gaps: list[bool] = []
    listening.listen("news", messages.append, lambda: gaps.append(True))
    try:
        await wait_until_async(lambda: gaps)
        await speaking.execute("PUBLISH", "news", "one")
        await wait_until_async(lambda: messages == [b"one"])
        valkey.kill()
        valkey.start()
        await wait_until_async(lambda: len(gaps) == 2)
        while messages == [b"one"]:
            try:
                await speaking.execute("PUBLISH", "news", "two")
            except SharedStateError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.01)
        assert messages[1] == b"two"
    finally:
        await listening.stop()
        await speaking.stop()


@pytest.mark.rest
async def test_a_channel_without_messages_is_read_without_a_gap(valkey: ValkeyServer) -> None:
    listening = Valkey(parse_address(valkey.url))
    messages: list[bytes] = []
    gaps: list[bool] = []
    listening.listen("quiet", messages.append, lambda: gaps.append(True))
    try:
        await wait_until_async(lambda: gaps)
        await asyncio.sleep(2 * QUIET_S + 1.0)
        await listening.execute("PUBLISH", "quiet", "one")
        await wait_until_async(lambda: messages == [b"one"])
        assert len(gaps) == 1
    finally:
        await listening.stop()


async def test_a_channel_of_a_server_that_is_silent_is_read_anew(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.store.valkey.QUIET_S", 0.2)
    listening = Valkey(parse_address(valkey.url))
    gaps: list[bool] = []
    listening.listen("silent", lambda _: None, lambda: gaps.append(True))
    try:
        await wait_until_async(lambda: gaps)
        await asyncio.sleep(1.0)
        assert len(gaps) == 1  # it was asked, and has answered
        valkey.freeze()
        await asyncio.sleep(1.0)
        valkey.thaw()
        await wait_until_async(lambda: len(gaps) == 2)
    finally:
        valkey.thaw()
        await listening.stop()


async def test_a_wrong_password_is_not_in_the_error(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url.replace("p%40ss", "other")))
    try:
        with pytest.raises(SharedStateError) as raised:
            await shared.execute("GET", "a")
        assert "other" not in str(raised.value)
    finally:
        await shared.stop()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("valkey://127.0.0.1:6380/2", "valkey://127.0.0.1:6380/2"),
        ("redis://host", "valkey://host:6379/0"),
        ("rediss://user:pass@host/1", "valkeys://host:6379/1"),
        ("valkeys://:p%40ss@[::1]:1/", "valkeys://[::1]:1/0"),
    ],
)
def test_an_address_is_named_without_user_and_password(url: str, name: str) -> None:
    assert parse_address(url).name == name


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://host",
        "valkey://",
        "valkey://h:x/0",
        "valkey://h:0/0",
        "valkey://h/a",
        "valkey://h/0?a=1",
        "valkey://:secret@/0",
    ],
)
def test_an_address_of_another_form_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|valkey") as raised:
        parse_address(url)
    assert "secret" not in str(raised.value)


async def test_an_answer_that_came_while_the_event_loop_was_held_up_counts(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url))
    try:
        await shared.execute("SET", "a", "1")
        for _ in range(5):
            answer = asyncio.ensure_future(shared.execute("GET", "a"))
            for _ in range(3):
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(time.sleep, 0.12)
            assert await answer == b"1"
        assert shared.misses == 0
    finally:
        await shared.stop()


async def test_a_call_after_the_end_fails_at_once(valkey: ValkeyServer) -> None:
    shared = Valkey(parse_address(valkey.url))
    await shared.execute("SET", "a", "1")
    await shared.stop()
    async with asyncio.timeout(5.0):
        with pytest.raises(SharedStateError):
            await shared.execute("GET", "a")
