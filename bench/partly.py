"""`python -m bench.partly NAMES serve ...`: dragoman with only some of its observers, for `bench.observers`.

NAMES are of `log`, `metrics` and `usage`, with commas; with `none`, nobody hears how a request ended.
"""

import sys
from collections.abc import Sequence

from dragoman.cli.main import main
from dragoman.flow.audience import Audience
from dragoman.flow.trail import Trail
from dragoman.hub.outcome import OutcomeObserver

MODULES = {
    "dragoman.observers.request_log": "log",
    "dragoman.observers.metrics": "metrics",
    "dragoman.accounts.usage": "usage",
}


def keep_only(names: set[str]) -> None:
    begin = Audience.__init__

    def begin_with_some(audience: Audience, observers: Sequence[OutcomeObserver]) -> None:
        begin(audience, [observe for observe in observers if MODULES[observe.__module__] in names])

    def hear_nothing(audience: Audience, trail: Trail) -> None:
        pass

    # setattr: the gateway under measurement offers no switch for its observers, and shall not get one.
    setattr(Audience, "__init__", begin_with_some)  # noqa: B010
    if names == {"none"}:
        setattr(Audience, "hear", hear_nothing)  # noqa: B010


if __name__ == "__main__":
    keep_only(set(sys.argv.pop(1).split(",")))
    main()
