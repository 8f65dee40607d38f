"""How far back from a mark Anthropic looks for an entry of its cache."""

from collections.abc import Callable

POSITIONS = 20  # the mark itself is the first


def find_window(find_run: Callable[[int], str | None], mark: int) -> int:
    """Return the first block at which an entry is still looked for.

    `find_run` names what a block is one of: neighbouring blocks of one name take one position together. None: it takes
    one by itself. Empty: it takes none.
    """
    positions, run = 0, None
    for index in range(mark, -1, -1):
        before, run = run, find_run(index)
        positions += run is None or run not in ("", before)
        if positions > POSITIONS:
            return index + 1
    return 0
