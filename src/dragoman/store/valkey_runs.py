"""Runs in Valkey or Redis: a hash and a stream for each, and one script for each operation on them.

Every script first removes the runs whose time is over. A run that is made has to be renewed; where nothing was renewed
at all for a while, it was the server that stood still, and the living get time to say so before they are removed.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from dragoman.store.shared_runs import (
    Absence,
    JoinedId,
    Opening,
    RenewedRuns,
    RunBounds,
    RunCard,
    RunEnd,
    RunHead,
    RunPart,
    SharedRun,
)
from dragoman.store.valkey import Answer, Script, SharedStateError, Valkey, Word

LIFE_S = 15.0  # of a run that is made and is not renewed
RENEW_S = 3.0  # how often all processes renew what they make
GAP_S = 6.0  # without any renewal: the server stood still
GRACE_S = 6.0  # afterwards, in which no run that is made is removed
FOLLOWED_S = 5.0  # for which one that was read counts as read
RUN_BYTES = 2048  # what a run costs before its first byte
PIECE_BYTES = 160  # what a piece costs beside its bytes
READ_PIECES = 32
COPY_DEADLINE_S = 1.0
FULL_S = 60.0  # for which those who read a run that was removed for want of room learn why
ROOT = "runs"
NEWS = f"{ROOT}:news"
ABSENCES = {-1: Absence.UNKNOWN, -2: Absence.FULL}
TRIES = 2  # a run that is not found here is paid for twice

_TIMES = {"LIFE": LIFE_S, "GAP": GAP_S, "GRACE": GRACE_S, "FOLLOWED": FOLLOWED_S, "FULL": FULL_S}
_COMMON = (
    "".join(f"local {name} = {seconds * 1000:.0f}\n" for name, seconds in _TIMES.items())
    + """
local root, day, hour = KEYS[1], 86400000, 3600000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function text(number) return string.format('%.0f', number) end
local function run_key(id) return root .. ':run:' .. id end
local function data_key(id) return root .. ':data:' .. id end
local function field(id, name) return redis.call('HGET', run_key(id), name) end
local function exists(id) return redis.call('EXISTS', run_key(id)) == 1 end
local function total() return tonumber(redis.call('GET', root .. ':total') or '0') end
local function owned(owner) return tonumber(redis.call('HGET', root .. ':owned', owner) or '0') end

local function count(id, owner, size)
  redis.call('HINCRBY', root .. ':sizes', id, text(size))
  if redis.call('HINCRBY', root .. ':owned', owner, text(size)) == 0 then
    redis.call('HDEL', root .. ':owned', owner)
  end
  redis.call('INCRBY', root .. ':total', text(size))
end

local function remove(id)
  local key, same = field(id, 'key'), field(id, 'same')
  if key and redis.call('GET', key) == id then redis.call('DEL', key) end
  if same then redis.call('ZREM', same, id) end
  local owner = redis.call('HGET', root .. ':owners', id)
  if owner then count(id, owner, -tonumber(redis.call('HGET', root .. ':sizes', id))) end
  redis.call('HDEL', root .. ':sizes', id)
  redis.call('HDEL', root .. ':owners', id)
  redis.call('ZREM', root .. ':all', id)
  redis.call('ZREM', root .. ':ended', id)
  redis.call('DEL', run_key(id), data_key(id))
end

local function remove_outgrown(id)
  if field(id, 'followed') then redis.call('PUBLISH', root .. ':news', id) end
  remove(id)
  redis.call('SET', root .. ':full:' .. id, '1', 'PX', text(FULL))
end

local function keep_until(id, time)
  redis.call('ZADD', root .. ':all', text(time), id)
  local key, left = field(id, 'key'), text(time - now + hour)
  redis.call('PEXPIRE', run_key(id), left)
  redis.call('PEXPIRE', data_key(id), left)
  if key then redis.call('PEXPIRE', key, left) end
end

