"""Metrics of outcomes, read by prometheus_client."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from dragoman.operate.metrics.catalogue import CATALOGUE, DURATION_BOUNDS, TOKEN_BOUNDS, Type
from dragoman.operate.metrics.readings import (
    MAX_MODELS,
    MAX_NAME,
    Reading,
    RequestMetrics,
    drop_gauges,
    merge_readings,
    render_text,
)
from dragoman.proxy.outcome import CLIENT_GONE, CacheUse, FailedAttempt, Outcome, ToolRun
from dragoman.translate.hub.usage import Usage, UsageSource
from scraping import Scrape, scrape_metrics, value


def scrape_of(*outcomes: Outcome) -> Scrape:
    metrics = RequestMetrics({"gemini": "generate_content"})
    for outcome in outcomes:
        metrics.observe(outcome)
    return scrape_metrics(render_text(metrics.readings()))


def outcome(**given: object) -> Outcome:
    usual = Outcome(
        request_id="req_1",
        started_at=1763200000.0,
        client_protocol="messages",
        upstream_protocol="chat",
        provider="local",
        model="qwen",
        duration_s=0.5,
    )
    return replace(usual, **given)


def test_requests_are_counted_by_protocols_provider_and_outcome() -> None:
    scrape = scrape_of(outcome(), outcome(), outcome(model="other-model"), outcome(outcome="lost"))
    way = {"client_protocol": "messages", "upstream_protocol": "chat", "provider": "local"}
    assert value(scrape, "dragoman_requests_total", outcome="ok", **way) == 3
    assert value(scrape, "dragoman_requests_total", outcome="lost", **way) == 1


def test_tokens_are_counted_in_the_buckets_of_the_convention() -> None:
    scrape = scrape_of(outcome(usage=Usage(input=16, output=17)))
    name = "gen_ai_client_token_usage"
    labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "local", "gen_ai_request_model": "qwen"}
    assert value(scrape, f"{name}_bucket", gen_ai_token_type="input", le="16", **labels) == 1
    assert value(scrape, f"{name}_bucket", gen_ai_token_type="output", le="16", **labels) == 0
    assert value(scrape, f"{name}_bucket", gen_ai_token_type="output", le="64", **labels) == 1
    assert value(scrape, f"{name}_sum", gen_ai_token_type="output", **labels) == 17
    assert value(scrape, f"{name}_count", gen_ai_token_type="input", **labels) == 1


def test_the_buckets_are_those_of_the_convention() -> None:
    assert TOKEN_BOUNDS[:3] == (1, 4, 16)
    assert TOKEN_BOUNDS[-1] == 67108864
    assert DURATION_BOUNDS[:4] == (0.01, 0.02, 0.04, 0.08)
    assert DURATION_BOUNDS[-1] == 81.92


def test_parts_of_the_tokens_are_counted_by_the_source_of_the_usage() -> None:
    reported = Usage(input=10, output=7, cache_read=4, cache_write=2, reasoning=3)
    scrape = scrape_of(outcome(usage=reported), outcome(usage=Usage(input=5, output=1, source=UsageSource.ESTIMATED)))
    tokens = {
        kind: value(scrape, "dragoman_tokens_total", type=kind, source="reported", provider="local", model="qwen")
        for kind in ("input", "output", "cache_read", "cache_write", "reasoning")
    }
    assert tokens == {"input": 10, "output": 7, "cache_read": 4, "cache_write": 2, "reasoning": 3}
    assert value(scrape, "dragoman_tokens_total", type="input", source="estimated") == 5


def test_time_to_first_token_and_time_per_token_are_measured_for_streams_only() -> None:
    usage = Usage(input=1, output=11)
    streamed = scrape_of(outcome(stream=True, ttft_s=0.2, duration_s=1.2, usage=usage))
    assert value(streamed, "gen_ai_server_time_to_first_token_seconds_sum") == 0.2
    assert value(streamed, "gen_ai_server_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    whole = scrape_of(outcome(ttft_s=0.2, duration_s=1.2, usage=usage))
    assert not [name for name, _ in whole if name.startswith("gen_ai_server_time")]


def test_a_stream_that_broke_off_has_no_time_per_token() -> None:
    scrape = scrape_of(outcome(stream=True, ttft_s=0.2, usage=Usage(output=11), outcome="lost"))
    assert not [name for name, _ in scrape if name.startswith("gen_ai_server_time_per_output_token")]


def test_a_failed_request_has_an_error_type() -> None:
    scrape = scrape_of(outcome(duration_s=1.0), outcome(duration_s=2.0, outcome=CLIENT_GONE))
    name = "gen_ai_server_request_duration_seconds_sum"
    assert value(scrape, name, error_type="") == 1.0
    assert value(scrape, name, error_type="client_gone") == 2.0


def test_without_a_reply_the_last_target_is_counted() -> None:
    steps = (FailedAttempt("first/a", "overloaded"), FailedAttempt("second/b", "lost"))
    scrape = scrape_of(outcome(upstream_protocol="", provider="", model="", failed_attempts=steps, outcome="lost"))
    assert value(scrape, "dragoman_requests_total", provider="second", outcome="lost") == 1
    assert value(scrape, "gen_ai_client_operation_duration_seconds_count", gen_ai_request_model="b") == 1


def test_a_request_that_reached_no_upstream_is_no_operation_of_one() -> None:
    scrape = scrape_of(
        outcome(upstream_protocol="", provider="", model="", requested_model="nonsense", outcome="not_found")
    )
    assert value(scrape, "gen_ai_server_request_duration_seconds_count", error_type="not_found") == 1
    assert not [name for name, _ in scrape if name.startswith("gen_ai_client_operation")]
    assert not [labels for _, labels in scrape if "nonsense" in dict(labels).values()]


def test_retries_and_fallbacks_are_counted_separately() -> None:
    steps = (FailedAttempt("a/m", "overloaded"), FailedAttempt("a/m", "rate_limited"), FailedAttempt("b/m", "lost"))
    scrape = scrape_of(
        outcome(provider="c", model="m", failed_attempts=steps),
        outcome(upstream_protocol="", provider="", failed_attempts=steps[:2]),
        outcome(provider="b", model="m", failed_attempts=steps[2:], is_answered=False),  # no other one continued it
    )
    assert value(scrape, "dragoman_retries_total", provider="a", why="overloaded") == 2
    assert value(scrape, "dragoman_fallbacks_total", provider="a", why="rate_limited") == 1
    assert value(scrape, "dragoman_fallbacks_total", provider="b", why="lost") == 1


def test_losses_are_counted_by_kind() -> None:
    scrape = scrape_of(outcome(losses=4, losses_by_how=(3, 0, 1)))
    assert value(scrape, "dragoman_losses_total", how="dropped", provider="local") == 3
    assert value(scrape, "dragoman_losses_total", how="invented") == 1


def test_gemini_is_named_as_the_convention_names_it() -> None:
    scrape = scrape_of(outcome(client_protocol="gemini", provider="gemini"))
    name = "gen_ai_server_request_duration_seconds_count"
    assert value(scrape, name, gen_ai_operation_name="generate_content", gen_ai_provider_name="gcp.gemini") == 1


def test_models_beyond_the_limit_are_counted_as_other() -> None:
    many = MAX_MODELS + 50
    scrape = scrape_of(
        *(outcome(model=f"m{number}") for number in range(many)), outcome(model="m1"), outcome(model=f"m{many - 1}")
    )
    name = "gen_ai_server_request_duration_seconds_count"
    assert value(scrape, name, gen_ai_request_model="other") == 51
    assert value(scrape, name, gen_ai_request_model="m1") == 2
    assert sum(number for (found, _), number in scrape.items() if found == name) == many + 2


@given(st.lists(st.text(max_size=3 * MAX_NAME) | st.text(st.sampled_from('"\\\n{},= \r\t\u2028\ud800'), max_size=9)))
@settings(max_examples=100, deadline=None)
def test_any_model_name_leaves_the_text_valid(names: list[str]) -> None:
    scrape = scrape_of(*(outcome(model=name) for name in names))
    name = "gen_ai_server_request_duration_seconds_count"
    assert sum(number for (found, _), number in scrape.items() if found == name) == len(names)
    assert all(len(dict(labels)["gen_ai_request_model"]) <= MAX_NAME for found, labels in scrape if found == name)


def test_every_family_is_announced_with_type_and_help_before_anything_was_counted() -> None:
    families = {family.name: family for family in text_string_to_metric_families(render_text([]).decode())}
    for name, family in CATALOGUE.items():
        plain = name.removesuffix("_total") if family.type is Type.COUNTER else name
        assert (families[plain].type, families[plain].documentation) == (family.type.value, family.help)


def test_the_readings_of_two_workers_are_merged() -> None:
    workers = []
    for seconds in (0.3, 3.0):
        metrics = RequestMetrics()
        metrics.observe(outcome(duration_s=seconds))
        workers += [
            *metrics.readings(),
            Reading("dragoman_connections", (), (seconds * 10,)),
            Reading("process_start_time_seconds", (), (seconds,)),
            Reading("dragoman_pool_credentials", ("kiro", "available"), (seconds,)),
        ]
    scrape = scrape_metrics(render_text(workers))
    assert value(scrape, "dragoman_requests_total") == 2
    assert value(scrape, "gen_ai_server_request_duration_seconds_sum") == 3.3
    assert value(scrape, "gen_ai_server_request_duration_seconds_bucket", le="0.32") == 1
    assert value(scrape, "dragoman_connections") == 33
    assert value(scrape, "process_start_time_seconds") == 0.3
    assert value(scrape, "dragoman_pool_credentials") == 3


def test_counters_outlive_their_process_and_gauges_do_not() -> None:
    metrics = RequestMetrics()
    metrics.observe(outcome())
    left = drop_gauges([*metrics.readings(), Reading("dragoman_connections", (), (9,))])
    assert {reading.name for reading in left} >= {"dragoman_requests_total", "gen_ai_server_request_duration_seconds"}
    assert "dragoman_connections" not in {reading.name for reading in left}


def test_readings_of_another_version_are_dropped() -> None:
    strange = [
        Reading("dragoman_from_the_future_total", (), (1,)),
        Reading("dragoman_connections", ("label",), (1,)),
        Reading("dragoman_loop_lag_seconds", (), (1, 2, 3)),
    ]
    assert merge_readings(strange) == []


def test_tool_runs_are_counted_by_backend_and_result_and_timed() -> None:
    runs = (
        ToolRun("web_search", "brave", "ok", 0.3),
        ToolRun("web_search", "brave", "unavailable", 15.0),
        ToolRun("web_fetch", "builtin", "ok", 0.02),
    )
    scrape = scrape_of(outcome(tool_runs=runs), outcome(tool_runs=runs[:1]), outcome())
    name = "dragoman_tool_runs_total"
    assert value(scrape, name, tool="web_search", backend="brave", result="ok") == 2
    assert value(scrape, name, tool="web_search", backend="brave", result="unavailable") == 1
    assert value(scrape, name, tool="web_fetch", backend="builtin", result="ok") == 1
    seconds = "dragoman_tool_duration_seconds"
    assert value(scrape, f"{seconds}_count", tool="web_search", backend="brave") == 3
    assert value(scrape, f"{seconds}_bucket", tool="web_search", backend="brave", le="0.32") == 2


def test_what_prompt_caches_could_have_had_and_misses_are_counted_by_model() -> None:
    hit, missed = CacheUse(900), CacheUse(100, "tools", "/tools/0")
    scrape = scrape_of(outcome(cache_use=hit), outcome(cache_use=missed), outcome(cache_use=missed), outcome())
    target = {"provider": "local", "model": "qwen"}
    assert value(scrape, "dragoman_cache_possible_tokens_total", **target) == 1_100
    assert value(scrape, "dragoman_cache_misses_total", cause="tools", **target) == 2
    many = [outcome(model=f"m{number}", cache_use=missed) for number in range(MAX_MODELS + 3)]
    assert value(scrape_of(*many), "dragoman_cache_misses_total", provider="local", model="other", cause="tools") == 3
