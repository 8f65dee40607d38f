"""A running gateway's metrics after mixed requests, its dashboard and its page: each name in them is really there."""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import asking
from asking import NO_HEADERS
from dragoman.operate.metrics.catalogue import CATALOGUE, Family, Type
from dragoman.proxy.outcome import CLIENT_GONE, OK
from dragoman.translate.hub.failure import Kind
from fakes.upstream import Answer, FakeUpstream, Gate
from gateway import KEY
from rig import PATHS, Rig, run_rig
from scraping import Scrape, scrape, total, value
from scripting import write_reply
from scripting.replies import ScriptedReply, Text, Tokens, ToolCall
from waiting import wait_until

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "contrib" / "grafana" / "dragoman.json"
PAGE = ROOT / "docs" / "metrics.md"
SETTINGS = """
[retry]
attempts = 2
base_s = 0.01

[[models]]
name = "either"
to = ["chat/first", "messages/second"]
"""
SCRIPTED = ScriptedReply((Text("Hello there."),), tokens=Tokens(input=40, output=12, cached=8))
FOUND = b'{"results":[{"url":"https://a.example/1","title":"One","content":"Text."}]}'
BUSY = Answer(b'{"error":{"message":"busy","type":"server_error"}}', 503, "application/json")
# What only a provider that tells of its allowances and a gateway of several have, and what the scrape's machine adds.
ONLY_REPORTED = {"dragoman_provider_limit_used_ratio", "dragoman_shared_state"}
ADDED_BY_PROMETHEUS = {"job", "instance", "le"}


def ask(rig: Rig, client: str, model: str, *, stream: bool = False, key: str = KEY, **more: object) -> int:
    return asking.ask(rig, client, model, "Hi", stream=stream, key=key, headers=NO_HEADERS, **more).status


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with FakeUpstream() as searxng:
        searxng.intercept = lambda request: Answer(FOUND, content_type="application/json")
        tools = f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{searxng.url}"\n'
        with run_rig(tmp_path_factory.mktemp("scraped"), tools + SETTINGS, ("vendor-model",)) as shared:
            yield shared


@pytest.fixture(scope="module")
def after(rig: Rig) -> Scrape:
    """The scrape after one request of each sort."""
    rig.play("chat", SCRIPTED)
    assert ask(rig, "chat", "chat/vendor-model", stream=True) == 200
    assert ask(rig, "messages", "chat/vendor-model", stream=True, top_k=5) == 200
    rig.play("chat", BUSY, SCRIPTED, stream=False)
    assert ask(rig, "chat", "chat/vendor-model") == 200
    rig.play("chat", BUSY)
    rig.play("messages", SCRIPTED, stream=False)
    assert ask(rig, "chat", "either") == 200
    assert ask(rig, "chat", "chat/vendor-model") == 503
    assert ask(rig, "chat", "no-such-model") == 404
    assert ask(rig, "chat", "chat/vendor-model", key="dgm_fake-wrong-key") == 401
    wait_until(lambda: len(rig.gateway.outcomes) == 6)
    return scrape(rig.gateway.url)


@pytest.fixture(scope="module")
def after_a_search(rig: Rig, after: Scrape) -> Scrape:
    """The scrape after one more request, for which the gateway has searched."""
    call = ToolCall("call_1", "web_search", '{"query": "pandas"}')
    rig.play("chat", [call], SCRIPTED)
    ended = len(rig.gateway.outcomes)
    tool = {"type": "web_search_20250305", "name": "web_search"}
    assert ask(rig, "messages", "chat/vendor-model", stream=True, tools=[tool]) == 200
    wait_until(lambda: len(rig.gateway.outcomes) == ended + 1)
    return scrape(rig.gateway.url)


def test_searches_are_counted_by_backend(after_a_search: Scrape) -> None:
    by_searxng = {"tool": "web_search", "backend": "searxng"}
    assert value(after_a_search, "dragoman_tool_runs_total", **by_searxng, result="ok") == 1
    assert value(after_a_search, "dragoman_tool_duration_seconds_count", **by_searxng) == 1


