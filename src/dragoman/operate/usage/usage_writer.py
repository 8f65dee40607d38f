"""Rows of usage: made from outcomes, written to the store in batches, removed when they are old."""

import asyncio
import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from dragoman.net.tasks import spawn
from dragoman.operate.prices import Pricing
from dragoman.proxy.outcome import UNKNOWN_CACHE_USE, UNKNOWN_ORIGIN, Outcome
from dragoman.store import Store, StoreError
from dragoman.store.audit import AUDIT_DAYS
from dragoman.store.meter import encode_charge
from dragoman.store.usage_rows import NUMBER_BITS, UsageRow, make_id
from dragoman.translate.hub.failure import describe_cause
from dragoman.translate.hub.usage import MAX_COUNT, MAX_CREDITS, Usage, UsageSource

MAX_PENDING = 10_000
BATCH = 1000
PAUSE_S = 0.2  # between two writes, which is what a crash may lose; after a pause the first is made at once
MAX_PAUSE_S = 5.0  # while the store fails
STOP_S = 5.0
MAX_TEXT = 200

MAX_COST_NANO = 10**15  # a million dollars
NO_COUNTS: Sequence[int | None] = (None,) * 5
REPORTED = UsageSource.REPORTED

log = logging.getLogger(__name__)


class UsageWriter:
    """Writes rows in the background. While the store fails, it keeps a bounded number and counts what it drops."""

    def __init__(self, store: Store, pricing: Pricing) -> None:
        self.pricing = pricing
        self.on_written: Callable[[Sequence[str]], None] | None = None  # called with the leases of rows that are stored
        self.dropped = 0
        self.written = 0
        self._store = store
        self._pending: list[UsageRow] = []
        # Makes ids unique, among several gateways too, without reading random bytes each time.
        self._numbers = itertools.count(secrets.randbits(NUMBER_BITS - 1))
        self._batch: list[UsageRow] = []  # being written, under the same ids until that succeeds
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._is_failing = False
        self._task: asyncio.Task[None] | None = None

    def observe(self, outcome: Outcome) -> None:
        pending = self._pending
        if len(pending) + len(self._batch) >= MAX_PENDING and not outcome.lease:  # its limits have counted it
            self.dropped += 1
            return
        if not pending:
            self._woken.set()
        # Not in a thread: many outcomes arrive in a row, and a thread would cost more than this does.
        pending.append(make_row(outcome, self.pricing, next(self._numbers), self._store.clock.ahead_s))

    def encode(self, outcome: Outcome) -> bytes:
        """Return the row of a request as its lease carries it, so that others can write it."""
        return encode_charge(make_row(outcome, self.pricing, next(self._numbers), self._store.clock.ahead_s))

    @property
    def store(self) -> Store:
        return self._store

    @property
    def pending(self) -> int:
        return len(self._pending) + len(self._batch)

    async def wait_until_written(self) -> Store:
        """Write all pending rows and return the store. Raises StoreError if it fails."""
        await self._flush()
        return self._store

    def start(self) -> None:
        self._task = spawn(self._run(), name="usage")

    async def stop(self) -> None:
        """Write the remaining rows, if the store accepts them in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(STOP_S):
                await self._flush()
        except (StoreError, TimeoutError) as error:
            log.error("%d rows of usage are lost: %s", self.pending, describe_cause(error))

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        pause, wrote_at = PAUSE_S, 0.0
        while True:
            await self._woken.wait()
            await asyncio.sleep(wrote_at + pause - clock())
            self._woken.clear()
            wrote_at = clock()
            try:
                await self._flush()
            except StoreError as error:
                self._woken.set()
                pause = min(MAX_PAUSE_S, pause * 2)
                if not self._is_failing:
                    log.warning("usage cannot be stored; up to %d rows are kept until it can: %s", MAX_PENDING, error)
                self._is_failing = True
            else:
                pause = PAUSE_S
                if self._is_failing:
                    log.warning("usage is stored again; %d rows were dropped in total", self.dropped)
                self._is_failing = False

    async def _flush(self) -> None:
        async with self._writing:
            while self._batch or self._pending:
                if not self._batch:
                    self._batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                await self._store.append_usage(self._batch)
                self.written += len(self._batch)
                stored, self._batch = self._batch, []
                leases = [row.lease for row in stored if row.lease]
                if leases and self.on_written is not None:
                    self.on_written(leases)


def make_row(outcome: Outcome, pricing: Pricing, number: int, ahead_s: float = 0.0) -> UsageRow:
    """Make a row; `number` makes its id unique within its millisecond.

    Its time is that of the store, of which the clock of this machine is `ahead_s`: rows are of the windows of limits.
    """
    provider, model = outcome.provider, outcome.model
    if not provider and outcome.failed_attempts:
        provider, _, model = outcome.failed_attempts[-1].route.partition("/")
    time_ms = int((outcome.started_at - ahead_s) * 1000)
    usage, ttft_s, cache, origin = outcome.usage, outcome.ttft_s, outcome.cache_use, outcome.origin
    read, cache_read, cache_write, written, reasoning = NO_COUNTS if usage is None else _counts(usage)
    cost, saved = pricing.price(outcome)
    key, client, model, requested_model = _known_texts(outcome.key, outcome.client, model, outcome.requested_model)
    # By position: a call with more than 15 keywords makes dictionaries of them, and takes four times as long.
    row = UsageRow(
        make_id(time_ms, number), time_ms, _text(outcome.request_id),
        key, client, outcome.client_protocol, outcome.upstream_protocol, provider, model, requested_model,
        outcome.stream,
        read, cache_read, cache_write, written, reasoning,
        None,  # credits
        None if usage is None else "reported" if usage.source is REPORTED else usage.source.value,
        cost if cost is None or 0 <= cost <= MAX_COST_NANO else min(max(cost, 0), MAX_COST_NANO),
        None if ttft_s is None else int(ttft_s * 1000 + 0.5),
        int(outcome.duration_s * 1000 + 0.5),
        outcome.outcome,
        None if outcome.error_code is None else _text(outcome.error_code),
        outcome.losses, outcome.attempts,
    )  # fmt: skip
    # What is nearly always as by default is set only where it differs.
    if usage is not None and usage.credits is not None and math.isfinite(usage.credits):
        row.credits = min(max(usage.credits, 0.0), MAX_CREDITS)
    tools = outcome if usage is None or outcome.tool_runs else usage
    if tools.web_searches or tools.web_fetches:
        row.web_searches, row.web_fetches = min(tools.web_searches, MAX_COUNT), min(tools.web_fetches, MAX_COUNT)
    if origin is not UNKNOWN_ORIGIN:
        row.session, row.agent, row.parent_agent = origin.session, origin.agent, origin.parent_agent
    if cache is not UNKNOWN_CACHE_USE:
        row.cache_miss = cache.miss
        if cache.possible_tokens is not None:
            row.cache_possible_tokens = min(cache.possible_tokens, MAX_COUNT)
        if cache.miss_path is not None:
            row.cache_miss_path = _text(cache.miss_path)
    if saved is not None:
        is_bounded = -MAX_COST_NANO <= saved <= MAX_COST_NANO
        row.cache_saved_nano_usd = saved if is_bounded else min(max(saved, -MAX_COST_NANO), MAX_COST_NANO)
    if outcome.user or outcome.team:
        row.user, row.team = outcome.user, outcome.team
    if outcome.rounds != 1:
        row.rounds = outcome.rounds
    if outcome.run:
        row.run = outcome.run
    if outcome.client_request_id:
        row.client_request_id = _text(outcome.client_request_id)
    if outcome.tags:
        row.tags = outcome.tags
    if outcome.lease:
        row.lease = outcome.lease
    return row


def _counts(usage: Usage) -> Sequence[int]:
    counts = (usage.input, usage.cache_read, usage.cache_write, usage.output, usage.reasoning)
    # The bitwise OR is negative if one of them is, and at least as large as the largest.
    if 0 <= counts[0] | counts[1] | counts[2] | counts[3] | counts[4] <= MAX_COUNT:
        return counts
    return [min(max(count, 0), MAX_COUNT) for count in counts]


def _text(text: str) -> str:
    """Make text of a client or an upstream short, and acceptable to every database."""
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT]
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "").encode(errors="replace").decode()


@lru_cache(maxsize=1024)
def _known_texts(key: str, client: str, model: str, requested_model: str) -> tuple[str, str, str, str]:
    """Do the same to texts that repeat."""
    return _text(key), _text(client), _text(model), _text(requested_model)


DAY_MS = 86_400_000
REMOVE_EVERY_S = 3600.0
REMOVE_BATCH = 1000  # rows in one transaction, which other users of the store wait for
REMOVE_PAUSE_S = 0.05


async def remove_old_usage_forever(
    store: Store, days: Callable[[], float | None], every_s: float = REMOVE_EVERY_S
) -> None:
    """Remove old rows of usage and of the audit log every hour, forever; None from `days` keeps all rows of usage."""
    while True:
        kept = days()
        try:
            if kept is not None:
                await remove_old_usage(store, kept)
            await store.remove_audit(int(time.time() * 1000 - AUDIT_DAYS * DAY_MS))
        except StoreError as error:
            log.warning("cannot remove old rows of usage and of the audit log now: %s", error)
        await asyncio.sleep(every_s)


async def remove_old_usage(store: Store, days: float) -> None:
    before_ms = int(time.time() * 1000 - days * DAY_MS)
    removed = 0
    while now := await store.remove_usage(before_ms, REMOVE_BATCH):
        removed += now
        await asyncio.sleep(REMOVE_PAUSE_S)
    if removed:
        log.info("removed %d rows of usage older than %g days", removed, days)
