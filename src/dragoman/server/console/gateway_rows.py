"""The rows of all processes of all replicas, for the tabs that this process serves.

While a tab is open, the rows of this process are described again at each tick, and the changes of the others' rows are
fetched. While none is open, nothing happens.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.proxy.ports import OtherProcesses
from dragoman.server.console.live_requests import (
    ENDED_ROWS,
    MANY,
    SLOW_TICK_S,
    TICK_S,
    LiveRequests,
    Row,
    RowChange,
    RowLog,
)
from dragoman.server.console.stored_hour import StoredHour

QUESTION = "rows"
EVERY_KEY = "*"
POLLED_S = 3.0  # seconds after a poll by another process for which a tab counts as watching this one
MAX_MISSES = 2  # questions in a row that a process does not answer before its rows are taken away
_POSITION = re.compile(r"([0-9a-f]{8})-([0-9]{1,12})")

Position = dict[str, int]  # of a reader: the number of the last change that it has, by the epoch of the log


class ProcessRows(Struct, array_like=True):
    """What a process answers: what changed after the change `first`, and its rows where that is not enough."""

    epoch: str
    first: int
    rows: dict[int, Row] | None
    changes: list[RowChange]
    totals: dict[str, Row]  # by key


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ProcessRows).decode


class Taken(Struct, frozen=True):
    """What a reader is sent. `is_whole`: it must forget what it had before; `is_partial`: a process does not answer."""

    rows: list[Row]
    gone: list[int]
    is_whole: bool
    is_partial: bool


def read_position(text: str) -> Position:
    """Return the position that the id of an event stands for; empty if it is not one of ours."""
    found = [_POSITION.fullmatch(part) for part in text.split(".")]
    return {match[1]: int(match[2]) for match in found if match is not None}


class Watcher:
    """One reader of the feed, and how far it has read each process's changes. `key` restricts it to one key's rows."""

    def __init__(self, rows: "GatewayRows", key: str | None, position: Position) -> None:
        self.key = key
        self.totals: Row = {}
        self.stored = StoredHour()
        self.woken = asyncio.Event()
        self._rows = rows
        self._seen = position
        self._is_partial = False

    @property
    def must_end(self) -> bool:
        return self._rows.is_stopping

    @property
    def position(self) -> str:
        return ".".join(f"{epoch}-{number}" for epoch, number in self._seen.items())

    def count_pending(self) -> int:
        """Return how many rows have changed since the last call of `take`, or more."""
        pending = 0
        for log in self._rows.logs:
            changes = log.list_changes_since(self._seen[log.epoch]) if log.epoch in self._seen else None
            pending += len(log.rows) if changes is None else sum(len(change.changed) for change in changes)
        return pending

    def wake_if_changed(self) -> None:
        totals = self.stored.complete(self._rows.count_totals(self.key))
        if totals != self.totals or {log.epoch: log.number for log in self._rows.logs} != self._seen:
            self.totals = totals
            self.woken.set()

    def take(self) -> Taken:
        """Return what changed since the last call: whole rows or changed fields, each with its number."""
        self.woken.clear()
        logs = self._rows.logs
        missed = {log.epoch: log.list_changes_since(self._seen[log.epoch]) for log in logs if log.epoch in self._seen}
        is_partial = self._rows.is_partial
        is_whole = not self._seen or None in missed.values() or not self._seen.keys() <= missed.keys()
        is_whole |= is_partial != self._is_partial
        self._is_partial = is_partial
        if is_whole:
            missed = {}
        changed: dict[int, Row] = {}
        gone: set[int] = set()
        for log in logs:
            for change in missed.get(log.epoch) or ():
                for number, fields in change.changed.items():
                    changed.setdefault(number, {}).update(fields)
                gone.update(change.gone)
            if log.epoch not in missed:
                changed |= log.rows
        self._seen = {log.epoch: log.number for log in logs}
        visible = [{"number": number, **row} for number, row in changed.items() if self._shows_row(number)]
        return Taken(visible, sorted(gone), is_whole, is_partial)

    def _shows_row(self, number: int) -> bool:
        row = next((log.rows[number] for log in self._rows.logs if number in log.rows), None)
        return row is not None and self.key in (None, row["key"])


class GatewayRows:
    """The logs of all processes, kept up to date while a tab is open."""

    def __init__(self, live: LiveRequests, group: OtherProcesses | None) -> None:
        self._live = live
        self._group = group
        self.is_stopping = False
        self.is_partial = False  # a process does not answer, so that its requests are missing
        self._watchers: set[Watcher] = set()
        self._others: dict[str, RowLog] = {}  # by process
        self._other_totals: dict[str, dict[str, Row]] = {}
        self._misses: dict[str, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._polled_until = 0.0
        self._ticked_at = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._polling = asyncio.Lock()
        if group is not None:
            group.answer(QUESTION, self._answer)

    @property
    def logs(self) -> list[RowLog]:
        return [self._live.log, *self._others.values()]

    def count_totals(self, key: str | None) -> Row:
        """Return the totals of all processes."""
        totals = self._live.count_totals(key)
        for others in self._other_totals.values():
            for name, value in others.get(key or EVERY_KEY, {}).items():
                totals[name] = _add(totals.get(name), value)
        return totals

    @asynccontextmanager
    async def watch(self, key: str | None, position: Position) -> AsyncIterator[Watcher]:
        """Let a reader follow all rows, from where it had come before."""
        watcher = Watcher(self, key, position)
        self._watchers.add(watcher)
        try:
            self._live.set_watched(True)
            self._tick()
            await self._poll_others(position)  # the reader may have seen more of other processes than this one has
            if self._following is None:
                self._following = spawn(self._follow(), name="live feed")
            watcher.wake_if_changed()
            watcher.woken.set()
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self._record_unwatched()

    def count_watchers(self, key: str | None) -> int:
        """Return how many readers follow the rows of a key, or all rows."""
        return sum(watcher.key == key for watcher in self._watchers)

    def begin_stop(self) -> None:
        """End all feeds, so that their tabs connect to another process, or to the gateway that replaces this one."""
        self.is_stopping = True
        for watcher in self._watchers:
            watcher.woken.set()

    def _record_unwatched(self) -> None:
        if not self._watchers and time.monotonic() >= self._polled_until:
            self._live.set_watched(False)

    async def _follow(self) -> None:
        try:
            while self._watchers:
                many = sum(len(log.rows) - ENDED_ROWS for log in self.logs) > MANY
                await asyncio.sleep(SLOW_TICK_S if many else TICK_S)
                self._tick()
                await self._poll_others({})
                for watcher in self._watchers:
                    watcher.wake_if_changed()
        finally:
            self._following = None
            self._others.clear()
            self._other_totals.clear()

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._live.tick()

    async def _poll_others(self, position: Position) -> None:
        """Ask the other processes what changed; `position` is where a reader is of which they may know more."""
        if self._group is None:
            return
        async with self._polling:
            names = self._group.names
            answers = await self._group.ask_all(QUESTION, self._make_question(position))
            for process, answer in answers.items():
                self._update(process, _decode(answer))
            for process in self._others.keys() - answers.keys():
                self._misses[process] = self._misses.get(process, 0) + 1
                if self._misses[process] >= MAX_MISSES or process not in names:
                    self._forget(process)
            self.is_partial = self._group.is_partial or not {*names} - {self._group.own} <= self._others.keys()

    def _make_question(self, position: Position) -> dict[str, str]:
        keys = {watcher.key or EVERY_KEY for watcher in self._watchers}
        logs = [log for log in self._others.values() if log.reaches_back_to(position.get(log.epoch))]
        known = {log.epoch: log.number for log in logs}
        place = ".".join(f"{epoch}-{number}" for epoch, number in (position | known).items())
        return {"position": place, "known": ".".join(f"{epoch}-0" for epoch in known), "keys": ",".join(keys)}

    def _update(self, process: str, answer: ProcessRows) -> None:
        self._misses.pop(process, None)
        self._other_totals[process] = answer.totals
        if answer.rows is not None:
            self._others[process] = RowLog(answer.epoch, answer.first, answer.rows)
        for change in answer.changes:
            self._others[process].append(change)

    def _forget(self, process: str) -> None:
        del self._others[process]
        self._other_totals.pop(process, None)
        self._misses.pop(process, None)

    async def _answer(self, question: dict[str, str]) -> bytes:
        """Answer another process that has a tab open."""
        now = time.monotonic()
        self._polled_until = now + POLLED_S
        self._live.set_watched(True)
        if not self._watchers and now - self._ticked_at > TICK_S / 2:
            self._tick()
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(POLLED_S, self._expire)
        log = self._live.log
        position, known = read_position(question["position"]), read_position(question["known"])
        changes = log.list_changes_since(position[log.epoch]) if log.epoch in position else None
        rows = None if changes is not None and log.epoch in known else log.rows
        totals = {
            key: self._live.count_totals(None if key == EVERY_KEY else key) for key in question["keys"].split(",")
        }
        first = log.number if changes is None else position[log.epoch]
        return _encode(ProcessRows(log.epoch, first, rows, changes or [], totals))

    def _expire(self) -> None:
        """Stop recording for other processes that ask no more."""
        left = self._polled_until - time.monotonic()
        self._expiry = asyncio.get_running_loop().call_later(left, self._expire) if left > 0 else None
        self._record_unwatched()


def _add(one: object, other: object) -> object:
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one) or bool(other)
    return one + other if isinstance(one, int | float) and isinstance(other, int | float) else other
