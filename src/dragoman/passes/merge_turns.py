"""Turns come in; the same without two of one role in a row go out."""

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Turn


def merge_turns(turns: Iterable[Turn], ledger: Ledger) -> tuple[Turn, ...]:
    """Runs of one role as one turn each: the parts in order, standing where the first turn stood."""
    runs: list[list[Turn]] = []
    for turn in turns:
        if runs and runs[-1][0].role is turn.role:
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return tuple(run[0] if len(run) == 1 else _joined(run, ledger) for run in runs)


def _joined(run: list[Turn], ledger: Ledger) -> Turn:
    for turn in run[1:]:
        for pointer in turn.ext:
            ledger.dropped(f"{turn.at}/{pointer}", "the turn was joined to the one before it")
    return replace(run[0], parts=tuple(part for turn in run for part in turn.parts))
