"""The requests under way and the last ones that ended, as the console shows them.

Nothing is computed while no tab watches: requests are only put into a dictionary and taken out again.
"""

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.capture.writer import RequestCapture
from dragoman.proxy.outcome import CLIENT_GONE, OK, Outcome
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.running_requests import ENDED_BY_OPERATOR
from dragoman.server.console.live_frames import FrameRing
from dragoman.translate.hub.usage import UsageSource

KEPT_CHANGES = 4  # whose changed fields are kept; of older ones it is only known which rows they concern
KEPT_GONE = 5_000  # rows that have gone
ENDED_ROWS = 50
RECENT = 2000  # outcomes from which totals are made
KEPT_RECORDINGS = 20  # of requests that have ended
KEPT_BYTES = 32 * 1024 * 1024
MAX_RECORDINGS = 50  # at once, of requests that are recorded only because a tab watches
LINGER_S = 60.0  # recordings are kept so long after the last watcher left: a page is often only reloaded
TICK_S = 0.25
SLOW_TICK_S = 1.0  # with more than MANY rows
MANY = 50
DESCRIBE_EVERY = 5  # ticks, with more than MANY requests
ESTIMATED = UsageSource.ESTIMATED.value
MAX_ROWS = 500
ERRORS_S = 300.0
TOTALS_S = 1.0  # how often totals are counted
HOUR_S = 3600.0
NANO = 1_000_000_000
MAX_TEXT = 200
PROCESS_NUMBERS = 2**20  # so that browsers, whose numbers have 53 bits, count 8,000 million requests

Row = dict[str, object]
CostOf = Callable[[Outcome], int | None]


class RowChange(Struct, array_like=True):
    """What changed at once: whole rows, or some of their fields, by the number of the row."""

    number: int
    changed: dict[int, Row]
    gone: list[int]


class RowLog:
    """The rows that tabs show of one worker, by their number, and what changed when.

    A tab that was away gets the rows that have changed since, as long as it is known which ones have gone. `epoch`
    differs for each start of a worker; changes after the one `first` are known.
    """

    def __init__(self, epoch: str = "", first: int = 0, rows: Mapping[int, Row] | None = None) -> None:
        self.epoch = epoch or secrets.token_hex(4)
        self.number = self._first = first  # of the last change, and of the one before the first that is known
        self.rows: dict[int, Row] = dict(rows or {})
        self._changed_at: dict[int, int] = {}  # row -> number of its last change
        self._gone: deque[tuple[int, int]] = deque()  # number of the change, row
        self._recent: deque[RowChange] = deque(maxlen=KEPT_CHANGES)

    def add(self, changed: dict[int, Row], gone: Iterable[int]) -> None:
        """Change rows, and add the change to the log."""
        self.append(RowChange(self.number + 1, changed, list(gone)))

    def append(self, change: RowChange) -> None:
        """Make the change that comes after the last one."""
        self.number = change.number
        self._recent.append(change)
        for row, fields in change.changed.items():
            self.rows[row] = self.rows.get(row, {}) | fields
            self._changed_at[row] = change.number
        for row in change.gone:
            self.rows.pop(row, None)
            self._changed_at.pop(row, None)
            self._gone.append((change.number, row))
        while len(self._gone) > KEPT_GONE:
            self._first = self._gone.popleft()[0]

    def reaches_back_to(self, number: int | None) -> bool:
        """Return whether the changes after the one with this number are known; always for None."""
        return number is None or number >= self._first

    def list_changes_since(self, number: int) -> list[RowChange] | None:
        """Return the changes after the one with this number, or one for all of them; None if they are not known."""
        if not self._first <= number <= self.number:
            return None
        if number == self.number:
            return []
        if number >= self._recent[0].number - 1:
            return [change for change in self._recent if change.number > number]
        changed = {row: self.rows[row] for row, at in self._changed_at.items() if at > number}
        return [RowChange(self.number, changed, [row for at, row in self._gone if at > number])]


class LiveRequest(Struct, eq=False):
    """A request, while it is answered and for a while afterwards.

    Of one that has ended only the outcome is kept: its record refers to the bodies of request and reply.
    """

    number: int
    id: str
    key: str
    record: RequestRecord | None  # None once its outcome is known
    task: "asyncio.Task[object] | None"  # None once it has ended
    request: HttpRequest | None  # None once it has ended
    sink: ReplySink | None  # None likewise
    ended: Outcome | None = None
    ring: FrameRing | None = None  # of a request that is not recorded and is inspected

    @property
    def recording(self) -> Recording | None:
        return None if self.record is None else self.record.recording

    def find_outcome(self) -> Outcome:
        """Return the outcome; before the end, what it would be if the request ended now."""
        if self.ended is not None:
            return self.ended
        assert self.record is not None
        return self.record.outcome()