local function remove_old()
  local last = tonumber(redis.call('GET', root .. ':renewed') or text(now))
  if now - last > GAP then redis.call('SET', root .. ':grace', text(now + GRACE), 'PX', text(GRACE)) end
  local grace = tonumber(redis.call('GET', root .. ':grace') or '0')
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', root .. ':all', '-inf', text(now), 'LIMIT', '0', '100')) do
    if now >= grace or redis.call('ZSCORE', root .. ':ended', id) or not exists(id) then remove(id) end
  end
end

local function is_followed(id) return tonumber(field(id, 'followed') or '0') > now end
local function follow(id) redis.call('HSET', run_key(id), 'followed', text(now + FOLLOWED)) end

local function has_room(id, owner, more, most_owned, most)
  local function fits() return owned(owner) + more <= most_owned and total() + more <= most end
  if fits() then return true end
  for _, other in ipairs(redis.call('ZRANGE', root .. ':ended', '0', '999')) do
    local others = redis.call('HGET', root .. ':owners', other) ~= owner
    if other ~= id and not is_followed(other) and not (others and total() + more <= most) then
      remove(other)
      if fits() then return true end
    end
  end
  return false
end
"""
)

_OPEN = Script(
    _COMMON
    + """
local id, owner, path, digest, keyed, key, model, array, retries, made = unpack(ARGV, 1, 10)
local empty, most_owned, most = unpack(ARGV, 11, 13)
remove_old()
if exists(id) then return 'opened' end
local same = root .. ':lost:' .. owner .. '\\0' .. digest
if keyed == '1' then
  key = root .. ':key:' .. owner .. '\\0' .. path .. '\\0' .. key
  local other = redis.call('GET', key)
  if other and exists(other) then
    if field(other, 'digest') ~= digest then return 'conflict' end
    follow(other)
    return {other}
  end
elseif retries == '1' then
  for _, other in ipairs(redis.call('ZRANGE', same, '0', '9')) do
    if exists(other) and not is_followed(other) then
      redis.call('ZREM', same, other)
      redis.call('HSET', run_key(other), 'taken', '1')
      follow(other)
      return {other}
    end
  end
end
if not has_room(id, owner, tonumber(empty), tonumber(most_owned), tonumber(most)) then return 'full' end
redis.call('HSET', run_key(id), 'owner', owner, 'path', path, 'digest', digest, 'model', model, 'array', array,
  'made', made, 'bytes', '0', 'pieces', '0')
if keyed == '1' then
  redis.call('SET', key, id)
  redis.call('HSET', run_key(id), 'key', key)
else
  redis.call('HSET', run_key(id), 'same', same)
end
redis.call('HSET', root .. ':owners', id, owner)
count(id, owner, tonumber(empty))
keep_until(id, now + LIFE)
return 'opened'
"""
)

_ADD = Script(
    _COMMON
    + """
local id, start, head, finish, frees, keep, signs, sign, lost = unpack(ARGV, 1, 9)
local cost, most_run, most_owned, most = unpack(ARGV, 10, 13)
if not exists(id) then return -1 end
local run, have = run_key(id), tonumber(field(id, 'bytes'))
local added, size, pieces, first = 0, #head, tonumber(field(id, 'pieces')), 14
for place = first, #ARGV do added = added + #ARGV[place] end
if have == tonumber(start) + added then
  first, added = #ARGV + 1, 0
elseif have ~= tonumber(start) then
  return have
end
for place = first, #ARGV do size = size + #ARGV[place] + tonumber(cost) end
if size > 0 then
  local owner = field(id, 'owner')
  local before = tonumber(redis.call('HGET', root .. ':sizes', id))
  if before + size > tonumber(most_run) or not has_room(id, owner, size, tonumber(most_owned), tonumber(most)) then
    remove_outgrown(id)
    return -2
  end
  count(id, owner, size)
