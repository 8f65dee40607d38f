"""What is kept of a request with server tools: its usage row, its log line, its capture and the replay of that."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from anthropic import APIError

from dragoman.accounts.usage_writer import make_row
from dragoman.admin.replay.difference import compare_captures
from dragoman.admin.replay.rerun import rerun
from dragoman.flow.capture.files import Bounds, CaptureDirectory, load_capture
from dragoman.flow.capture.format import Capture, LookupName
from dragoman.http.handler import replay_site
from dragoman.hub.outcome import Outcome
from dragoman.observers.metrics import RequestMetrics
from dragoman.observers.request_log import format_json, format_text
from dragoman.prices import Pricing
from dragoman.providers.token_count import count_text
from e2e.search_scene import CHAT_ANSWERS, CHAT_SEARCHES, FOUND, SearchScene, chat_calls, search_scene
from e2e.test_server_tools import ask
from fakes.upstream import Answer, End
from waiting import wait_until

SEARCH_KEY = "bsk-canary-of-a-search-service"
DONE = b"data: [DONE]\n\n"
TWO = chat_calls(("call_1", "web_search", '{"query": "pandas"}'), ("call_2", "web_search", '{"query": "bears"}'))


@dataclass
class Scene(SearchScene):
    directory: Path

    def run(self, *, stream: bool = True, **more: object) -> tuple[Outcome, Capture]:
        """Send a request; return its outcome and its capture."""
        if stream:
            with self.sdk.anthropic.messages.stream(**ask(**more)) as events:
                events.get_final_message()
        else:
            self.sdk.anthropic.messages.create(**ask(**more))
        outcome = self.last_outcome()
        return outcome, self.capture_of(outcome)

    def last_outcome(self) -> Outcome:
        """Wait for the outcome of the SDK's last request."""
        return self.gateway.outcome(self.sdk.headers["x-request-id"])

    def capture_of(self, outcome: Outcome) -> Capture:
        wait_until(lambda: any(outcome.request_id in file.name for file in self.files()))
        return load_capture(next(file for file in self.files() if outcome.request_id in file.name))

    def files(self) -> list[Path]:
        return CaptureDirectory(self.directory, Bounds(10_000, 1 << 30, 86_400.0)).files()


@contextmanager
def run_scene(directory: Path, search_settings: str) -> Iterator[Scene]:
    captures = f'[debug]\ncapture = "all"\ndirectory = "{directory}/captures"'
    with search_scene(directory, "chat", settings=captures, search_settings=search_settings) as there:
        yield Scene(there.gateway, there.sdk, there.upstream, there.searxng, directory / "captures")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    settings = f'timeout_s = 300\napi_key = "{SEARCH_KEY}"'
    with run_scene(tmp_path_factory.mktemp("records"), settings) as shared:
        yield shared


def assert_replays(capture: Capture) -> None:
    parts = compare_captures(capture, rerun(capture, replay_site))
    assert [(part.name, change) for part in parts for change in part.changes] == []


