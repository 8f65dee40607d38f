"""The connection to Valkey or Redis, which several gateways share for what is fast and may be lost.

What has come up in a turn of the event loop is sent at once, and answered within a deadline or not at all. After three
misses calls fail at once, and one a second finds out whether the server answers again. Keys have the version of their
layout and one hash tag, so that a script may use several of them.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast
from urllib.parse import unquote

from msgspec import Struct

from dragoman.config.urls import split_url
from dragoman.net.tasks import spawn, spawn_apart
from dragoman.store.database import DriverMissing

try:
    from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
    from redis.exceptions import (
        NoPermissionError,
        NoScriptError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
    )
except ModuleNotFoundError as missing:
    if str(missing.name).partition(".")[0] not in ("redis", "hiredis"):
        raise
    raise DriverMissing(
        "store.shared names a server whose driver is not installed. "
        "Run: pip install redis hiredis (with pipx: pipx inject dragoman redis hiredis)"
    ) from None

PREFIX = "{dragoman:1}:"  # of all keys and channels
DEADLINE_S = 0.05
HELD_UP_S = 0.01  # by which a timer is late if the event loop was held up
CHANCE_S = 0.02
CHANCES = 2
CONNECT_TIMEOUT_S = 1.0
MAX_MISSES = 3  # after which calls fail at once
PROBE_S = 1.0
ASK_AGAIN_S = 0.1  # after a miss
QUIET_S = 5.0  # after which a channel without messages is asked whether it is still there
BATCH = 200  # commands that are sent together
SCHEMES = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}  # and whether with TLS
DEFAULT_PORT = 6379
FAULTS = (OSError, TimeoutError, RedisError)
TAKES_NO_WRITES = (NoPermissionError, OutOfMemoryError, ReadOnlyError)  # errors, also those that begin with:
TAKES_NO_WRITES_CODES = ("MISCONF", "NOREPLICAS")

PROBE = ("SET", f"{PREFIX}probe", "1", "EX", "60")  # a server that can only be read is of no use

Word = str | bytes | int
Answer = bytes | int | None | Sequence["Answer"]
OnMessage = Callable[[bytes], None]

log = logging.getLogger(__name__)


class SharedStateError(Exception):
    """The server does not answer now, or rejected a call; the message never has a password."""


class ValkeyAddress(Struct, frozen=True):
    """Where the server is, and what it is given to sign in."""

    host: str
    port: int
    number: int  # of the database
    user: str | None
    password: str | None
    is_encrypted: bool

    @property
    def name(self) -> str:
        """The URL without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'valkeys' if self.is_encrypted else 'valkey'}://{host}:{self.port}/{self.number}"


def parse_address(url: str) -> ValkeyAddress:
    """Read a URL of valkey:, redis:, valkeys: or rediss:. Raises ValueError, whose message has no password."""
    try:
        parts = split_url(url)
        port, number = parts.port, parts.path.strip("/")
    except ValueError:
        raise ValueError("not a URL; write valkey://HOST:PORT/NUMBER") from None
    if port == 0:
        raise ValueError("the port of the URL is 0; write valkey://HOST:PORT/NUMBER")
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError("expected valkey://HOST:PORT/NUMBER (or redis://; with TLS valkeys:// or rediss://)")
    if number and not (number.isascii() and number.isdecimal() and len(number) <= 5):
        raise ValueError("the path of the URL is the number of a database, such as /0")
    if parts.query or parts.fragment:
        raise ValueError("the URL has parameters, which are not supported; remove what follows its path")
    return ValkeyAddress(
        host=parts.hostname,
        port=port or DEFAULT_PORT,
        number=int(number or 0),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        is_encrypted=SCHEMES[parts.scheme],
    )


