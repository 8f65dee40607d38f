"""`python -m bench.crash` in small: a gateway is killed while responses run, and each ends once."""

import asyncio
from pathlib import Path

import pytest
from bench.crash.__main__ import format_row
from bench.crash.scene import Outcome, Plan, run

from postgres import Postgres

pytestmark = pytest.mark.rest
COUNT = 5


def check(outcome: Outcome) -> None:
    assert outcome.problems == []
    assert (outcome.called_twice, outcome.without_end) == (0, 0)
    assert set(outcome.statuses) <= {"completed", "failed"}
    assert outcome.statuses["completed"] >= COUNT - outcome.began, "what had not begun is run"
    assert (outcome.statuses.total(), outcome.streams.total()) == (COUNT, COUNT)


def test_after_a_kill_no_response_is_run_twice_left_without_an_end_or_stored_in_part(tmp_path: Path) -> None:
    plan = Plan(COUNT, f"sqlite:///{tmp_path}/dragoman.db")
    outcome = asyncio.run(run(plan))
    check(outcome)
    assert f"| SQLite | 1 | {COUNT} |" in format_row("SQLite", plan, outcome)


def test_two_gateways_take_from_one_queue_and_one_goes_on_when_the_other_is_killed(postgres: Postgres) -> None:
    check(asyncio.run(run(Plan(COUNT, postgres.database(), gateways=2))))
