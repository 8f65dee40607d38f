"""Gateways agree on cooldowns over Valkey: a hash has all of them, and each change is news for every gateway.

After a gap in the news the hash is read whole. One that is gone was lost, and is written again from what is known.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from dragoman.net.tasks import spawn
from dragoman.store.cooldowns import CooldownChange, CooldownRow, EndedCooldown
from dragoman.store.valkey import Script, SharedStateError, Valkey
from dragoman.upstreams.credentials.shared_cooldowns import CooldownBoard

log = logging.getLogger(__name__)

HASH = "cooldowns"
MAX_FIELDS = 2000
RETRY_S = 0.25
# KEYS: hash, channel; ARGV: field, value (empty: it has ended), how long it lasts, the most fields, the news
CHANGE = Script(
    """
if ARGV[2] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
    if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) then
        local all, found = redis.call('HGETALL', KEYS[1]), {}
        for i = 1, #all, 2 do
            found[#found + 1] = {all[i], tonumber(string.match(all[i + 1], '^%d+'))}
        end
        table.sort(found, function(one, other) return one[2] > other[2] end)
        for i = math.floor(ARGV[4] / 2) + 1, #found do redis.call('HDEL', KEYS[1], found[i][1]) end
    end
end
return redis.call('PUBLISH', KEYS[2], ARGV[5])
"""
)
_decode_news = msgspec.msgpack.Decoder(tuple[str, str, CooldownRow | None]).decode
_decode_row = msgspec.msgpack.Decoder(CooldownRow).decode


class ValkeyCooldowns:
    """Hands the changes of a board to the other gateways, and theirs to it."""

    def __init__(self, board: CooldownBoard, shared: Valkey) -> None:
        self._board = board
        self._shared = shared
        self._news = f"cooldown-news:{shared.address.number}"  # databases of one server have the same channels
        self._must_read = asyncio.Event()
        self._news_meanwhile: list[CooldownChange] | None = None  # while the hash is read, which may be older
        self._tasks: list[asyncio.Task[None]] = []
        self._end_listening: Callable[[], None] | None = None

    def start(self) -> None:
        self._end_listening = self._shared.listen(self._news, self._hear, self._must_read.set)
        self._tasks = [
            spawn(self._send_forever(), name="cooldowns for others"),
            spawn(self._read_forever(), name="cooldowns of others"),
        ]

    async def stop(self) -> None:
        if self._end_listening is not None:
            self._end_listening()
        for task in self._tasks:
            task.cancel()

    async def _send_forever(self) -> None:
        while True:
            await self._board.has_unsent.wait()
            try:
                await self._send()
            except SharedStateError:
                await asyncio.sleep(RETRY_S)

    async def _read_forever(self) -> None:
        while True:
            await self._must_read.wait()
            self._must_read.clear()
            try:
                await self._read()
            except SharedStateError as error:
                log.debug("cooldowns could not be read: %s", error)
                self._must_read.set()
                await asyncio.sleep(RETRY_S)

    async def _send(self) -> None:
        for change in list(self._board.unsent.values()):
            await self._shared.run(CHANGE, [HASH, self._news], _write(change))
            self._board.record_sent(change)

    async def _read(self) -> None:
        self._news_meanwhile = []
        try:
            await self._send()
            found = await self._shared.execute("HGETALL", HASH)
            assert isinstance(found, list)
            if found:
                now_ms = time.time() * 1000
                rows = [_decode_row(value.partition(b" ")[2]) for value in found[1::2] if isinstance(value, bytes)]
                self._board.adopt(row for row in rows if row.until_ms > now_ms)
            else:
                self._board.send_all()
        finally:
            meanwhile, self._news_meanwhile = self._news_meanwhile, None
            for change in meanwhile:
                self._board.apply(change)

    def _hear(self, data: bytes) -> None:
        try:
            member, model, row = _decode_news(data)
        except msgspec.DecodeError as error:  # of another version
            log.warning("a cooldown of another replica cannot be read: %s", error)
            return
        change = EndedCooldown(member, model) if row is None else row
        if self._news_meanwhile is None:
            self._board.apply(change)
        else:
            self._news_meanwhile.append(change)


def _write(change: CooldownChange) -> Sequence[str | bytes | int]:
    """Return the values of the script for a change."""
    row = change if isinstance(change, CooldownRow) else None
    news = msgspec.msgpack.encode((change.member, change.model, row))
    field = f"{change.member} {change.model}".encode()
    if row is None:
        return field, b"", 0, MAX_FIELDS, news
    lasts_ms = max(1, round(row.until_ms - time.time() * 1000))
    return field, b"%d " % row.until_ms + msgspec.msgpack.encode(row), lasts_ms, MAX_FIELDS, news
