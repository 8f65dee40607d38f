"""Questions between the processes of all replicas, over the Valkey that they share.

Each process listens on a channel of its own, and says each second that it lives. Who is connected to the server is
trusted: it is as private as the store.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

import msgspec
from msgspec import Struct

from dragoman.net.errors import describe_fault
from dragoman.net.tasks import spawn
from dragoman.server.worker_group import ANSWER_S, MAX_ANSWER_BYTES, Answer, Question
from dragoman.store.valkey import Script, SharedStateError, Valkey, ValkeyAddress
from dragoman.translate.hub.failure import describe_cause

log = logging.getLogger(__name__)

BEAT_S = 1.0
SILENT_S = 5  # after which a process counts as gone
PROCESSES = "processes"
MAX_ANSWERING = 200  # questions at the same time; more of them are left without an answer

# KEYS: hash; ARGV: this process, after how many seconds others are gone. Returns the names of all that live.
BEAT = Script(
    """
local now = redis.call('TIME')[1]
redis.call('HSET', KEYS[1], ARGV[1], now)
redis.call('EXPIRE', KEYS[1], 60)
local all, living = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
    if tonumber(now) - tonumber(all[i + 1]) > tonumber(ARGV[2]) then
        redis.call('HDEL', KEYS[1], all[i])
    else
        living[#living + 1] = all[i]
    end
end
return living
"""
)


class _QuestionMessage(Struct, array_like=True, tag=True):
    number: int
    by: str
    name: str
    question: Question


class _AnswerMessage(Struct, array_like=True, tag=True):
    number: int
    body: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_QuestionMessage | _AnswerMessage).decode


class ValkeyGroup:
    """The processes of other replicas. Questions have a connection of their own, so that nothing waits for them."""

    def __init__(self, own: str, address: ValkeyAddress) -> None:
        self.own = own
        self.others: tuple[str, ...] = ()  # of other replicas
        self.is_out = True  # the server does not answer, so that no other process is known
        self._shared = Valkey(address, ANSWER_S, logging.DEBUG)
        self._answers: dict[str, Answer] = {}
        self._waiting: dict[int, asyncio.Future[bytes | None]] = {}
        self._last_number = secrets.randbits(32)
        self._answering: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._end_listening: Callable[[], None] | None = None

    def start(self) -> None:
        """Join the others, as soon as they can reach this process."""
        self._end_listening = self._shared.listen(_channel(self.own), self._hear, self._begin_beating)

    async def stop(self) -> None:
        """Leave the others, which forget this process at once."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            try:
                await self._shared.execute("HDEL", PROCESSES, self.own)
            except SharedStateError as error:
                log.debug("the other replicas do not know that this process ends: %s", error)
        if self._end_listening is not None:
            self._end_listening()
        for task in list(self._answering):
            task.cancel()
        await self._shared.stop()

    def answer(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    async def ask(self, process: str, name: str, question: Question, within_s: float = ANSWER_S) -> bytes | None:
        """Return the answer of a process; None if it did not answer in time or could not."""
        self._last_number += 1
        number, answered = self._last_number, asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            async with asyncio.timeout(within_s):
                message = _encode(_QuestionMessage(number, self.own, name, question))
                if await self._shared.execute("PUBLISH", _channel(process), message) == 0:  # no process listens
                    return None
                body: bytes | None = await answered
                return body
        except (SharedStateError, TimeoutError) as error:
            log.debug("process %s did not answer %s: %s", process, name, describe_cause(error))
            return None
        finally:
            del self._waiting[number]

    def _begin_beating(self) -> None:
        if self._beating is None:
            self._beating = spawn(self._beat_forever(), name="signs of life for other replicas")

    async def _beat_forever(self) -> None:
        while True:
            try:
                living = await self._shared.run(BEAT, [PROCESSES], [self.own, SILENT_S])
                assert isinstance(living, list)
                names = sorted(name.decode() for name in living if isinstance(name, bytes))
                self.others = tuple(name for name in names if _replica(name) != _replica(self.own))
                self.is_out = False
            except SharedStateError:
                self.others, self.is_out = (), True
            await asyncio.sleep(BEAT_S)

    def _hear(self, data: bytes) -> None:
        try:
            message = _decode(data)
        except msgspec.DecodeError as error:  # of another version
            log.warning("a message of another replica cannot be read: %s", error)
            return
        if isinstance(message, _AnswerMessage):
            waiting = self._waiting.get(message.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.body)
        elif len(self._answering) < MAX_ANSWERING:
            task = spawn(self._reply(message), name=f"answer to {message.name}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _reply(self, message: _QuestionMessage) -> None:
        answer, body = self._answers.get(message.name), None
        try:
            body = None if answer is None else await answer(message.question)
        except Exception as bug:
            log.error("%s could not be answered: %s", message.name, describe_fault(bug))
        if body is not None and len(body) > MAX_ANSWER_BYTES:
            log.warning("the answer to %s has %d bytes, more than %d", message.name, len(body), MAX_ANSWER_BYTES)
            body = None
        try:
            await self._shared.execute("PUBLISH", _channel(message.by), _encode(_AnswerMessage(message.number, body)))
        except SharedStateError as error:
            log.debug("process %s gets no answer to %s: %s", message.by, message.name, error)


def _channel(process: str) -> str:
    return f"to:{process}"


def _replica(process: str) -> str:
    """Return what the names of all workers of one replica begin with."""
    return process.partition("-")[0]
