"""The benchmark's own parts: its upstream and its load are real, its figures are correct."""

import asyncio
import os
import platform
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import uvloop
from bench.cases import CASES, Case, Mode
from bench.chart import draw
from bench.gateways import OTHER_PYTHON, headers
from bench.load import Outcome, Shot, run_counted
from bench.report import as_markdown, as_text, judge
from bench.results import Machine, Memory, Reading, Results, Start
from bench.tools import describe_python
from bench.tree import CORES, Child
from bench.upstream import Desk, Script
from bench.wire import EVENTS, stream_events, whole_reply
from msgspec.structs import replace

MACHINE = Machine("2026-01-01", "a CPU", 2, "a kernel", "3.11", {"nginx": "1"})


async def load_upstream(case: Case, connections: int, count: int) -> Outcome:
    script = Script()
    server = await asyncio.get_running_loop().create_server(lambda: Desk(script), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    shot = Shot(port, case.path, headers(case.client), case.body)
    try:
        return await run_counted(shot, connections, count, 10.0)
    finally:
        server.close()


def reading(cpu_us: float, others: float = 0.0, first_s: float | None = None) -> Reading:
    outcome = Outcome(100, 1.0, 0, 0.01, 0.02, first_s, first_s, first_s)
    return Reading(outcome, cpu_us, "counted", others)


def make_results() -> Results:
    results = Results(MACHINE, 1)
    for case in CASES:
        results.cell("dragoman", case.name, 32).readings.append(reading(100.0, first_s=0.007))
        for name, cost in (("nginx", 20.0), ("direct", 0.0)):
            results.cell(name, case.baseline.name, 32).readings[:] = [reading(cost, first_s=0.005)]
    results.memory["dragoman"] = Memory(40.0, 45.0, 10_000, 46.0)
    results.starts["dragoman"] = [Start(seconds, 0.2, 39.0) for seconds in (0.2, 0.3, 0.9)]
    return results


@pytest.mark.parametrize("protocol", ["chat", "messages"])
def test_every_upstream_sends_its_reply_in_the_same_number_of_events(protocol: str) -> None:
    events = stream_events(protocol)
    assert len(events) == EVENTS
    assert all(event.endswith(b"\n\n") and event.count(b"\n\n") == 1 for event in events)
    assert 800 < len(whole_reply(protocol)) < 1300


@pytest.mark.parametrize("mode", ["whole", "burst", "paced"])
def test_the_upstream_answers_every_request_of_a_counted_load(mode: Mode) -> None:
    outcome = uvloop.run(load_upstream(Case("chat", "chat", mode), 3, 8))
    assert (outcome.requests, outcome.errors) == (8, 0)
    assert outcome.first_p50 is not None
    assert 0 < outcome.first_p50 <= outcome.p50


def test_a_paced_stream_takes_as_long_as_its_events() -> None:
    outcome = uvloop.run(load_upstream(Case("messages", "messages", "paced"), 1, 1))
    assert outcome.p50 >= 0.005 * (EVENTS - 1) * 0.95
    assert outcome.first_p50 is not None
    assert outcome.first_p50 < outcome.p50 - 0.05


def test_an_answer_other_than_200_counts_as_an_error() -> None:
    outcome = uvloop.run(load_upstream(Case("responses", "chat", "whole"), 1, 3))
    assert (outcome.requests, outcome.errors) == (0, 3)


def test_disturbed_readings_count_only_where_none_was_calm() -> None:
    cell = Results(MACHINE, 3).cell("dragoman", "chat>chat/whole", 32)
    cell.readings += [reading(900.0, others=0.5), reading(700.0, others=0.6)]
    assert cell.cpu_us == 800.0
    cell.readings.append(reading(200.0))
    assert cell.cpu_us == 200.0


def test_figures_are_judged_against_nginx_in_the_same_run() -> None:
    verdicts = {target.title: (target.found, target.verdict) for target in judge(make_results())}
    assert verdicts["passthrough, JSON reply"] == (5.0, "reached")
    assert verdicts["passthrough, paced stream"] == (5.0, "MISSED")
    assert verdicts["translated, paced stream"] == (5.0, "within the bound")
    assert verdicts["cold start to a healthy /health"] == (0.3, "MISSED")


def test_streams_are_held_against_litellm_beside_nginx_which_bounds_them() -> None:
    results = make_results()
    assert "as a multiple" in as_markdown(results)
    assert "LiteLLM takes only" not in as_markdown(results)
    for case in CASES:
        results.cell("litellm", case.name, 32).readings.append(reading(9000.0 if case.mode == "burst" else 1200.0))
    verdicts = {target.title: (target.found, target.verdict) for target in judge(results)}
    assert verdicts["translated, stream in one burst"] == (90.0, "within the bound")
    page = as_markdown(results)
    assert "LiteLLM takes only 60 times its CPU" in page
    assert "is at 12." in page
    assert "| Messages → Chat, burst | 32 | 450 | 90.0 |" in page


def test_time_to_the_first_token_is_what_the_gateway_adds() -> None:
    added = make_results().added_ms("dragoman", "messages>chat/paced", "chat>chat/paced", 32)
    assert added == pytest.approx((2.0, 2.0))


def test_a_crowd_is_judged_by_its_errors_and_by_what_is_added_between_two_events() -> None:
    results = make_results()
    for name, gap_s, errors in (("direct", 0.1, 0), ("dragoman", 0.13, 2)):
        outcome = Outcome(998, 7.0, errors, 6.4, 6.5, 0.1, 0.1, gap_s)
        results.cell(name, "chat>chat/slow", 1000).readings.append(Reading(outcome, 100.0, "counted", 0.0))
    verdicts = {target.title: (target.found, target.verdict) for target in judge(results)}
    delay, verdict = verdicts["1,000 streams at once: an event's delay, p99"]
    assert delay == pytest.approx(30.0)
    assert verdict == "reached"
    assert verdicts["1,000 streams at once: errors"] == (2, "MISSED")


def test_the_gaps_of_a_paced_stream_are_its_pace() -> None:
    outcome = uvloop.run(load_upstream(Case("chat", "chat", "paced"), 2, 4))
    assert outcome.gap_p99 is not None
    assert 0.004 < outcome.gap_p99 < 10


def test_the_reports_name_every_case_and_the_chart_is_well_formed() -> None:
    results = make_results()
    text, page = as_text(results), as_markdown(results)
    chart = ElementTree.fromstring(draw(results))
    shown = {element.text for element in chart.iter() if element.text}
    for case in CASES:
        assert case.title in text
        assert case.title in page
        assert case.title in shown


def test_leaving_a_child_ends_its_whole_group(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(60)"]
    log = tmp_path / "log"
    with Child(command, {CORES[0]}, log, dict(os.environ)) as child:
        for _ in range(2000):
            if len(log.read_text().split()) == 2:
                break
            time.sleep(0.01)
        pids = [int(pid) for pid in log.read_text().split()]
        assert len(pids) == 2
        assert child.cpu_s() > 0
        assert child.rss_mb() > 1
    for _ in range(2000):
        if not any(_runs(pid) for pid in pids):
            return
        time.sleep(0.01)
    raise AssertionError(f"still running: {pids}")  # a killed process may take a moment to end


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_second_python_has_a_table_of_its_own() -> None:
    results = make_results()
    assert "another Python" not in as_markdown(results)
    results.machine = replace(MACHINE, other_python="Python 3.11.2 of /usr/bin/python3, with PGO")
    results.cell(OTHER_PYTHON, "chat>chat/whole", 32).readings.append(reading(82.0))
    page = as_markdown(results)
    assert "## CPU per request on another Python" in page
    assert "| Chat as is, whole | 32 | 100 | 82.0 | 0.82 |" in page


def test_an_interpreter_is_described_by_its_version_and_its_build() -> None:
    assert describe_python(sys.executable).startswith(f"Python {platform.python_version()} of {sys.executable}, with")
