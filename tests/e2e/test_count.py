"""Token counts before a request: the upstream's own where it counts, else an estimate that says it is one."""

import logging

import pytest
from anthropic.types import MessageParam

from fakes.upstream import Answer
from rig import Rig

USER: list[MessageParam] = [{"role": "user", "content": "How many tokens are these words?"}]


def test_an_upstream_that_counts_tokens_is_used(rig: Rig) -> None:
    fake = rig.play("messages", Answer(b'{"input_tokens": 4242}', content_type="application/json"))
    counted = rig.sdk.anthropic.messages.count_tokens(model=rig.model("messages"), messages=USER)
    assert counted.input_tokens == 4242
    assert (fake.calls[-1].path, fake.calls[-1].json["model"]) == ("/v1/messages/count_tokens", "claude-opus-4-6")
    assert "x-dragoman-estimate" not in rig.sdk.headers


@pytest.mark.parametrize("upstream", ["chat", "responses"])
def test_without_a_counting_upstream_the_gateway_estimates_and_marks_it(rig: Rig, upstream: str) -> None:
    fake = rig.play(upstream)
    counted = rig.sdk.anthropic.messages.count_tokens(model=rig.model(upstream), messages=USER)
    assert 4 < counted.input_tokens < 40
    assert rig.sdk.headers["x-dragoman-estimate"] == "1"
    assert fake.calls == []


@pytest.mark.parametrize("status", [500, 200])
def test_an_upstream_that_cannot_count_now_is_replaced_by_an_estimate(rig: Rig, status: int) -> None:
    error = b'{"type":"error","error":{"type":"api_error","message":"not now"}}'
    rig.play("messages", Answer(error, status=status, content_type="application/json"))
    counted = rig.sdk.anthropic.messages.count_tokens(model=rig.model("messages"), messages=USER)
    assert 4 < counted.input_tokens < 40
    assert rig.sdk.headers["x-dragoman-estimate"] == "1"


def test_only_the_log_names_who_counted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    answers = (Answer(b'{"input_tokens": 4242}', content_type="application/json"), Answer(b"{}", status=503))
    with caplog.at_level(logging.INFO, "dragoman.proxy.count_tokens"):
        for answer in answers:
            rig.play("messages", answer)
            rig.sdk.anthropic.messages.count_tokens(model=rig.model("messages"), messages=USER)
        rig.sdk.anthropic.messages.count_tokens(model=rig.model("chat"), messages=USER)
    records = [record for record in caplog.records if record.name == "dragoman.proxy.count_tokens"]
    counted, failed, unasked = (record.getMessage() for record in records)
    assert counted == "messages/claude-opus-4-6: 4242 tokens, counted upstream"
    assert failed.endswith("tokens, estimated: it answered with no count, but HTTP 503")
    assert unasked.endswith("tokens, estimated: it does not count such requests")
    ids = {outcome.request_id for outcome in rig.gateway.outcomes}
    assert rig.sdk.headers["x-request-id"] not in ids


def test_a_longer_text_counts_more(rig: Rig) -> None:
    counts = [
        rig.sdk.openai.responses.input_tokens.count(model=rig.model("chat"), input="word " * size).input_tokens
        for size in (10, 100, 1000)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
