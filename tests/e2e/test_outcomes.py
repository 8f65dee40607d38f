"""However a request ends, its observers get it once, with the counts that the upstream reported."""

from collections.abc import Iterator

import msgspec
import pytest

from dragoman.proxy.outcome import CLIENT_GONE, OK, FailedAttempt, Outcome
from dragoman.translate.hub.usage import UsageSource
from e2e.cases import CASES, request_for
from e2e.faults import FAULTS, refusal
from fakes.upstream import Answer, End
from raw_http import dial, post, request_bytes
from rig import ENCODERS, PATHS, PROTOCOLS, Rig, run_rig
from sdk_replies import STREAMS, WHOLE
from waiting import wait_until
from wire_json import JsonObject

WELL = [{"role": "user", "content": "Well?"}]
COUNTED = CASES["cached and reasoning tokens"].scripted

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), "[retry]\nattempts = 2\nbase_s = 0.01\n") as rig:
        yield rig


def assert_counted(rig: Rig, upstream: str) -> Outcome:
    outcome = rig.gateway.outcome(rig.sdk.headers["x-request-id"])
    usage, tokens = outcome.usage, COUNTED.tokens
    assert usage is not None
    assert usage.source is UsageSource.REPORTED
    assert (usage.input, usage.output, usage.cache_read) == (tokens.input, tokens.output, tokens.cached)
    assert outcome.outcome == OK
    assert outcome.route == rig.model(upstream)
    assert outcome.key == "environment"
    assert outcome.failed_attempts == ()
    assert outcome.passthrough is (outcome.client_protocol == upstream)
    return outcome


@clients
@upstreams
def test_a_whole_reply_is_counted_as_reported(rig: Rig, client: str, upstream: str) -> None:
    rig.play(upstream, COUNTED, stream=False)
    WHOLE[client](rig.sdk, request_for(client, rig.model(upstream)))
    outcome = assert_counted(rig, upstream)
    assert not outcome.stream


@clients
@upstreams
def test_a_stream_is_counted_as_reported(rig: Rig, client: str, upstream: str) -> None:
    rig.play(upstream, COUNTED)
    STREAMS[client][0](rig.sdk, request_for(client, rig.model(upstream)))
    outcome = assert_counted(rig, upstream)
    assert outcome.stream
    assert outcome.ttft_s is not None
    assert 0 <= outcome.ttft_s <= outcome.duration_s


def test_a_whole_reply_that_passes_without_counts_is_estimated(rig: Rig) -> None:
    choice = b'{"index":0,"message":{"role":"assistant","content":"Four short words"},"finish_reason":"stop"}'
    body = b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[%b]}' % choice
    rig.play("chat", Answer(body, content_type="application/json"))
    assert rig.ask("chat", "chat", "Well?", headers={"x-request-id": "uncounted"}).status == 200
    usage = rig.gateway.outcome("uncounted").usage
    assert usage is not None
    assert usage.source is UsageSource.ESTIMATED
    assert usage.input > 0
    assert usage.output == 4


@clients
def test_a_refusal_is_an_outcome_with_its_steps(rig: Rig, client: str) -> None:
    rig.play("chat", refusal("chat", FAULTS["529"]))
    with pytest.raises(Exception):  # noqa: B017, PT011 - other tests judge which
        WHOLE[client](rig.sdk, request_for(client, rig.model("chat")))
    outcome = rig.gateway.outcome(rig.sdk.headers["x-request-id"])
    assert outcome.outcome == "overloaded"
    assert outcome.usage is None
    assert outcome.failed_attempts == (FailedAttempt("chat/vendor-model", "overloaded"),) * 2


def test_a_request_that_cannot_be_read_is_an_outcome(rig: Rig) -> None:
    answered = post(rig.gateway.port, PATHS["chat"], b"{", "user-agent: OpenAI/Python 3.49.0", "x-request-id: half")
    outcome = rig.gateway.outcome("half")
    assert answered.status == 400
    assert (outcome.outcome, outcome.client, outcome.client_protocol) == ("bad_request", "OpenAI/Python", "chat")


def test_a_request_with_a_wrong_key_belongs_to_no_key(rig: Rig) -> None:
    assert post(rig.gateway.port, PATHS["chat"], b"{}", "x-request-id: wrong", key="dgm_wrong-one").status == 401
    assert post(rig.gateway.port, PATHS["chat"], b"{", "x-request-id: right").status == 400
    assert rig.gateway.outcome("right").outcome == "bad_request"
    assert not [outcome for outcome in rig.gateway.outcomes if outcome.client_request_id == "wrong"]


@upstreams
def test_a_client_that_disconnects_has_used_what_it_received(rig: Rig, upstream: str) -> None:
    rig.play(upstream, Answer(ENCODERS[upstream].encode_stream(CASES["text"].scripted)[:-150], end=End.HANG))
    body = b'{"model": "%s", "stream": true, "messages": [{"role": "user", "content": "Go on."}]}'
    with dial(rig.gateway.port) as sock:
        asks = request_bytes(PATHS["chat"], body % rig.model(upstream).encode(), f"x-request-id: left-{upstream}")
        sock.sendall(asks)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    outcome = rig.gateway.outcome(f"left-{upstream}")
    assert outcome.outcome == CLIENT_GONE
    assert outcome.usage is not None


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_a_broken_reply_has_reported_input_and_estimated_output(rig: Rig, client: str) -> None:
    start: JsonObject = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    counts = {"input_tokens": 100, "cache_read_input_tokens": 50, "output_tokens": 1}
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": {**start, "usage": counts}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word " * 400}},
    ]
    body = b"".join(
        b"event: %b\ndata: %b\n\n" % (str(one["type"]).encode(), msgspec.json.encode(one)) for one in events
    )
    rig.play("messages", Answer(body, end=End.CUT))
    question = {"model": rig.model("messages"), "stream": True, "max_tokens": 9, "messages": WELL}
    post(rig.gateway.port, PATHS[client], msgspec.json.encode(question), f"x-request-id: broken-{client}")
    usage = rig.gateway.outcome(f"broken-{client}").usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.source) == (150, 50, UsageSource.ESTIMATED)
    assert usage.output == 575  # 2,000 bytes, four in a token, and more of them because it is a Claude


@clients
def test_a_client_that_disconnects_before_the_reply_has_a_provider_in_its_outcome(rig: Rig, client: str) -> None:
    upstream = rig.play("responses", Answer(headless=True, end=End.HANG))
    question = {"model": rig.model("responses"), "max_tokens": 9, "messages": WELL, "input": "Well?"}
    with dial(rig.gateway.port) as sock:
        sock.sendall(request_bytes(PATHS[client], msgspec.json.encode(question), f"x-request-id: soon-{client}"))
        wait_until(lambda: bool(upstream.calls))
    outcome = rig.gateway.outcome(f"soon-{client}")
    assert outcome.outcome == CLIENT_GONE
    assert outcome.failed_attempts == (FailedAttempt("responses/vendor-model", CLIENT_GONE),)


def test_an_error_in_mid_stream_is_the_outcome(rig: Rig) -> None:
    rig.play("messages", Answer(ENCODERS["messages"].encode_stream(CASES["text"].scripted)[:-150], end=End.RESET))
    STREAMS["chat"][0](rig.sdk, request_for("chat", rig.model("messages")))
    assert rig.gateway.outcome(rig.sdk.headers["x-request-id"]).outcome == "lost"