def test_one_usage_row_has_rounds_searches_and_their_cost(scene: Scene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    outcome, _ = scene.run()
    assert outcome.usage is not None
    assert (outcome.usage.input, outcome.usage.output) == (40, 12)
    assert (outcome.rounds, outcome.attempts, outcome.web_searches, outcome.web_fetches) == (2, 2, 1, 0)
    [run] = outcome.tool_runs
    assert (run.tool, run.backend, run.result) == ("web_search", "searxng", "ok")
    row = make_row(outcome, Pricing({}, (), 5.0), 0)
    assert (row.rounds, row.attempts, row.web_searches, row.web_fetches) == (2, 2, 1, 0)
    assert row.cost_nano_usd == 5_000_000  # the tokens of this model have no price
    assert make_row(outcome, Pricing({}), 0).cost_nano_usd is None


def test_a_failed_search_costs_nothing_and_shows_in_the_log_line(scene: Scene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    scene.script_search(Answer(b"{}", 500, "application/json"))
    outcome, capture = scene.run()
    assert (outcome.rounds, outcome.web_searches, outcome.tool_runs[0].result) == (2, 0, "unavailable")
    assert Pricing({}, (), 5.0).cost_nano(outcome) is None
    assert " failed_tools=1 " in format_text(outcome)
    assert_replays(capture)


def test_a_later_round_that_fails_is_one_more_attempt(scene: Scene) -> None:
    scene.play(CHAT_SEARCHES)
    scene.upstream.answers.append(Answer(b"{}", 500, "application/json"))
    with pytest.raises(APIError), scene.sdk.anthropic.messages.stream(**ask()) as events:
        events.get_final_message()
    outcome = scene.last_outcome()
    assert (outcome.rounds, outcome.attempts, len(outcome.failed_attempts)) == (2, 2, 1)
    scrape = RequestMetrics()
    scrape.observe(outcome)
    assert [reading for reading in scrape.readings() if reading.name == "dragoman_retries_total"] == []


def test_a_call_is_part_of_the_usage_that_an_upstream_does_not_report(scene: Scene) -> None:
    scene.play(
        *(body[: body.index(b'"usage"')].rpartition(b"data: ")[0] + DONE for body in (CHAT_SEARCHES, CHAT_ANSWERS))
    )
    outcome, _ = scene.run()
    visible = count_text("Let me look. ") + count_text("See [One](https://a.example/1) and [x](https://no.example/).")
    assert outcome.usage is not None
    assert outcome.usage.output > visible
    assert outcome.usage.input > 2 * count_text("pandas?")
    assert outcome.usage.web_searches == 1


def test_the_log_line_counts_searches(scene: Scene) -> None:
    scene.play(TWO, CHAT_ANSWERS)
    outcome, _ = scene.run()
    assert " searches=2 " in format_text(outcome)
    line = json.loads(format_json(outcome))
    assert (line["rounds"], line["web_searches"]) == (2, 2)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_capture_holds_every_round_and_run_and_replays_without_the_network(scene: Scene, stream: bool) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    _, capture = scene.run(stream=stream)
    assert len(capture.upstream_requests) == 2
    [lookup] = [lookup for lookup in capture.lookups if lookup.name == LookupName.TOOL_RUN]
    assert isinstance(lookup.value, dict)
    run = lookup.value["value"]
    assert (run["tool"], run["backend"], run["input"]) == ("web_search", "searxng", "pandas")
    assert [result["url"] for result in run["outcome"]["results"]] == ["https://a.example/1", "https://b.example/2"]
    searches_before = len(scene.searxng.requests)
    assert_replays(capture)
    assert len(scene.searxng.requests) == searches_before


def test_searches_that_end_in_another_order_replay_the_same(scene: Scene) -> None:
    scene.play(TWO, CHAT_ANSWERS)
    slow = Answer(json.dumps(FOUND).encode(), content_type="application/json", delay_s=0.3)
    fast = Answer(b'{"results":[]}', content_type="application/json")
    scene.searxng.intercept = lambda request: slow if "pandas" in request.path else fast
    _, capture = scene.run()
    assert_replays(capture)


def test_a_search_that_takes_too_long_replays_the_same(tmp_path: Path) -> None:
    with run_scene(tmp_path, "timeout_s = 0.5") as scene:
        scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
        scene.script_search(Answer(headless=True, end=End.HANG))
        outcome, capture = scene.run()
    assert outcome.tool_runs[0].result == "unavailable"
    assert_replays(capture)


def test_a_key_that_a_search_service_repeats_goes_nowhere(scene: Scene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    leaked = {"results": [{"url": "https://a.example/1", "title": f"key {SEARCH_KEY}", "content": f"is {SEARCH_KEY}"}]}
    scene.script_search(Answer(json.dumps(leaked).encode(), content_type="application/json"))
    with scene.sdk.anthropic.messages.stream(**ask()) as events:
        message = events.get_final_message()
    outcome = scene.last_outcome()
    assert any(("authorization", f"Bearer {SEARCH_KEY}") in request.fields for request in scene.searxng.requests)
    assert SEARCH_KEY not in message.model_dump_json()
    assert not [request for request in scene.upstream.calls if SEARCH_KEY.encode() in request.body]
    capture = scene.capture_of(outcome)
    assert_replays(capture)
    for file in scene.files():
        assert SEARCH_KEY not in str(load_capture(file))


def test_a_client_that_leaves_during_a_search_replays_the_same(scene: Scene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    scene.script_search(Answer(headless=True, end=End.HANG))
    with scene.sdk.anthropic.messages.stream(**ask()) as events:
        for event in events:
            if event.type == "content_block_start" and event.content_block.type == "server_tool_use":
                break
    outcome = scene.last_outcome()
    assert outcome.outcome == "client_gone"
    assert [(run.tool, run.result) for run in outcome.tool_runs] == [("web_search", "cancelled")]
    assert_replays(scene.capture_of(outcome))