class Script:
    """A script that the server runs as one step."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _PendingCall(Struct, eq=False):
    words: Sequence[Word]
    script: Script | None
    future: "asyncio.Future[Answer]"


class Valkey:
    """Calls of one server, in their order. Each is answered within the deadline, or raises SharedStateError."""

    def __init__(
        self, address: ValkeyAddress, deadline_s: float = DEADLINE_S, outage_level: int = logging.WARNING
    ) -> None:
        """`outage_level`: how it is logged that the server does not answer; a second connection need not repeat it."""
        self.address = address
        self._outage_level = outage_level
        self._is_stopped = False
        self._is_unexplained = False  # why the server is out, as far as it was logged: it was too slow to say
        self.misses = 0
        self.on_return: list[Callable[[], None]] = []  # called when the server answers after it did not
        self.deadline_s = deadline_s
        self._pending: list[_PendingCall] = []
        self._woken = asyncio.Event()
        self._connection: AbstractConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: dict[asyncio.Task[None], None] = {}

    @property
    def is_out(self) -> bool:
        """Whether calls fail at once, since the server has not answered the last ones."""
        return self.misses >= MAX_MISSES

    async def run(self, script: Script, keys: Sequence[str], values: Sequence[Word] = ()) -> Answer:
        """Run a script with these keys, which get the prefix. Raises SharedStateError."""
        named = [PREFIX + key for key in keys]
        return await self._call(["EVALSHA", script.sha, len(named), *named, *values], script)

    async def execute(self, command: str, key: str, *values: Word) -> Answer:
        """Run a command whose first parameter is a key, which gets the prefix. Raises SharedStateError."""
        return await self._call([command, PREFIX + key, *values], None)

    def listen(self, channel: str, on_message: OnMessage, on_gap: Callable[[], None]) -> Callable[[], None]:
        """Call `on_message` with what is published on a channel, until the returned function is called.

        `on_gap` is called each time that messages may have been missed: after every connection, the first included.
        """
        task = spawn(self._listen_forever(PREFIX + channel, on_message, on_gap), name=f"channel {channel}")
        self._listening[task] = None
        task.add_done_callback(lambda ended: self._listening.pop(ended, None))
        return lambda: cast(None, task.cancel())

    def start(self) -> None:
        """Begin, unless this was called before."""
        if not self._tasks:
            self._tasks.append(spawn_apart(self._call_forever(), name="valkey calls"))
            self._tasks.append(spawn_apart(self._watch(), name="valkey watch"))

    async def stop(self) -> None:
        tasks = [*self._listening, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._is_stopped = True
        self._fail(SharedStateError(f"{self.address.name}: the gateway stops"))
        await self._disconnect()

    async def _call(self, words: Sequence[Word], script: Script | None) -> Answer:
        if self.is_out or self._is_stopped:
            raise SharedStateError(f"{self.address.name} does not answer")
        self.start()
        pending = _PendingCall(words, script, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._woken.set()
        return await pending.future

    async def _call_forever(self) -> None:
        while not _is_cancelled():
            if self.is_out:
                await asyncio.sleep(PROBE_S)
                await self._probe()
                continue
            await self._woken.wait()
            self._woken.clear()
            while self._pending and not self.is_out:
                batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                await self._send([pending for pending in batch if not pending.future.done()])
            if self.is_out:
                self._fail(SharedStateError(f"{self.address.name} does not answer"))

    async def _watch(self) -> None:
        """Send a command each second without any, so that it is known whether the server answers."""
        while True:
            if not self._pending and not self.is_out:
                with suppress(SharedStateError):
                    await self._call(PROBE, None)
            await asyncio.sleep(ASK_AGAIN_S if self.misses else PROBE_S)

    async def _probe(self) -> None:
        pending = _PendingCall(PROBE, None, asyncio.get_running_loop().create_future())
        await self._send([pending])
        pending.future.exception()  # it is logged where it is counted

    async def _send(self, batch: Sequence[_PendingCall]) -> None:
        """Send calls together and give each its answer; a miss is counted."""
        if not batch:
            return
        try:
            async with _deadline(CONNECT_TIMEOUT_S if self._connection is None and self.is_out else self.deadline_s):
                answers = await self._ask([pending.words for pending in batch])
                unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
                if unknown:
                    again = await self._ask([_with_text(batch[place]) for place in unknown])
                    for place, answer in zip(unknown, again, strict=True):
                        answers[place] = answer
        except FAULTS as fault:
            await self._disconnect()
            self._record_miss(fault, batch)
            if isinstance(fault, TimeoutError):  # what has waited for this answer does not wait as long again
                self._fail(SharedStateError(f"{self.address.name} does not answer"))
            return
        except BaseException:
            await self._disconnect()
            raise
        refusal = next((answer for answer in answers if _takes_no_writes(answer)), None)
        if refusal is None:
            self._record_answer()
        else:  # there is no need to try it three times
            self.misses = max(self.misses, MAX_MISSES - 1)
            self._record_miss(cast(ResponseError, refusal), ())
        for pending, answer in zip(batch, answers, strict=True):
            if pending.future.done():
                continue
            if isinstance(answer, Exception):
                pending.future.set_exception(SharedStateError(f"{self.address.name}: {answer}"))
            else:
                pending.future.set_result(answer)

    async def _ask(self, commands: Sequence[Sequence[Word]]) -> "list[Answer | ResponseError]":
        if self._connection is None:
            connection = make_connection(self.address)
            self._connection = connection  # before it is open, so that an interrupted start is closed
            await connection.connect()  # type: ignore[no-untyped-call]
        connection = self._connection
        await connection.send_packed_command(connection.pack_commands(commands))
        answers: list[Answer | ResponseError] = []
        for _ in commands:
            try:
                answers.append(cast(Answer, await connection.read_response()))
            except ResponseError as error:
                answers.append(error)
        return answers

    def _record_miss(self, fault: BaseException, batch: Sequence[_PendingCall]) -> None:
        self.misses += 1
        why = str(fault) or f"no answer within {self.deadline_s * 1000:g} ms"
        is_unexplained = isinstance(fault, TimeoutError)
        if self.misses == MAX_MISSES or (self._is_unexplained and not is_unexplained):
            name = self.address.name
            log.log(self._outage_level, "%s does not answer, so this gateway goes on by itself: %s", name, why)
            self._is_unexplained = is_unexplained
        for pending in batch:
            if not pending.future.done():
                pending.future.set_exception(SharedStateError(f"{self.address.name}: {why}"))

    def _record_answer(self) -> None:
        was_out, self.misses, self._is_unexplained = self.is_out, 0, False
        if was_out:
            log.log(min(self._outage_level, logging.INFO), "%s answers again", self.address.name)
            for call in self.on_return:
                call()

    def _fail(self, error: SharedStateError) -> None:
        pending, self._pending = self._pending, []
        for call in pending:
            if not call.future.done():
                call.future.set_exception(error)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*FAULTS):
                await connection.disconnect(nowait=True)

    async def _listen_forever(self, channel: str, on_message: OnMessage, on_gap: Callable[[], None]) -> None:
        while not _is_cancelled():
            connection = make_connection(self.address)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
                    await connection.send_command("SUBSCRIBE", channel)
                    await connection.read_response()
                on_gap()
                await _read_messages(connection, on_message)
            except FAULTS as fault:
                log.debug("the channel %s cannot be read now: %s", channel, fault)
            finally:
                with suppress(*FAULTS):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(PROBE_S)


async def _read_messages(connection: AbstractConnection, on_message: OnMessage) -> None:
    """Read what is published, until the connection is broken, or silent though it was asked."""
    is_pinged = False
    while not _is_cancelled():
        match await connection.read_response(timeout=QUIET_S):
            case None if is_pinged:
                raise TimeoutError(f"no answer within {QUIET_S:g} s")
            case None:
                await connection.send_command("PING")
                is_pinged = True
                continue
            case [b"message", _, bytes(data)]:
                on_message(data)
        is_pinged = False


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError after this time, in which the event loop ran.

    Where it was held up over the deadline, the answer may be there and unread: that is given some time.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timeout:
        due = loop.time() + seconds
        timer = loop.call_at(due, lambda: check(due, CHANCES))

        def check(due: float, chances: int) -> None:
            nonlocal timer
            now = loop.time()
            if chances and now - due > HELD_UP_S:
                timer = loop.call_at(now + CHANCE_S, check, now + CHANCE_S, chances - 1)
            else:
                timeout.reschedule(now)

        try:
            yield
        finally:
            timer.cancel()


def _is_cancelled() -> bool:
    """Return whether this task was cancelled: redis-py swallows that where `wait_for` of Python 3.11 does."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _takes_no_writes(answer: "Answer | ResponseError") -> bool:
    """Return whether a server says that it is full, is a replica, or lets its user write nothing."""
    return isinstance(answer, TAKES_NO_WRITES) or (
        isinstance(answer, ResponseError) and str(answer).startswith(TAKES_NO_WRITES_CODES)
    )


def _with_text(pending: _PendingCall) -> Sequence[Word]:
    assert pending.script is not None
    return ["EVAL", pending.script.text, *pending.words[2:]]


def make_connection(address: ValkeyAddress) -> AbstractConnection:
    """Return a connection that is not open yet."""
    settings: Mapping[str, object] = {
        "host": address.host,
        "port": address.port,
        "db": address.number,
        "username": address.user,
        "password": address.password,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": None,  # who waits for an answer has a deadline of its own, and who listens has none
        "client_name": "dragoman",
        "protocol": 2,
    }
    make: Callable[..., AbstractConnection] = SSLConnection if address.is_encrypted else Connection
    return make(**settings)
