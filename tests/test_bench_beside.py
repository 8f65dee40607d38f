"""`python -m bench --beside`: dragoman of another commit is installed, probed and compared with the present tree."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from bench import tools
from bench.beside import add_commit
from bench.cases import Case
from bench.chart import draw_beside
from bench.gateways import BESIDE, PAIRED, Gateway, Site
from bench.load import Outcome
from bench.measure import Plan, Trial, WrongAnswer
from bench.report import as_markdown, as_text
from bench.results import Machine, Memory, Reading, Results, Start
from bench.rig import Rig
from msgspec.structs import replace

WHOLE, GEMINI = Case("chat", "chat", "whole"), Case("chat", "gemini", "whole")
STORED = Case("responses", "chat", "whole", stored=True)

# A gateway that answers every request, knows no gemini, and keeps no response.
GATEWAY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

config = sys.argv[sys.argv.index("--config") + 1]
if "gemini" in open(config).read():
    sys.exit("providers.gemini: unknown kind")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"id":"resp_1","output":"And so it ends."}')

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def make_results(before: dict[Case, list[float]], now: dict[Case, list[float]]) -> Results:
    machine = Machine("2026-01-01", "a CPU", 2, "a kernel", "3.11", {}, beside="0123abc")
    results = Results(machine, 3)
    for name, found in ((BESIDE, before), ("dragoman", now), (PAIRED, now)):
        for case, costs in found.items():
            readings = [Reading(Outcome(100, 1.0, 0, 0.01, 0.02), cost, "wrk", 0.0) for cost in costs]
            results.cell(name, case.name, 32).readings += readings
    results.starts = {BESIDE: [Start(0.2, 0.2, 45.0)] * 2, "dragoman": [Start(0.1, 0.1, 46.0), Start(0.3, 0.3, 46.0)]}
    results.memory = {BESIDE: Memory(45.0, 60.0, 10_000, 80.0), "dragoman": Memory(46.0, 50.0, 10_000, 60.0)}
    return results


@pytest.mark.parametrize(
    ("now", "row"),
    [
        ([104, 105, 103], "| 100 | 104 | 1.040 | 1.03–1.05 |  |"),
        ([107, 106, 108], "| 100 | 107 | 1.070 | 1.06–1.08 | WORSE |"),
        ([107, 90, 108], "| 100 | 107 | 1.070 | 0.90–1.08 | perhaps worse |"),
    ],
)
def test_a_case_is_marked_from_five_percent_more_cpu_on(now: list[float], row: str) -> None:
    page = as_markdown(make_results({WHOLE: [100, 100, 100]}, {WHOLE: now}))
    assert "## CPU per request beside commit 0123abc" in page
    assert f"| Chat as is, whole | 32 {row}" in page


def test_disturbed_rounds_count_only_where_none_was_calm() -> None:
    results = make_results({WHOLE: [100, 100]}, {WHOLE: [102, 200]})
    readings = results.find_cell(PAIRED, WHOLE.name, 32).readings
    readings[1] = replace(readings[1], others=0.5)
    assert "| Chat as is, whole | 32 | 100 | 102 | 1.020 | 1.02–1.02 |  |" in as_markdown(results)


def test_memory_and_start_are_marked_where_they_are_higher() -> None:
    page = as_markdown(make_results({WHOLE: [100]}, {WHOLE: [100]}))
    assert "| cold start, s | 0.20 | 0.20 | 1.000 | 0.50–1.50 |  |" in page
    assert "| memory when idle, MB | 45.00 | 46.00 | 1.022 | 1.02–1.02 | WORSE |" in page
    assert "| memory after 10,000 requests, MB | 60.00 | 50.00 | 0.833 | – |  |" in page
    assert "| memory after all cases, MB | 80.00 | 60.00 | 0.750 | – |  |" in page


def test_cases_that_the_other_commit_does_not_serve_are_named_and_not_compared() -> None:
    results = make_results({WHOLE: [100]}, {WHOLE: [100], GEMINI: [50], STORED: [70]})
    text = as_text(results)
    assert "Note: 0123abc does not serve Chat → Gemini, whole; Responses → Chat, whole, stored." in text
    assert "memory after all cases" not in text  # the present tree has served more of them
    table = text.partition("beside commit 0123abc")[2].partition("Memory and start beside")[0]
    assert "Chat as is, whole" in table
    assert "Gemini" not in table


def test_the_chart_has_a_bar_for_each_compared_case_and_red_for_a_worse_one() -> None:
    burst = Case("chat", "chat", "burst")
    results = make_results({WHOLE: [100], burst: [100]}, {WHOLE: [110], burst: [80], GEMINI: [50]})
    chart = ElementTree.fromstring(draw_beside(results))
    shown = [element.text for element in chart.iter() if element.text]
    assert {"Chat as is, whole, 32", "+10.0%", "Chat as is, burst, 32", "-20.0%"} <= set(shown)
    assert not any("Gemini" in text for text in shown)
    assert [bar.get("fill") for bar in chart.iter() if (bar.tag.endswith("rect") and bar.get("x"))] == [
        "#cf222e",
        "#1f6feb",
    ]


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed commit, with the stand-in for its gateway."""
    script = tmp_path / "gateway.py"
    script.write_text(GATEWAY)
    program = tmp_path / "0123abc" / "python" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(tools, "COMMITS", tmp_path)
    return "0123abc"


def test_a_commit_gets_the_providers_and_the_cases_that_it_knows(commit: str) -> None:
    with Rig() as rig:
        assert add_commit(rig, commit) == ("chat", "messages", "kiro")
        gateway = rig.gateways[BESIDE]
        assert gateway.takes(WHOLE)
        assert not gateway.takes(GEMINI)
        trial = Trial(rig, Plan((BESIDE,), ((STORED, 1),), 1, 1, False), rig.start(BESIDE), STORED, 1)
        with pytest.raises(WrongAnswer, match="GET /v1/responses/resp_1: status 404"):
            trial.calm_reading()


def test_another_commit_imports_nothing_of_the_present_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "src")
    present = Gateway("dragoman", "/health", lambda site: [], lambda case: True)
    isolated = Gateway(BESIDE, "/health", lambda site: [], lambda case: True, isolated=True)
    site = Site(1, 2, tmp_path)
    assert "PYTHONPATH" in present.environ(site)
    assert "PYTHONPATH" not in isolated.environ(site)


def test_the_files_of_a_commit_are_extracted_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, target = tmp_path / "repository", tmp_path / "target"
    target.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    for text in ("old", "new"):
        (repository / "file").write_text(text)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
    monkeypatch.setattr(tools, "ROOT", repository)
    commit = tools.find_commit("HEAD~1")
    assert commit is not None
    tools.extract_commit(commit, target)
    assert (target / "file").read_text() == "old"
    assert tools.find_commit("no-such-branch") is None
