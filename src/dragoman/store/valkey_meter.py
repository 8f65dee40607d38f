"""Rates and slots of all gateways in Valkey: one call of a script for what has come up in a turn of the event loop.

It answers as tenancy/counters.py does, by the server's clock. Processes are watched: who is silent while the others
are heard loses its slots. What the server has forgotten is named to it again: each process knows what it runs.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from msgspec import Struct

from dragoman.net.tasks import spawn, spawn_apart
from dragoman.store.meter import GONE, Admitted, Gone, Hold, HoldKind, Level, Refused
from dragoman.store.valkey import Answer, Script, SharedStateError, Valkey, Word

BASE = "meter:"
BATCH = 100  # operations of a call
MAX_POSTED = 10_000  # that are repeated once the server answers; what is lost of them is found by naming
TICK_S = 1.0
BEAT_S = 5.0
NAME_EVERY = 6  # heartbeats: all leases are named
MAX_SILENT = 6  # own heartbeats, without one of the other process
UNNAMED_S = 10.0  # how long a lease may be held that its process does not know

# Keys: rate:COUNTER "level at_ms limit", until it is full; slots:COUNTER lease -> process; lease:ID its process and
# holds, or "x" once it has ended; process:ID its leases with slots; gone:ID if it was collected; processes: their
# heartbeats; epoch. All but the epoch expire. A Lua number is a double: whole up to 2^53, which a rate of 10^11 a
# minute reaches, and off by less than one request or token beyond.
METER = Script("""
local base, time = KEYS[1], redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local UNITS, BARRED_MS, DAY_MS, MOST_MS = 60000, '60000', '86400000', 2592000000
local place, gone, apply = 1, {}, {}

if ARGV[1] ~= '' and redis.call('GET', base .. 'epoch') ~= ARGV[1] then return 0 end

local function word()
    place = place + 1
    return ARGV[place]
end

local function read_words()
    local words = {}
    for index = 1, tonumber(word()) do words[index] = word() end
    return words
end

local function read_holds()
    local holds = {}
    for index = 1, tonumber(word()) do
        holds[index] = {word(), tonumber(word()), tonumber(word()), tonumber(word())}
    end
    return holds
end

local function is_gone(process)
    if gone[process] == nil then gone[process] = redis.call('EXISTS', base .. 'gone:' .. process) == 1 end
    return gone[process]
end

local function keep_rate(counter, limit, level)
    local until_full = math.min(math.ceil((limit * UNITS - level) / limit) + 1000, MOST_MS)
    redis.call('SET', base .. 'rate:' .. counter, string.format('%.0f %.0f %.0f', level, now, limit),
        'PX', string.format('%.0f', math.max(1, until_full)))
end

local function read_rate(counter)
    local known = redis.call('GET', base .. 'rate:' .. counter)
    if not known then return nil end
    local level, at, limit = known:match('(%S+) (%S+) (%S+)')
    level, at, limit = tonumber(level), tonumber(at), tonumber(limit)
    if at > now then  -- the clock was set back: it is filled from now on, not from then
        keep_rate(counter, limit, level)
        at = now
    end
    return level, at, limit
end

local function fill(counter, limit)
    local level, at, before = read_rate(counter)
    if not level then return limit * UNITS end
    level = math.min(level + math.max(0, now - at) * before, before * UNITS)
    return math.max(level + (limit - before) * UNITS, math.min(level, 0))
end

local function find_refusal(lease, holds)
    for index, hold in ipairs(holds) do
        local counter, kind, limit, amount = unpack(hold)
        local slots = base .. 'slots:' .. counter
        if limit == 0 then return {0, index - 1, 0, 0, 1} end
        if kind == 1 then
            local running = redis.call('HLEN', slots)
            if running >= limit and redis.call('HEXISTS', slots, lease) == 0 then
                return {0, index - 1, running, 1000, 0}
            end
        else
            local level = fill(counter, limit)
            local wait = math.ceil((math.min(amount, limit) * UNITS - level) / limit)
            if wait > 0 then return {0, index - 1, limit - math.floor(level / UNITS), wait, 0} end
        end
    end
end

local function count_remaining(holds)
    local reply = {1}
    for index, hold in ipairs(holds) do
        local counter, kind, limit = unpack(hold)
        if kind == 1 then
            reply[index + 1] = limit - redis.call('HLEN', base .. 'slots:' .. counter)
        else
            reply[index + 1] = math.floor(fill(counter, limit) / UNITS)
        end
    end
    return reply