class LiveRequests:
    """Holds the requests under way and the last ENDED_ROWS that ended; `log` has their rows while a tab is open.

    Rows are numbered in the order of their requests. The last digits of a number are those of the process, drawn by
    lot, so that all processes of all replicas have different numbers.
    """

    def __init__(
        self, captures: RequestCapture, cost_of: CostOf, find_replica: Callable[[], str | None] = lambda: None
    ) -> None:
        self.log = RowLog()
        self._captures = captures
        self._cost_of = cost_of
        self._find_replica = find_replica
        self._numbers = itertools.count(PROCESS_NUMBERS + secrets.randbelow(PROCESS_NUMBERS), PROCESS_NUMBERS)
        self._under_way: dict[RequestRecord, LiveRequest] = {}
        self._ending: dict[RequestRecord, LiveRequest] = {}  # whose outcome comes with the next batch
        self._ended: deque[LiveRequest] = deque(maxlen=ENDED_ROWS)
        self._recent: deque[Outcome] = deque(maxlen=RECENT)
        self._recordings: deque[tuple[str, str, Recording]] = deque()  # id, key
        self._is_watched = False
        self._forgetting: asyncio.TimerHandle | None = None  # once no tab has been open for a while
        self._ticks = 0
        self._totals: dict[str | None, tuple[float, Row]] = {}  # by key, and when they were counted

    # Calls of the request handler and the observer queue

    def begin(self, record: RequestRecord, request: HttpRequest, sink: ReplySink) -> None:
        task = sink.task
        self._under_way[record] = LiveRequest(next(self._numbers), record.id, record.key, record, task, request, sink)
        if record.recording is not None:
            self._allow_recordings()

    def end(self, record: RequestRecord) -> None:
        live = self._under_way.pop(record, None)
        if live is None:
            return
        live.task = live.request = live.sink = None
        if live.ring is not None:
            live.ring.end()
        self._ending[record] = live
        self._ended.append(live)
        if record.recording is not None:
            if self._is_watched:
                self._recordings.append((record.id, record.key, record.recording))
                while len(self._recordings) > KEPT_RECORDINGS or (
                    len(self._recordings) > 1 and sum(kept.memory.size for *_, kept in self._recordings) > KEPT_BYTES
                ):
                    self._recordings.popleft()
            self._allow_recordings()
            record.recording = None

    def record_outcome(self, record: RequestRecord, outcome: Outcome) -> None:
        """Keep the outcome of a request that has ended, in place of its record."""
        live = self._ending.pop(record, None)
        if live is not None:
            live.record, live.ended = None, outcome
        if outcome.rounds:  # else it was queued, and its run is another request
            self._recent.append(outcome)

    # Calls of the feed

    def set_watched(self, is_watched: bool) -> None:
        """Begin or stop to record requests for watchers."""
        if is_watched == self._is_watched:
            return
        self._is_watched = is_watched
        self._allow_recordings()
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        if not is_watched:
            self._totals.clear()
            self._forgetting = asyncio.get_running_loop().call_later(LINGER_S, self._forget)

    def tick(self) -> None:
        """Describe all rows again, and add what changed to the log."""
        before = set(self.log.rows)
        changes = self._refresh()
        gone = before.difference(live.number for live in self._rows())
        if changes or gone:
            self.log.add(changes, gone)

    def find(self, request_id: str, key: str | None) -> LiveRequest | None:
        """Return the newest request with this id that the key may see."""
        found = [live for live in self._rows() if live.id == request_id and key in (None, live.key)]
        return found[0] if found else None

    def find_recording(self, request_id: str, key: str | None) -> Recording | None:
        """Return what is recorded of a request, under way or kept."""
        live = self.find(request_id, key)
        if live is not None and live.recording is not None:
            return live.recording
        kept = [one for id, owner, one in self._recordings if id == request_id and key in (None, owner)]
        return kept[-1] if kept else None

    def open_ring(self, request_id: str, key: str | None) -> FrameRing | None:
        """Begin to keep the frames of a request under way that is not recorded, for one more reader."""
        live = self.find(request_id, key)
        if live is None or live.record is None or live.request is None or live.sink is None:
            return None
        if live.ring is None or live.ring.is_closed:
            live.ring = FrameRing(live.record, live.request, live.sink)
        live.ring.readers += 1
        return live.ring

    def end_stream(self, live: LiveRequest) -> bool:
        """End a request under way with an error in the client's protocol; return whether it still was."""
        if live.task is None:
            return False
        live.task.cancel(ENDED_BY_OPERATOR)
        return True

    def _rows(self) -> list[LiveRequest]:
        """Return what is shown, the newest first: requests under way, then those that ended."""
        under_way = list(self._under_way.values())
        return [*reversed(under_way[-MAX_ROWS:]), *reversed(self._ended)]

    def _allow_recordings(self) -> None:
        recorded = sum(record.recording is not None for record in self._under_way) if self._is_watched else 0
        self._captures.live_left = MAX_RECORDINGS - recorded if self._is_watched else 0

    def _forget(self) -> None:
        """Drop what was recorded for watchers: none has come back."""
        self._recordings.clear()
        self.log = RowLog()

    def _refresh(self) -> dict[int, Row]:
        """Describe all rows again; return what changed of each."""
        changes: dict[int, Row] = {}
        for live in self._rows():
            shown = self.log.rows.get(live.number, {})
            if shown.get("state") == "ended":
                continue
            changed = self._progress(live, shown)
            if changed is None:
                row = self._describe(live)
                changed = {name: value for name, value in row.items() if shown.get(name, ...) != value}
            if changed:
                changes[live.number] = changed
        self._ticks += 1
        return changes

    def _progress(self, live: LiveRequest, shown: Row) -> Row | None:
        """Return what changed in a row of which only the text grows; None if it has to be described again.

        Describing a row takes eight times as long, so that each is described in one tick of DESCRIBE_EVERY.
        """
        record = live.record
        monitor = None if record is None else record.monitor
        is_due = (live.number + self._ticks) % DESCRIBE_EVERY == 0
        if is_due or len(self._under_way) <= MANY or live.task is None or record is None or monitor is None:
            return None
        if shown.get("state") != _state(record) or shown["usage_source"] != ESTIMATED or monitor.ended:
            return None
        tokens = record.written_tokens
        return {} if tokens == shown["output_tokens"] else {"output_tokens": tokens}

    def _describe(self, live: LiveRequest) -> Row:
        record, outcome = live.record, live.find_outcome()
        usage, cost = outcome.usage, self._cost_of(outcome)
        has_ended = record is None or (live.task is None and record.has_ended)
        return {
            "request_id": live.id,
            "client_request_id": _clean(outcome.client_request_id),
            "time": round(outcome.started_at * 1000),
            "replica": self._find_replica(),
            "key": live.key,
            "client": outcome.client,
            "client_protocol": outcome.client_protocol,
            "upstream_protocol": outcome.upstream_protocol,
            "requested_model": _clean(outcome.requested_model),
            "route": _clean(outcome.route),
            "stream": outcome.stream,
            "state": "ended" if record is None or has_ended else _state(record),
            "outcome": outcome.outcome if has_ended else None,
            "error_code": _clean(outcome.error_code or "") or None if has_ended else None,
            "ttft_ms": None if outcome.ttft_s is None else round(outcome.ttft_s * 1000),
            "duration_ms": round(outcome.duration_s * 1000) if has_ended else None,
            "input_tokens": None if usage is None else usage.input,
            "output_tokens": None if usage is None else usage.output,
            "usage_source": None if usage is None else usage.source.value,
            "cost_usd": None if cost is None else cost / NANO,
            "losses": outcome.losses,
            "passthrough": outcome.passthrough,
            "failed_attempts": [_clean(f"{attempt.route}: {attempt.why}") for attempt in outcome.failed_attempts],
            "recorded": live.recording is not None or any(id == live.id for id, *_ in self._recordings),
        }

    def count_totals(self, key: str | None) -> Row:
        """Return sums over the requests of a key, or of all."""
        now = time.monotonic()
        under_way = len(self._under_way) if key is None else sum(record.key == key for record in self._under_way)
        counted_at, totals = self._totals.get(key, (0.0, {}))
        if now - counted_at >= TOTALS_S:
            totals = self._sum_recent(key)
            self._totals[key] = now, totals
        return {"under_way": under_way, **totals}

    def _sum_recent(self, key: str | None) -> Row:
        hour_ago, errors_since = time.time() - HOUR_S, time.time() - ERRORS_S
        recent = [one for one in self._recent if _ended_at(one) > hour_ago and key in (None, one.key)]
        costs = [self._cost_of(one) for one in recent]
        failed = (one for one in recent if _ended_at(one) > errors_since and one.outcome not in (OK, CLIENT_GONE))
        return {
            "errors": sum(1 for _ in failed),
            "requests_last_hour": len(recent),
            "cost_last_hour_usd": sum(cost for cost in costs if cost is not None) / NANO,
            "unpriced_last_hour": sum(
                cost is None and one.usage is not None for cost, one in zip(costs, recent, strict=True)
            ),
            "is_partial": len(self._recent) == RECENT and _ended_at(self._recent[0]) > hour_ago,
        }


def _ended_at(outcome: Outcome) -> float:
    return outcome.started_at + outcome.duration_s


def _state(record: RequestRecord) -> str:
    monitor = record.monitor
    if record.awaits is not None:
        return record.awaits.value
    if monitor is None or not monitor.has_content:
        return "waiting"
    kind = monitor.last_block
    return {"call": "tool call", "hosted": "tool call", "thinking": "thinking"}.get(kind, "streaming")


def _clean(text: str) -> str:
    """Make text of a client short, and valid as JSON even if it has half a surrogate pair."""
    return text[:MAX_TEXT].encode(errors="replace").decode()
