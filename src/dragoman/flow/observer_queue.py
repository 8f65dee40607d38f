"""Pass the outcomes of ended requests to the observers, in batches."""

import asyncio
import logging
from collections.abc import Sequence
from contextvars import Context

from dragoman.flow.request_record import RequestRecord
from dragoman.hub.outcome import Outcome, OutcomeObserver
from dragoman.net.tasks import describe_fault

log = logging.getLogger(__name__)

GATHER_S = 0.02
MAX_QUEUED = 64  # records that wait


class ObserverQueue:
    """Passes outcomes on after the current turn of the event loop, and further ones in batches.

    A batch costs half as much as the same outcomes one by one between requests.
    """

    def __init__(self, observers: Sequence[OutcomeObserver]) -> None:
        self._observers = tuple(observers)
        self._ended: list[RequestRecord] = []
        self._passed_at = 0.0  # by the loop's clock
        self.under_way = 0  # requests whose outcome is still to come
        self.failures = 0

    def attach(self, observer: OutcomeObserver) -> None:
        """Pass outcomes to one more observer from now on."""
        self._observers += (observer,)

    def add(self, record: RequestRecord) -> None:
        record.end()
        if not record.rounds:  # the request was queued; it is its run that has an outcome
            return
        self._ended.append(record)
        if len(self._ended) >= MAX_QUEUED:
            self.flush()
        elif len(self._ended) == 1:
            self._schedule()

    def flush(self) -> None:
        """Pass on all outcomes so far; a failing observer does not affect the others."""
        ended, self._ended = self._ended, []
        outcomes = [record.outcome() for record in ended]
        for observe in self._observers:
            for outcome in outcomes:
                try:
                    observe(outcome)
                except Exception as bug:
                    self._note_failure(outcome, bug)

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait = 0.0 if now - self._passed_at >= GATHER_S else GATHER_S
        self._passed_at = now + wait
        # In a context of its own: the batch does not belong to the request that ended first.
        if wait:
            loop.call_later(wait, self.flush, context=Context())
        else:
            loop.call_soon(self.flush, context=Context())

    def _note_failure(self, outcome: Outcome, bug: Exception) -> None:
        self.failures += 1
        log.error("%s went unobserved: %s", outcome.request_id, describe_fault(bug))
