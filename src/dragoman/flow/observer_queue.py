"""Requests that have ended come in; every observer hears what each came to, of many together where many end."""

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
    """The first request to end after a while is told after this turn of the loop.

    What ends soon after it is told together: the same work costs half as much done many times in a row as done once
    between two requests.
    """

    def __init__(self, observers: Sequence[OutcomeObserver]) -> None:
        self._observers = tuple(observers)
        self._ended: list[RequestRecord] = []
        self._told_at = 0.0  # by the loop's clock
        self.failures = 0

    def add(self, record: RequestRecord) -> None:
        record.end()
        self._ended.append(record)
        if len(self._ended) >= MAX_QUEUED:
            self.flush()
        elif len(self._ended) == 1:
            self._tell_soon()

    def flush(self) -> None:
        """All that have ended until now; an observer that fails harms nobody."""
        ended, self._ended = self._ended, []
        outcomes = [record.outcome() for record in ended]
        for observe in self._observers:
            for outcome in outcomes:
                try:
                    observe(outcome)
                except Exception as bug:
                    self._failed(outcome, bug)

    def _tell_soon(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait = 0.0 if now - self._told_at >= GATHER_S else GATHER_S
        self._told_at = now + wait
        # In a context of its own: what is told is not only about the request that happened to end first.
        if wait:
            loop.call_later(wait, self.flush, context=Context())
        else:
            loop.call_soon(self.flush, context=Context())

    def _failed(self, outcome: Outcome, bug: Exception) -> None:
        self.failures += 1
        log.error("%s went unobserved: %s", outcome.request_id, describe_fault(bug))