end

local function keep_lease(lease, process, held)
    redis.call('SET', base .. 'lease:' .. lease, cmsgpack.pack({process, held}), 'PX', DAY_MS)
end

local function take_slot(lease, process, counter)
    redis.call('HSET', base .. 'slots:' .. counter, lease, process)
    redis.call('PEXPIRE', base .. 'slots:' .. counter, DAY_MS)
    redis.call('SADD', base .. 'process:' .. process, lease)
    redis.call('PEXPIRE', base .. 'process:' .. process, DAY_MS)
end

local function take(lease, process, held, holds)
    for _, hold in ipairs(holds) do
        local counter, kind, limit, amount = unpack(hold)
        local before
        for _, old in ipairs(held) do
            if old[1] == counter then before = old end
        end
        if kind == 1 then
            take_slot(lease, process, counter)
        else
            keep_rate(counter, limit, fill(counter, limit) - amount * UNITS)
        end
        if before then before[4] = before[4] + amount else table.insert(held, hold) end
    end
    keep_lease(lease, process, held)
    return count_remaining(holds)
end

local function give_back(lease, hold, taken)
    local counter, kind, limit, amount = unpack(hold)
    if kind == 1 then
        redis.call('HDEL', base .. 'slots:' .. counter, lease)
    elseif taken and taken ~= amount then
        local _, _, known = read_rate(counter)
        keep_rate(counter, known or limit, fill(counter, known or limit) - (taken - amount) * UNITS)
    end
end

local function read_lease(lease)
    local text = redis.call('GET', base .. 'lease:' .. lease)
    if not text or text == 'x' then return text end
    return unpack(cmsgpack.unpack(text))
end

local function free(lease, amounts)
    local process, held = read_lease(lease)
    if not held then return false end
    for _, hold in ipairs(held) do give_back(lease, hold, amounts[hold[1]]) end
    redis.call('SREM', base .. 'process:' .. process, lease)
    redis.call('DEL', base .. 'lease:' .. lease)
    return true
end

local function end_process(process)
    redis.call('HDEL', base .. 'processes', process)
    for _, lease in ipairs(redis.call('SMEMBERS', base .. 'process:' .. process)) do free(lease, {}) end
    redis.call('DEL', base .. 'process:' .. process)
    return 2
end

function apply.admit()
    local lease, process, holds = word(), word(), read_holds()
    local known, held = read_lease(lease)
    if known == 'x' or is_gone(process) then return 3 end
    if held then return count_remaining(holds) end
    return find_refusal(lease, holds) or take(lease, process, {}, holds)
end

function apply.take()
    local lease, holds = word(), read_holds()
    local process, held = read_lease(lease)
    if not held then return 3 end
    return find_refusal(lease, holds) or take(lease, process, held, holds)
end

function apply.drop()
    local lease, with_rates, counters = word(), word() == '1', read_words()
    local process, held = read_lease(lease)
    if not held then return 3 end
    local kept, dropped = {}, {}
    for _, counter in ipairs(counters) do dropped[counter] = true end
    for _, hold in ipairs(held) do
        if dropped[hold[1]] and (hold[2] == 1 or with_rates) then
            give_back(lease, hold, 0)
        else
            table.insert(kept, hold)
        end
    end
    keep_lease(lease, process, kept)
    return 2
end

function apply.settle()
    local lease, words, amounts = word(), read_words(), {}
    for index = 1, #words, 2 do amounts[words[index]] = tonumber(words[index + 1]) end
    local was_held = free(lease, amounts)
    redis.call('SET', base .. 'lease:' .. lease, 'x', 'PX', BARRED_MS)
    return was_held and 2 or 3
end

function apply.undo()
    local lease = word()
    local _, held = read_lease(lease)
    local amounts = {}
    for _, hold in ipairs(held or {}) do amounts[hold[1]] = 0 end
    return free(lease, amounts) and 2 or 3
end

function apply.again()
    local lease, process, counters = word(), word(), read_words()
    if is_gone(process) then return 3 end
    if redis.call('EXISTS', base .. 'lease:' .. lease) == 0 then
        local held = {}
        for index, counter in ipairs(counters) do
            take_slot(lease, process, counter)
            held[index] = {counter, 1, 0, 1}
        end
        keep_lease(lease, process, held)
    end
    return 2
