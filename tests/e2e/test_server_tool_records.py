"""What is kept of a request with server tools: its usage row, its log line, its capture and the replay of that."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from anthropic import APIError

from dragoman.operate.metrics.readings import RequestMetrics
from dragoman.operate.prices import Pricing
from dragoman.operate.request_log import format_json, format_text
from dragoman.operate.usage.usage_writer import make_row
from dragoman.proxy.capture.format import Capture, LookupName
from dragoman.proxy.outcome import Outcome
from dragoman.translate.profiles.token_count import count_text
from e2e.search_scene import (
    ANSWERS,
    BROKEN,
    CHAT_ANSWERS,
    CHAT_SEARCHES,
    FOUND,
    OTHER,
    SEARCHES,
    URL,
    Round,
    SearchScene,
    calls,
    run_scene,
)
from e2e.test_replays import Kept, assert_same, debug
from fakes.service import json_answer
from fakes.upstream import Answer, End, Gate, ReceivedRequest

SEARCH_KEY = "bsk-canary-of-a-search-service"
DONE = b"data: [DONE]\n\n"
TWO = calls(("call_1", "web_search", {"query": "pandas"}), ("call_2", "web_search", {"query": "bears"}))


@dataclass
class Recorded:
    """A scene with captures."""

    scene: SearchScene
    kept: Kept

    def run(self, *rounds: Round, search: Answer | None = None, stream: bool = True) -> tuple[Outcome, Capture]:
        """Play these rounds, ask, and return the outcome and the capture, which must replay the same."""
        self.scene.play(*rounds)
        if search is not None:
            self.scene.script_search(search)
        with suppress(APIError):
            self.scene.reply(stream=stream)
        return self.read()

    def read(self) -> tuple[Outcome, Capture]:
        """Return the outcome and the capture of the SDK's last request."""
        [capture] = self.kept.take_new(1)
        searched = len(self.scene.searched)
        assert_same([capture])
        assert len(self.scene.searched) == searched, "the replay has searched"
        return self.scene.gateway.outcome(self.scene.sdk.headers["x-request-id"]), capture


@contextmanager
def run_recorded(directory: Path, search_settings: str) -> Iterator[Recorded]:
    with run_scene(directory, settings=debug(directory / "captures"), search_settings=search_settings) as scene:
        yield Recorded(scene, Kept(directory / "captures", scene.gateway))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    settings = f'timeout_s = 300\napi_key = "{SEARCH_KEY}"'
    with run_recorded(tmp_path_factory.mktemp("records"), settings) as shared:
        yield shared


def test_one_usage_row_has_rounds_searches_and_their_cost(recorded: Recorded) -> None:
    outcome, _ = recorded.run(SEARCHES, ANSWERS)
    assert outcome.usage is not None
    assert (outcome.usage.input, outcome.usage.output) == (40, 12)
    assert (outcome.rounds, outcome.attempts, outcome.web_searches, outcome.web_fetches) == (2, 2, 1, 0)
    [run] = outcome.tool_runs
    assert (run.tool, run.backend, run.result) == ("web_search", "searxng", "ok")
    row = make_row(outcome, Pricing({}, (), 5.0), 0)
    assert (row.rounds, row.attempts, row.web_searches, row.web_fetches) == (2, 2, 1, 0)
    assert row.cost_nano_usd == 5_000_000  # the tokens of this model have no price
    assert make_row(outcome, Pricing({}), 0).cost_nano_usd is None


def test_a_failed_search_costs_nothing_and_shows_in_the_log_line(recorded: Recorded) -> None:
    outcome, _ = recorded.run(SEARCHES, ANSWERS, search=json_answer({}, 500))
    assert (outcome.rounds, outcome.web_searches, outcome.tool_runs[0].result) == (2, 0, "unavailable")
    assert Pricing({}, (), 5.0).cost_nano(outcome) is None
    assert " failed_tools=1 " in format_text(outcome)


def test_a_later_round_that_fails_is_one_more_attempt(recorded: Recorded) -> None:
    outcome, _ = recorded.run(SEARCHES, BROKEN)
    assert (outcome.rounds, outcome.attempts, len(outcome.failed_attempts)) == (2, 2, 1)
    assert make_row(outcome, Pricing({}), 0).web_searches == 1  # which has run all the same
    scrape = RequestMetrics()
    scrape.observe(outcome)
    assert [reading for reading in scrape.readings() if reading.name == "dragoman_retries_total"] == []


