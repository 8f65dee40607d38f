"""The requests under way in this process, so that an operator can end them."""

import asyncio
from collections.abc import Collection

from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.proxy.request_record import RequestRecord
from dragoman.translate.hub.failure import Failure, Kind, RequestError

ENDED_BY_OPERATOR = Failure(Kind.FORBIDDEN, "The operator of the gateway ended this request.", code="ended_by_operator")
KEY_REVOKED = Failure(Kind.AUTH, "The API key of this request was revoked.")
REASONS = (ENDED_BY_OPERATOR, KEY_REVOKED)

ReplyTask = asyncio.Task[None] | asyncio.Task[object] | None


class RunningRequests(dict[RequestRecord, tuple[str, ReplyTask]]):
    """Every request that has a usage row, from its head to its end, with its key."""

    def cancel_of_keys(self, keys: Collection[str]) -> None:
        """End the requests of keys that are revoked with an error in their clients' protocols."""
        for key, task in list(self.values()) if keys else ():
            if key in keys and task is not None:
                task.cancel(KEY_REVOKED)


def find_cause(fault: BaseException, sink: ReplySink) -> BaseException | None:
    """Return what a request really failed with: an operator may have ended it. None if its client knows already."""
    reason = fault.args[0] if isinstance(fault, asyncio.CancelledError) and fault.args else None
    ended = next((failure for failure in REASONS if failure is reason), None)
    task = asyncio.current_task()
    if ended is None or sink.reader_gone or task is None:
        return fault
    task.uncancel()
    return None if sink.phase >= SinkPhase.SENT else RequestError(ended)