end

function apply.charge()
    for _, hold in ipairs(read_holds()) do
        local counter, _, limit, amount = unpack(hold)
        keep_rate(counter, limit, fill(counter, limit) - amount * UNITS)
    end
    return 2
end

function apply.beat()
    local process = word()
    if is_gone(process) then return 3 end
    redis.call('HINCRBY', base .. 'processes', process, 1)
    redis.call('PEXPIRE', base .. 'processes', DAY_MS)
    redis.call('PEXPIRE', base .. 'process:' .. process, DAY_MS)
    return redis.call('HGETALL', base .. 'processes')
end

function apply.collect()
    local process, beats = word(), word()
    if redis.call('HGET', base .. 'processes', process) ~= beats then return 3 end
    redis.call('SET', base .. 'gone:' .. process, '1', 'PX', DAY_MS)
    return end_process(process)
end

function apply.alive()
    return is_gone(word()) and 3 or {redis.call('HLEN', base .. 'processes')}
end

function apply.leave()
    return end_process(word())
end

function apply.list()
    return redis.call('SMEMBERS', base .. 'process:' .. word())
end

function apply.read()
    local counter = word()
    local level, _, limit = read_rate(counter)
    local spent = level and limit - math.floor(fill(counter, limit) / UNITS) or 0
    return {spent, redis.call('HLEN', base .. 'slots:' .. counter)}
end

function apply.epoch()
    redis.call('SET', base .. 'epoch', word(), 'NX')
    return redis.call('GET', base .. 'epoch')
end