end
for place = first, #ARGV do
  pieces = pieces + 1
  redis.call('XADD', data_key(id), text(pieces) .. '-1', 'b', ARGV[place])
end
redis.call('HSET', run, 'bytes', text(have + added), 'pieces', text(pieces), 'signs', signs, 'sign', sign)
if head ~= '' then redis.call('HSET', run, 'head', head) end
local same = field(id, 'same')
if same and lost == '1' and not field(id, 'taken') then
  redis.call('ZADD', same, 'NX', text(now), id)
  redis.call('PEXPIRE', same, text(day))
elseif same then
  redis.call('ZREM', same, id)
end
if finish ~= '' and not field(id, 'end') then
  redis.call('HSET', run, 'end', finish)
  redis.call('ZADD', root .. ':ended', text(now), id)
  local key = field(id, 'key')
  if key and frees == '1' and redis.call('GET', key) == id then redis.call('DEL', key) end
  keep_until(id, now + tonumber(keep))
elseif added > 0 and have == 0 then
  keep_until(id, tonumber(redis.call('ZSCORE', root .. ':all', id)))
end
if is_followed(id) then redis.call('PUBLISH', root .. ':news', id) end
return have + added
"""
)

_READ = Script(
    _COMMON
    + """
local id, place, most = unpack(ARGV)
remove_old()
if not exists(id) then return redis.call('EXISTS', root .. ':full:' .. id) == 1 and -2 or -1 end
local run = run_key(id)
follow(id)
local pieces = {}
local first = text(tonumber(place) + 1) .. '-0'
for _, entry in ipairs(redis.call('XRANGE', data_key(id), first, '+', 'COUNT', most)) do
  pieces[#pieces + 1] = entry[2][2]
end
local is_read = tonumber(place) + #pieces >= tonumber(field(id, 'pieces'))
local known = redis.call('HMGET', run, 'made', 'owner', 'path', 'digest', 'model', 'array', 'head', 'end', 'signs',
  'sign')
return {known, pieces, is_read and 1 or 0}
"""
)

_TAKE = Script(
    _COMMON
    + """
local id = ARGV[1]
if not exists(id) then return 1 end
local same = field(id, 'same')
if same then redis.call('ZREM', same, id) end
return redis.call('HSETNX', run_key(id), 'taken', '1')
"""
)

_RELEASE = Script(
    _COMMON
    + """
local id = ARGV[1]
if is_followed(id) then return 0 end
local key, same = field(id, 'key'), field(id, 'same')
if key and redis.call('GET', key) == id then redis.call('DEL', key) end
if same then redis.call('ZREM', same, id) end
return 1
"""
)

_REMOVE = Script(_COMMON + "if ARGV[2] == '1' then remove_outgrown(ARGV[1]) else remove(ARGV[1]) end return 1")

_RENEW = Script(
    _COMMON
    + """
redis.call('SET', root .. ':epoch', ARGV[1], 'NX')
local missing = {}
for place = 2, #ARGV do
  local id = ARGV[place]
  if not exists(id) then
    missing[#missing + 1] = id
  elseif not field(id, 'end') then
    keep_until(id, now + LIFE)
  end
end
remove_old()
redis.call('SET', root .. ':renewed', text(now), 'PX', text(day))
for _, name in ipairs({'all', 'ended', 'sizes', 'owners', 'owned', 'total', 'epoch'}) do
  redis.call('PEXPIRE', root .. ':' .. name, text(day))
end
return {redis.call('GET', root .. ':epoch'), missing}
"""
)


class ValkeyRuns:
    """The runs of all replicas that share a server (SharedRuns)."""

    def __init__(self, valkey: Valkey, bounds: RunBounds) -> None:
        self.bounds = bounds
        self._valkey = valkey
        # Copies have a connection of their own: large ones make neither limits nor the search for a run wait.
        self._copies = Valkey(valkey.address, COPY_DEADLINE_S, outage_level=logging.DEBUG)

    async def open(self, card: RunCard, *, is_retry: bool) -> Opening | JoinedId | None:
        path, model = (text.encode(errors="surrogatepass") for text in (card.path, card.model))
        answer = await _run(
            self._valkey,
            _OPEN,
            *(card.id, card.owner, path, card.digest, int(card.key is not None), card.key or b"", model),
            *(int(card.wants_array), int(is_retry), secrets.token_hex(8)),
            *(RUN_BYTES, self.bounds.owner, self.bounds.all),
        )
        match answer:
            case bytes():
                return Opening(answer.decode())
            case [bytes(id)]:
                return JoinedId(id.decode())
        return None

    async def add(self, id: str, part: RunPart) -> int | Absence | None:
        end = part.end
        answer = await _run(
            self._copies,
            _ADD,
            *(id, part.start),
            b"" if part.head is None else msgspec.json.encode(part.head),
            b"" if end is None else msgspec.json.encode(end),
            int(end is not None and end.failure is not None),
            0 if end is None else _milliseconds(end.keep_s),
            *(part.signs, part.sign, int(part.is_lost)),
            *(PIECE_BYTES, self.bounds.run, self.bounds.owner, self.bounds.all),
            *part.pieces,
        )
        return ABSENCES.get(answer, answer) if isinstance(answer, int) else None

    async def read(self, id: str, place: int) -> SharedRun | Absence | None:
        answer = await _run(self._valkey, _READ, id, place, READ_PIECES)
        match answer:
            case [[*known], [*pieces], int(is_read)]:
                return _read_run(id, known, cast(list[bytes], pieces), bool(is_read))
            case int():
                return ABSENCES[answer]
        return None

    async def take(self, id: str) -> bool | None:
        return _to_bool(await _run(self._valkey, _TAKE, id))

    async def release(self, id: str) -> bool | None:
        return _to_bool(await _run(self._valkey, _RELEASE, id))

    async def remove(self, id: str, *, is_outgrown: bool = False) -> bool | None:
        return _to_bool(await _run(self._valkey, _REMOVE, id, int(is_outgrown)))

    async def renew(self, ids: Sequence[str]) -> RenewedRuns | None:
        match await _run(self._copies, _RENEW, secrets.token_hex(8), *ids):
            case [bytes(epoch), [*missing]]:
                return RenewedRuns(epoch, frozenset(id.decode() for id in cast(list[bytes], missing)))
        return None

    def listen(self, on_news: Callable[[str], None], on_gap: Callable[[], None]) -> Callable[[], None]:
        return self._valkey.listen(NEWS, lambda id: on_news(id.decode()), on_gap)

    async def stop(self) -> None:
        await self._copies.stop()


async def _run(valkey: Valkey, script: Script, *values: Word) -> Answer:
    """Run a script; a second time if there is no answer, unless the server is known to be out."""
    for _ in range(TRIES):
        try:
            return await valkey.run(script, [ROOT], values)
        except SharedStateError:  # it is logged where it is counted
            if valkey.is_out:
                break
    return None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _to_bool(answer: Answer) -> bool | None:
    return None if answer is None else bool(answer)


def _read_run(id: str, known: Sequence[Answer], pieces: Sequence[bytes], is_read: bool) -> SharedRun:
    made, owner, path, digest, model, array, head, end, signs, sign = (cast(bytes, value or b"") for value in known)
    card = RunCard(
        id=id,
        owner=owner.decode(),
        path=path.decode(errors="surrogatepass"),
        digest=digest,
        key=None,
        model=model.decode(errors="surrogatepass"),
        wants_array=array == b"1",
    )
    return SharedRun(
        made=made,
        card=card,
        head=msgspec.json.decode(head, type=RunHead) if head else None,
        pieces=pieces,
        is_read=is_read,
        end=msgspec.json.decode(end, type=RunEnd) if end and is_read else None,
        signs=int(signs or 0),
        sign=sign,
    )
