"""Run a table as one test: a loop that names its row costs less than a case for each, and reads the same.

`each_row` takes the names and rows that `pytest.mark.parametrize` takes. Rows share the test's fixtures, so it is for
tests that leave nothing behind in them.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence

import pytest
from _pytest.mark import ParameterSet

Test = Callable[..., None]


def each_row(names: str | Sequence[str], rows: Iterable[object]) -> Callable[[Test], Test]:
    """Call the test with each row; all failing rows are named, and the first failure is raised."""
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [row.values if isinstance(row, ParameterSet) else (row,) if len(columns) == 1 else row for row in rows]
    assert table, "a table without rows proves nothing"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run_rows(**fixtures: object) -> None:
            failures: list[tuple[str, BaseException]] = []
            for values in table:
                assert isinstance(values, Sequence)
                row = dict(zip(columns, values, strict=True))
                try:
                    test(**fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((f"{row!r:.300}", error))
            if failures:
                first = failures[0][1]
                first.add_note("\n".join(["failing rows:", *(row for row, _ in failures)]))
                raise first

        given = [field for name, field in signature.parameters.items() if name not in columns]
        run_rows.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
        return run_rows

    return decorate