def test_requests_are_counted_by_outcome(after: Scrape) -> None:
    name = "dragoman_requests_total"
    same = {"client_protocol": "chat", "upstream_protocol": "chat", "provider": "chat"}
    assert value(after, name, **same, outcome="ok") == 2
    assert value(after, name, client_protocol="messages", upstream_protocol="chat", outcome="ok") == 1
    assert value(after, name, client_protocol="chat", upstream_protocol="messages", outcome="ok") == 1
    assert value(after, name, provider="chat", upstream_protocol="", outcome="overloaded") == 1
    assert value(after, name, provider="", outcome="not_found") == 1
    assert total(after, name) == 6
    assert value(after, "dragoman_requests_answered_total") == 4
    assert value(after, "dragoman_requests_refused_total") == 3
    assert value(after, "dragoman_guard_trips_total") == 0


def test_tokens_are_what_the_upstreams_reported(after: Scrape) -> None:
    reported = {"source": "reported"}
    assert total(after, "dragoman_tokens_total", type="input", **reported) == 4 * 40
    assert total(after, "dragoman_tokens_total", type="output", **reported) == 4 * 12
    assert total(after, "dragoman_tokens_total", type="cache_read", **reported) == 4 * 8
    assert total(after, "gen_ai_client_token_usage_count", gen_ai_token_type="input") == 4


def test_both_streams_have_a_time_to_first_token(after: Scrape) -> None:
    assert total(after, "gen_ai_server_time_to_first_token_seconds_count") == 2
    assert total(after, "gen_ai_server_time_per_output_token_seconds_count") == 2
    assert total(after, "gen_ai_server_request_duration_seconds_count") == 6
    assert total(after, "gen_ai_client_operation_duration_seconds_count") == 5


def test_losses_retries_and_fallbacks_are_counted(after: Scrape) -> None:
    assert value(after, "dragoman_losses_total", client_protocol="messages", how="dropped") >= 1
    assert value(after, "dragoman_retries_total", provider="chat", why="overloaded") == 3
    assert value(after, "dragoman_fallbacks_total", provider="chat", why="overloaded") == 1


def test_requests_in_progress_and_versions_are_shown(after: Scrape) -> None:
    assert value(after, "dragoman_requests_under_way") == 0
    assert value(after, "dragoman_streams_live") == 0
    assert value(after, "dragoman_connections") >= 1
    assert value(after, "dragoman_workers") == 1
    assert value(after, "dragoman_pool_credentials", provider="chat", state="available") == 1
    assert value(after, "process_resident_memory_bytes") > 10e6
    assert value(after, "process_open_fds") > 5
    assert 0 <= time.time() - value(after, "process_start_time_seconds") < 86_400
    assert "dragoman_build_info" in {name for name, _ in after}


