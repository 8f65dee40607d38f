"""`python -m bench.partly NAMES serve ...`: dragoman with only some of its observers, for `bench.observers`.

NAMES are of `log`, `metrics` and `usage`, with commas; with `none`, no observer gets the outcomes.
"""

import sys
from collections.abc import Sequence

from dragoman.cli.main import main
from dragoman.proxy.outcome import Outcome, OutcomeObserver
from dragoman.proxy.request_record import ObserverQueue, RequestRecord

MODULES = {
    "dragoman.operate.request_log": "log",
    "dragoman.operate.usage.cache_watch": "log",
    "dragoman.operate.metrics.readings": "metrics",
    "dragoman.operate.usage.usage_writer": "usage",
}
NO_OUTCOME = Outcome(request_id="", started_at=0.0, client_protocol="")


def keep_only(names: set[str]) -> None:
    begin = ObserverQueue.__init__

    def begin_with_some(queue: ObserverQueue, observers: Sequence[OutcomeObserver]) -> None:
        begin(queue, [observe for observe in observers if MODULES[observe.__module__] in names])

    def add_nothing(queue: ObserverQueue, record: RequestRecord) -> None:
        if queue.on_end is not None:  # which would keep the record until it has an outcome
            queue.on_end(record, NO_OUTCOME)

    # setattr: the gateway under measurement offers no switch for its observers, and shall not get one.
    setattr(ObserverQueue, "__init__", begin_with_some)  # noqa: B010
    if names == {"none"}:
        setattr(ObserverQueue, "add", add_nothing)  # noqa: B010


if __name__ == "__main__":
    keep_only(set(sys.argv.pop(1).split(",")))
    main()
