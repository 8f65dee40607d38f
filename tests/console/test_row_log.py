"""The log of rows: a reader that comes back at any change ends with the rows of one that never left."""

import asyncio
import random

import pytest

from dragoman.proxy.capture.writer import RequestCapture
from dragoman.server.console import live_requests
from dragoman.server.console.live_requests import KEPT_CHANGES, KEPT_GONE, LiveRequests, Row, RowChange, RowLog

STEPS = 60


def fill(log: RowLog, chance: random.Random, steps: int = STEPS) -> list[dict[int, Row]]:
    """Change rows at random; return what they were after each change, the first one before all of them."""
    states: list[dict[int, Row]] = [{}]
    for step in range(steps):
        present = list(log.rows)
        gone = [row for row in present if chance.random() < 0.1]
        old: dict[int, Row] = {row: {"state": step} for row in present if row not in gone and chance.random() < 0.5}
        log.add({**old, 1000 + step: {"state": "new", "name": str(step)}}, gone)
        states.append({row: dict(fields) for row, fields in log.rows.items()})
    return states


def apply(rows: dict[int, Row], changes: list[RowChange]) -> dict[int, Row]:
    after = {row: dict(fields) for row, fields in rows.items()}
    for change in changes:
        for row, fields in change.changed.items():
            after[row] = after.get(row, {}) | fields
        for row in change.gone:
            after.pop(row, None)
    return after


def test_a_reader_that_comes_back_at_any_change_has_the_same_rows() -> None:
    log = RowLog()
    states = fill(log, random.Random(1))
    for number, rows in enumerate(states):
        changes = log.list_changes_since(number)
        assert changes is not None
        assert apply(rows, changes) == log.rows
    assert log.list_changes_since(STEPS) == []
    assert log.list_changes_since(STEPS + 1) is None


def test_the_last_changes_have_changed_fields_only() -> None:
    log = RowLog()
    log.add({1: {"a": 1, "b": 2}}, [])
    for value in range(KEPT_CHANGES):
        log.add({1: {"a": value}}, [])
    assert log.list_changes_since(1) == [RowChange(2 + value, {1: {"a": value}}, []) for value in range(KEPT_CHANGES)]
    assert log.list_changes_since(0) == [RowChange(log.number, {1: {"a": KEPT_CHANGES - 1, "b": 2}}, [])]


def test_a_copy_made_of_an_answer_continues_as_the_original_does() -> None:
    log = RowLog()
    states = fill(log, random.Random(2))
    for number in (0, 10, STEPS - 2):
        changes = log.list_changes_since(number)
        assert changes is not None
        copy = RowLog(log.epoch, number, log.rows)
        for change in changes:
            copy.append(change)
        assert (copy.number, copy.rows) == (log.number, log.rows)
        assert apply(states[number], copy.list_changes_since(number) or []) == log.rows
        assert copy.list_changes_since(number - 1) is None


def test_a_reader_begins_anew_when_it_is_not_known_any_more_what_has_gone() -> None:
    log = RowLog()
    for row in range(KEPT_GONE + 10):
        log.add({row: {"a": 1}}, [row - 1])
    assert log.list_changes_since(0) is None
    assert log.list_changes_since(log.number - 10) is not None
    assert len(log.rows) == 1


async def test_a_log_is_dropped_only_after_no_tab_has_been_open_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveRequests(RequestCapture(), lambda outcome: None)
    live.set_watched(True)
    log = live.log
    monkeypatch.setattr(live_requests, "LINGER_S", 0.0)
    live.set_watched(False)
    live.set_watched(True)
    monkeypatch.setattr(live_requests, "LINGER_S", 3600.0)
    live.set_watched(False)
    await asyncio.sleep(0.01)
    assert live.log is log
    live.set_watched(True)
    monkeypatch.setattr(live_requests, "LINGER_S", 0.0)
    live.set_watched(False)
    await asyncio.sleep(0.01)
    assert live.log is not log