local replies = {}
while place < #ARGV do table.insert(replies, apply[word()]()) end
return replies
""")


log = logging.getLogger(__name__)


class _PendingCall(Struct, eq=False):
    words: Sequence[Word]
    answered: "asyncio.Future[Answer] | None"  # None: posted, so that it is repeated


class ValkeyMeter:
    """Counts rates and slots for all gateways on a server. What is asked of it raises SharedStateError without one."""

    def __init__(self, shared: Valkey) -> None:
        self.process = secrets.token_hex(8)
        self.processes = 1  # that are alive
        self.shared = shared
        self._epoch = ""  # of what the server knows: another one once it has forgotten everything
        self._adopting = asyncio.Lock()
        self._pending: list[_PendingCall] = []
        self._unsent: deque[_PendingCall] = deque(maxlen=MAX_POSTED)
        self.running: dict[str, int] = {}  # slots of this process, by counter
        self._slots: dict[str, set[str]] = {}  # leases of this process, and the counters of their slots
        self._unknown: dict[str, float] = {}  # what is held for this process that it does not know, and since when
        self._must_name = False
        self.collect_unknown: Callable[[], Sequence[Hold]] = tuple  # what was taken of rates without the server
        self._seen: dict[str, tuple[int, int]] = {}  # other processes: their beats, and for how many of ours
        self._beats = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        shared.on_return.append(self.name_soon)

    # What the path of a call uses.

    async def admit(self, lease: str, holds: Sequence[Hold]) -> Admitted | Refused | Gone:
        """Take rates and slots for a lease, all or nothing."""
        self._check_answers()
        return self._record(lease, holds, await self._ask("admit", lease, self.process, *_list_words(holds)))

    async def take(self, lease: str, holds: Sequence[Hold]) -> Admitted | Refused | Gone:
        """Take more for a lease, all or nothing."""
        self._check_answers()
        return self._record(lease, holds, await self._ask("take", lease, *_list_words(holds)))

    def _check_answers(self) -> None:
        """Raise SharedStateError after two misses: the request has waited for both if it asked for a run."""
        if self.shared.misses > 1:
            raise SharedStateError(f"{self.shared.address.name} has not answered twice")

    def hold(self, lease: str, holds: Iterable[Hold]) -> list[str]:
        """Note that a lease has the slots among these holds, whether the server knows or not; return the new ones."""
        new = []
        for hold in holds:
            if hold.kind == HoldKind.SLOT:
                known = self._slots.setdefault(lease, set())
                if hold.counter not in known:
                    known.add(hold.counter)
                    self.running[hold.counter] = self.running.get(hold.counter, 0) + 1
                    new.append(hold.counter)
        return new

    def release(self, lease: str, counters: Iterable[str]) -> None:
        """Note that a lease no longer has these slots."""
        known = self._slots.get(lease, set())
        for counter in known.intersection(counters):
            known.remove(counter)
            self.running[counter] -= 1
            if not self.running[counter]:
                del self.running[counter]
        if not known:
            self._slots.pop(lease, None)

    def name_soon(self) -> None:
        """Compare what this process runs with what the server has of it, within a second."""
        self._must_name = True

    def drop(self, lease: str, counters: Sequence[str], *, with_rates: bool = False) -> None:
        """Give back slots of a running lease and, of what it took just now, rates."""
        self.release(lease, counters)
        self._post("drop", lease, int(with_rates), len(counters), *counters)

    def settle(self, lease: str, amounts: Mapping[str, int]) -> None:
        """End a lease: `amounts` says what was really taken of rates. One that is unknown is barred for a minute."""
        self.release(lease, self._slots.get(lease, ()))
        flat = [word for pair in amounts.items() for word in pair]
        self._post("settle", lease, len(flat), *flat)

    async def end(self, lease: str, amounts: Mapping[str, int]) -> None:
        """Settle a lease, and wait until that is done, or the server does not answer."""
        self.release(lease, self._slots.get(lease, ()))
        flat = [word for pair in amounts.items() for word in pair]
        try:
            await self._ask("settle", lease, len(flat), *flat)
        except SharedStateError:
            self._post("settle", lease, len(flat), *flat)

    def undo(self, lease: str) -> None:
        """Give back everything of a lease that was admitted just now, and may be again."""
        self.release(lease, self._slots.get(lease, ()))
        ignored: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        ignored.add_done_callback(lambda future: cast(None, future.exception()))
        self._send(_PendingCall(("undo", lease), ignored))  # naming finds what is left if this gets lost

    async def read(self, counters: Sequence[str]) -> list[Level]:
        """Return how rates and slots stand."""
        answers = await asyncio.gather(*(self._ask("read", counter) for counter in counters))
        pairs = cast(Sequence[tuple[int, int]], answers)
        return [Level(counter, spent, 0, running) for counter, (spent, running) in zip(counters, pairs, strict=True)]

    # Calls of the script.

    async def _ask(self, *words: Word) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._send(_PendingCall(words, future))
        return await future

    def _post(self, *words: Word) -> None:
        self._send(_PendingCall(words, None))

    def _send(self, pending: _PendingCall) -> None:
        self._pending.append(pending)
        if len(self._pending) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what has come up in this turn of the event loop."""
        pending, self._pending = self._pending, []
        for at in range(0, len(pending), BATCH):
            task = spawn(self._call(pending[at : at + BATCH]), name="meter call")
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _call(self, batch: Sequence[_PendingCall]) -> None:
        words = [word for pending in batch for word in pending.words]
        try:
            while True:
                epoch = self._epoch
                answers = await self._run(epoch, words) if epoch else None
                if answers is not None:
                    break
                await self._adopt_epoch(epoch)
        except SharedStateError as error:
            for pending in batch:
                if pending.answered is None:
                    self._unsent.append(pending)
                elif not pending.answered.done():
                    pending.answered.set_exception(error)
            return
        for pending, answer in zip(batch, answers, strict=True):
            if pending.answered is not None and not pending.answered.done():
                pending.answered.set_result(answer)

    async def _run(self, epoch: str, words: Sequence[Word]) -> Sequence[Answer] | None:
        """Return an answer to each operation; None if the server has forgotten what it knew in this epoch."""
        answers = await self.shared.run(METER, [BASE], [epoch, *words])
        return None if isinstance(answers, int) else cast(Sequence[Answer], answers)

    async def _adopt_epoch(self, forgotten: str) -> None:
        """Name what this process runs to a server that has forgotten it, before anything else is taken there."""
        async with self._adopting:
            if self._epoch != forgotten:
                return
            if forgotten:
                log.warning("%s has lost its data: running requests are registered again", self.shared.address.name)
            found = await self._run("", ("epoch", secrets.token_hex(8), "beat", self.process))
            assert found is not None
            await self._name(self._slots)
            self._epoch = cast(bytes, found[0]).decode()

    def _record(self, lease: str, holds: Sequence[Hold], answer: Answer) -> Admitted | Refused | Gone:
        match answer:
            case [1, *remaining]:
                self.hold(lease, holds)
                return Admitted(tuple(cast(Sequence[int], remaining)))
            case [0, int(place), int(spent), int(wait_ms), is_spent]:
                return Refused(place, spent, wait_ms=wait_ms, is_spent=bool(is_spent))
            case _:
                return GONE

    # What happens by itself.

    def start(self) -> None:
        """Begin, unless this was called before."""
        if self._task is None:
            self._task = spawn_apart(self._watch_forever(), name="shared meter")

    async def stop(self) -> None:
        """Send what was posted, if the server answers, and be no longer counted as alive."""
        if self._task is None:
            return
        self._task.cancel()
        self._send_again()
        self._post("leave", self.process)
        self._flush()
        await asyncio.gather(self._task, *self._calls, return_exceptions=True)

    async def _watch_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        beaten = clock() - BEAT_S
        while True:
            try:
                if clock() - beaten >= BEAT_S:
                    beaten = clock()
                    await self.watch_processes()
                elif self._must_name:
                    await self.name_leases()
                else:
                    self._count_processes(await self._ask("alive", self.process))  # finds an epoch that is over, too
            except SharedStateError as error:
                log.debug("rates and slots cannot be maintained now: %s", error)
            await asyncio.sleep(TICK_S)

    async def watch_processes(self) -> None:
        """Send a heartbeat, and collect processes that have sent none for six of ours.

        While the server does not answer, none of ours counts either.
        """
        answer = await self._ask("beat", self.process)
        if not isinstance(answer, Sequence):
            self._begin_anew()
            return
        self._send_again()
        flat = cast(Sequence[bytes], answer)
        found = {name.decode(): int(beats) for name, beats in zip(flat[::2], flat[1::2], strict=True)}
        self._seen = {
            process: (beats, self._seen[process][1] + 1 if self._seen.get(process, (-1, 0))[0] == beats else 0)
            for process, beats in found.items()
            if process != self.process
        }
        for process, (beats, silent) in self._seen.items():
            if silent >= MAX_SILENT:
                log.warning("a process sent no heartbeat for %.0f s: its slots are free", MAX_SILENT * BEAT_S)
                await self._ask("collect", process, beats)
        self._beats += 1
        if self._must_name or self._unknown or self._beats % NAME_EVERY == 0:
            await self.name_leases()

    def _count_processes(self, answer: Answer) -> None:
        match answer:
            case [int(count)]:
                self.processes = max(1, count)
            case _:
                self._begin_anew()

    async def name_leases(self) -> None:
        """Take slots again that the server has lost, and end the leases that this process does not know."""
        self._must_name = False
        self._send_again()
        try:
            unknown = self.collect_unknown()
            if unknown:
                self._post("charge", *_list_words(unknown))
            answer = await self._ask("list", self.process)
            held = {lease.decode() for lease in cast(Sequence[bytes], answer)}
            await self._name([lease for lease in self._slots if lease not in held])
        except SharedStateError:
            self._must_name = True
            raise
        now = asyncio.get_running_loop().time()
        self._unknown = {lease: self._unknown.get(lease, now) for lease in held if lease not in self._slots}
        for lease, since in self._unknown.items():
            if now - since >= UNNAMED_S:
                self.settle(lease, {})

    async def _name(self, leases: Iterable[str]) -> None:
        words: list[Word] = []
        for count, lease in enumerate([*leases], 1):
            counters = self._slots.get(lease, set())
            words += ["again", lease, self.process, len(counters), *counters]
            if count % BATCH == 0:
                await self._run("", words)
                words = []
        if words:
            await self._run("", words)

    def _begin_anew(self) -> None:
        """Take a new id: others have ended this process, and freed its slots. What runs takes them again."""
        log.warning("this process sent no heartbeat for too long: its slots were free meanwhile")
        self.process = secrets.token_hex(8)
        self._must_name = True
        self._post("beat", self.process)

    def _send_again(self) -> None:
        unsent, self._unsent = self._unsent, deque(maxlen=MAX_POSTED)
        for pending in unsent:
            self._send(pending)


def _list_words(holds: Sequence[Hold]) -> list[Word]:
    words: list[Word] = [len(holds)]
    for hold in holds:
        words += [hold.counter, int(hold.kind), hold.limit, hold.amount]
    return words