def test_a_later_round_that_ends_before_its_first_token_has_used_nothing(recorded: Recorded) -> None:
    begun = CHAT_ANSWERS[: CHAT_ANSWERS.index(b"\n\n") + 2]  # the role
    outcome, _ = recorded.run(SEARCHES, Answer(begun, end=End.CUT))
    assert (outcome.outcome, outcome.attempts) == ("lost", 2)
    usage = outcome.usage
    assert usage is not None
    assert (usage.input, usage.output) == (10, 5)  # those of the first round, once


def test_a_call_is_part_of_the_usage_that_an_upstream_does_not_report(recorded: Recorded) -> None:
    uncounted = [
        body[: body.index(b'"usage":{')].rpartition(b"data: ")[0] + DONE for body in (CHAT_SEARCHES, CHAT_ANSWERS)
    ]
    outcome, _ = recorded.run(*uncounted)
    visible = count_text("Let me look. ") + count_text(f"See [One]({URL}) and [x](https://no.example/).")
    assert outcome.usage is not None
    assert outcome.usage.output > visible
    assert outcome.usage.input > 2 * count_text("pandas?")
    assert outcome.usage.web_searches == 1


def test_the_log_line_counts_searches(recorded: Recorded) -> None:
    outcome, _ = recorded.run(TWO, ANSWERS)
    assert " searches=2 " in format_text(outcome)
    line = msgspec.json.decode(format_json(outcome))
    assert (line["rounds"], line["web_searches"]) == (2, 2)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_capture_holds_every_round_and_run(recorded: Recorded, stream: bool) -> None:
    _, capture = recorded.run(SEARCHES, ANSWERS, stream=stream)
    assert len(capture.upstream_requests) == 2
    [lookup] = [lookup for lookup in capture.lookups if lookup.name == LookupName.TOOL_RUN]
    assert isinstance(lookup.value, dict)
    run = lookup.value["value"]
    assert (run["tool"], run["backend"], run["input"]) == ("web_search", "searxng", "pandas")
    assert [result["url"] for result in run["outcome"]["results"]] == [URL, OTHER]


def test_searches_that_end_in_another_order_replay_the_same(recorded: Recorded) -> None:
    """The first one ends only after the second one."""
    second, scene = threading.Event(), recorded.scene.play(TWO, ANSWERS)

    def search(request: ReceivedRequest) -> Answer:
        if "pandas" in request.path:
            return replace(json_answer(FOUND), gate=Gate(second))
        threading.Timer(0.05, second.set).start()
        return json_answer({"results": []})

    scene.services.intercept = search
    scene.reply()
    recorded.read()


def test_a_search_that_takes_too_long_replays_the_same(tmp_path: Path) -> None:
    with run_recorded(tmp_path, "timeout_s = 0.1") as recorded:
        outcome, _ = recorded.run(SEARCHES, ANSWERS, search=Answer(headless=True, end=End.HANG))
    assert outcome.tool_runs[0].result == "unavailable"


def test_a_key_that_a_search_service_repeats_goes_nowhere(recorded: Recorded) -> None:
    leaked = {"results": [{"url": URL, "title": f"key {SEARCH_KEY}", "content": f"is {SEARCH_KEY}"}]}
    scene = recorded.scene.play(SEARCHES, ANSWERS)
    scene.script_search(json_answer(leaked))
    message = scene.reply()
    _, capture = recorded.read()
    assert ("authorization", f"Bearer {SEARCH_KEY}") in scene.searched[0].fields
    for shown in (message.model_dump_json(), str([request.body for request in scene.requests]), str(capture)):
        assert "key " in shown
        assert SEARCH_KEY not in shown


def test_a_client_that_leaves_during_a_search_replays_the_same(recorded: Recorded) -> None:
    scene = recorded.scene.play(SEARCHES, ANSWERS)
    scene.script_search(Answer(headless=True, end=End.HANG))
    with scene.sdk.anthropic.messages.stream(**scene.write_request()) as events:
        for event in events:
            if event.type == "content_block_start" and event.content_block.type == "server_tool_use":
                break
    outcome, _ = recorded.read()
    assert outcome.outcome == "client_gone"
    assert [(run.tool, run.result) for run in outcome.tool_runs] == [("web_search", "cancelled")]
