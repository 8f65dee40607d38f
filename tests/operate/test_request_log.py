"""The log line of a request, as text and as JSON, without secrets."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.config.settings import PriceOverride
from dragoman.operate.prices import Pricing
from dragoman.operate.request_log import RequestLog, format_json, format_text
from dragoman.operate.usage.usage_writer import make_row
from dragoman.proxy.outcome import FailedAttempt, Outcome
from dragoman.store.usage_rows import make_record
from dragoman.translate.hub.usage import Usage, UsageSource

OUTCOME = Outcome(
    request_id="req_1",
    started_at=1763199637.0,
    key="k_7",
    client="claude-cli",
    client_protocol="messages",
    upstream_protocol="chat",
    requested_model="qwen",
    provider="local",
    model="qwen-3",
    stream=True,
    usage=Usage(input=10, output=7, cache_read=4, reasoning=2, source=UsageSource.DERIVED),
    ttft_s=0.25,
    duration_s=1.5,
    losses=2,
    failed_attempts=(FailedAttempt("other/qwen", "overloaded"),),
    attempts=2,
    upstream_bytes=48213,
    upstream_chunks=132,
)


def test_a_text_line_has_client_target_and_outcome() -> None:
    assert format_text(OUTCOME) == (
        "2025-11-15T09:40:38.500Z info dragoman.requests: req_1 messages>chat local/qwen-3 ok 1500ms ttft=250ms"
        " in=10 out=7 cached=4 bytes=48213 chunks=132 losses=2 tried=other/qwen:overloaded key=k_7 client=claude-cli"
    )


def test_a_text_line_has_the_vendors_error_code() -> None:
    failed = replace(OUTCOME, outcome="bad_request", error_code="context_length_exceeded")
    assert " local/qwen-3 bad_request code=context_length_exceeded 1500ms " in format_text(failed)


def test_a_json_line_has_one_field_for_each_value() -> None:
    assert msgspec.json.decode(format_json(OUTCOME)) == {
        "time": "2025-11-15T09:40:38.500Z",
        "level": "info",
        "logger": "dragoman.requests",
        "request_id": "req_1",
        "key": "k_7",
        "client": "claude-cli",
        "client_protocol": "messages",
        "upstream_protocol": "chat",
        "provider": "local",
        "model": "qwen-3",
        "requested_model": "qwen",
        "route": "local/qwen-3",
        "stream": True,
        "input_tokens": 10,
        "cache_read_tokens": 4,
        "cache_write_tokens": 0,
        "output_tokens": 7,
        "reasoning_tokens": 2,
        "usage_source": "derived",
        "ttft_ms": 250.0,
        "duration_ms": 1500.0,
        "upstream_bytes": 48213,
        "upstream_chunks": 132,
        "outcome": "ok",
        "losses": 2,
        "attempts": 2,
        "failed_attempts": ["other/qwen:overloaded"],
    }


def test_a_json_line_says_who_spent_what_under_the_names_of_usage_rows() -> None:
    outcome = replace(OUTCOME, user="dev@example.com", team="core", tags="job=7", lease="5f")
    pricing = Pricing({}, [PriceOverride(model="local/*", input=1.0, output=10.0, cache_read=0.1)])
    line = msgspec.json.decode(format_json(outcome, pricing))
    expected = {
        "user": "dev@example.com",
        "team": "core",
        "tags": "job=7",
        "lease": "5f",
        "cost_usd": 0.0000764,
        "cost_nano_usd": 76_400,
        "cache_saved_nano_usd": 3_600,
    }
    assert {name: line[name] for name in expected} == expected
    row = make_record(make_row(outcome, pricing, 1))
    written_otherwise = {"level", "logger", "upstream_bytes", "upstream_chunks", "failed_attempts"}
    assert set(line) - written_otherwise <= set(row)


def test_unknown_values_are_omitted() -> None:
    bare = Outcome(
        request_id="req_2",
        started_at=1763199637.0,
        client_protocol="chat",
        requested_model="nonsense",
        outcome="not_found",
        duration_s=0.001,
    )
    line = format_text(bare)
    assert line.endswith("req_2 chat nonsense not_found 1ms key=- client=-")
    fields = msgspec.json.decode(format_json(bare), type=dict[str, object])
    assert {"input_tokens", "ttft_ms", "route", "key", "failed_attempts", "error_code"}.isdisjoint(fields)
    assert (fields["outcome"], fields["attempts"], fields["losses"]) == ("not_found", 0, 0)


def name_everything(text: str) -> Outcome:
    """An outcome that has the text wherever a client or an upstream chooses it."""
    steps = (FailedAttempt(f"p/{text}", "lost"),)
    return replace(OUTCOME, client=text, requested_model=text, model=text, error_code=text, failed_attempts=steps)


@given(st.text(max_size=60) | st.text(st.characters(categories=["Cs", "Cc", "Zl", "Cf", "Cn"]), max_size=20))
@settings(max_examples=100, deadline=None)
def test_text_of_a_client_cannot_break_the_line(text: str) -> None:
    hostile = name_everything(text)
    for line in (format_text(hostile), format_json(hostile)):
        assert line.isprintable()
        assert line.encode()
    assert msgspec.json.decode(format_json(hostile), type=dict[str, object])["request_id"] == "req_1"


def test_a_secret_in_a_name_is_masked() -> None:
    secret = "sk-fake-0123456789abcdef"
    careless = replace(name_everything(secret), request_id=secret)
    assert secret not in format_text(careless) + format_json(careless)


def test_the_observer_writes_one_line_for_each_outcome() -> None:
    lines: list[str] = []
    request_log = RequestLog(format_text, lines.append)
    request_log.observe(OUTCOME)
    request_log.observe(OUTCOME)
    assert lines == [format_text(OUTCOME)] * 2


@pytest.mark.parametrize("character", ["x", "é", "\x00", "\\", "\U0001f600", "\u2028"])
def test_a_line_has_at_most_4_kb(character: str) -> None:
    long = character * 100_000
    steps = tuple(FailedAttempt(long, "upstream") for _ in range(60))
    outcome = replace(OUTCOME, model=long, requested_model=long, error_code=long, failed_attempts=steps)
    assert len(format_text(outcome).encode()) <= 4096
    assert format_text(outcome).endswith("(cut)")
    line = format_json(outcome)
    assert len(line.encode()) <= 4096
    fields = msgspec.json.decode(line, type=dict[str, object])
    assert (fields["request_id"], fields["outcome"]) == (outcome.request_id, outcome.outcome)
    assert str(fields["requested_model"]).endswith("(cut)")