def test_a_stream_is_counted_while_it_lasts(rig: Rig, after: Scrape) -> None:
    counted = threading.Event()
    size = len(write_reply("chat", SCRIPTED).body)
    rig.play("chat", write_reply("chat", SCRIPTED, gate=Gate(counted, at=size)))
    before = value(scrape(rig.gateway.url), "dragoman_requests_answered_total")
    body = {"model": "chat/vendor-model", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"{rig.gateway.url}{PATHS['chat']}", msgspec.json.encode(body), {"authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.read(10)
        during = scrape(rig.gateway.url)
        counted.set()
        answer.read()
    assert value(during, "dragoman_streams_live") == 1
    assert value(during, "dragoman_requests_under_way") == 1
    wait_until(lambda: value(scrape(rig.gateway.url), "dragoman_requests_answered_total") == before + 1)
    assert value(scrape(rig.gateway.url), "dragoman_streams_live") == 0


def test_the_lag_of_the_event_loop_is_measured(rig: Rig) -> None:
    wait_until(lambda: value(scrape(rig.gateway.url), "dragoman_loop_lag_seconds_count") >= 1)


def test_a_scrape_contains_no_key_and_no_content(after: Scrape) -> None:
    labels = {text for _, given in after for _, text in given}
    assert not [text for text in labels if "dgm_" in text or "sk-" in text or "Hello" in text]


# -- the dashboard and the page --------------------------------------------------------------------------------------

NAME = re.compile(r"\b((?:gen_ai|dragoman|process)_[a-z_]+)(?:\{([^}]*)\})?")
SELECTED = re.compile(r'([a-z_]+)(?:=~|!~|!=|=)"')
GROUPED = re.compile(r"\b(?:by|without) \(([a-z_, ]+)\)")
SHOWN = re.compile(r"\{\{([a-z_]+)\}\}")


class Target(msgspec.Struct):
    expr: str
    legendFormat: str


class Panel(msgspec.Struct):
    type: str
    title: str
    targets: list[Target] = []


class Variable(msgspec.Struct):
    name: str
    query: object = None


class Templating(msgspec.Struct):
    list: list[Variable]


class Dashboard(msgspec.Struct):
    title: str
    panels: list[Panel]
    templating: Templating


def dashboard() -> Dashboard:
    return msgspec.json.decode(DASHBOARD.read_bytes(), type=Dashboard)


def find_metrics(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric in a query, with the labels that the query uses."""
    grouped = {label for group in GROUPED.findall(expression) for label in re.split(r",\s*", group)}
    metrics = [match for match in NAME.finditer(expression) if f"({match[0]})" not in GROUPED.findall(expression)]
    for match in metrics:
        if match[1] not in grouped and not _is_label(match, expression):
            yield match[1], grouped | set(SELECTED.findall(match[2] or ""))


def _is_label(match: "re.Match[str]", expression: str) -> bool:
    """`gen_ai_request_model` in a selection or a grouping is no metric."""
    return expression[match.end() : match.end() + 1] in ("=", "!") or match[1].startswith(
        ("gen_ai_request_model", "gen_ai_provider_name", "gen_ai_token_type", "gen_ai_operation_name")
    )


def labels_in(after: Scrape, name: str) -> set[str]:
    return {label for found, given in after if found == name for label, _ in given}


def test_every_metric_and_label_of_the_dashboard_is_in_a_scrape(after_a_search: Scrape) -> None:
    panels = [panel for panel in dashboard().panels if panel.type != "row"]
    assert len(panels) >= 25
    for panel in panels:
        assert panel.targets, panel.title
        for target in panel.targets:
            expected = list(find_metrics(target.expr))
            assert expected, f"{panel.title}: {target.expr} asks for nothing of ours"
            for name, labels in expected:
                if name in ONLY_REPORTED:
                    known = set(CATALOGUE[name].labels)
                else:
                    assert name in {found for found, _ in after_a_search}, f"{panel.title}: there is no {name}"
                    known = labels_in(after_a_search, name)
                assert labels <= known | ADDED_BY_PROMETHEUS, f"{panel.title}: {name} has no {labels - known}"
            shown = set(SHOWN.findall(target.legendFormat))
            assert shown <= set().union(*(labels for _, labels in expected)) | {"version"}, panel.title


def test_the_dashboard_has_its_rows_and_variables_for_job_and_model(after: Scrape) -> None:
    board = dashboard()
    rows = [panel.title for panel in board.panels if panel.type == "row"]
    assert rows == [
        "Overview",
        "Latency",
        "Tokens",
        "Prompt caches",
        "Losses and repairs",
        "Retries, fallbacks and pools",
        "Server tools",
        "Saturation",
    ]
    assert [variable.name for variable in board.templating.list] == ["datasource", "job", "model"]
    queries = " ".join(str(variable.query) for variable in board.templating.list)
    for name, label in re.findall(r"label_values\((\w+), (\w+)\)", queries):
        assert label in labels_in(after, name) | ADDED_BY_PROMETHEUS


def test_outcomes_that_the_dashboard_names_exist() -> None:
    named = {
        word
        for panel in dashboard().panels
        for target in panel.targets
        for words in re.findall(r'outcome(?:=|!=|=~|!~)"([^"]*)"', target.expr)
        for word in words.split("|")
    }
    assert named
    assert named <= {OK, CLIENT_GONE, *(kind.value for kind in Kind)}


def test_the_page_lists_every_metric_of_the_catalogue() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [describe_family(family) for family in CATALOGUE.values()]


def describe_family(family: Family) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
    return family.name, family.type.value, labels, family.help


def test_every_metric_of_the_catalogue_is_in_a_scrape(after_a_search: Scrape) -> None:
    found = {name for name, _ in after_a_search}
    for name, family in CATALOGUE.items():
        sample = f"{name}_count" if family.type is Type.HISTOGRAM else name
        if name not in ONLY_REPORTED and not name.startswith("dragoman_otlp"):
            assert sample in found, name
