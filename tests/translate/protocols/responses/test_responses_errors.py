"""Upstream error answers in, failures out; failures in, OpenAI's error bodies out."""

import msgspec
import pytest

from dragoman.translate.hub.failure import Failure, Kind
from tables import each_row
from translate.protocols.responses.responses_kit import CLIENT, UPSTREAM


def body(**error: object) -> bytes:
    return msgspec.json.encode({"error": error})


@each_row(
    ("status", "answer", "kind"),
    [
        (400, body(message="bad", type="invalid_request_error", code=None), Kind.BAD_REQUEST),
        (400, body(message="too long", code="context_length_exceeded"), Kind.CONTEXT_TOO_LONG),
        (400, body(message="context_length_exceeded"), Kind.CONTEXT_TOO_LONG),
        (400, body(message="Unknown parameter: 'context_window'."), Kind.BAD_REQUEST),
        (400, body(message="This model's maximum context length is 8192 tokens"), Kind.CONTEXT_TOO_LONG),
        (401, body(message="Incorrect API key", code="invalid_api_key"), Kind.CREDENTIAL),
        (402, b"", Kind.QUOTA),
        (403, body(message="not entitled", code="unsupported_country"), Kind.FORBIDDEN),
        (403, body(message="expired", code="token_expired"), Kind.CREDENTIAL),
        (404, body(message="no such model", code="model_not_found"), Kind.NOT_FOUND),
        (408, b"", Kind.TIMEOUT),
        (409, b"", Kind.CONFLICT),
        (413, b"", Kind.TOO_LARGE),
        (422, b'{"detail":"wrong"}', Kind.BAD_REQUEST),
        (429, body(message="slow", type="tokens", code="rate_limit_exceeded"), Kind.RATE_LIMITED),
        (429, body(message="pay", code="insufficient_quota"), Kind.QUOTA),
        (429, body(message="plan", type="usage_limit_reached", resets_in_seconds=600), Kind.QUOTA),
        (500, body(message="oops", type="server_error"), Kind.UPSTREAM),
        (502, b"<html><title>502 Bad Gateway</title></html>", Kind.UPSTREAM),
        (503, body(message="busy", code="server_is_overloaded"), Kind.OVERLOADED),
        (504, b"", Kind.TIMEOUT),
        (529, b"", Kind.OVERLOADED),
    ],
)
def test_an_error_answer_is_read_by_its_code_and_then_by_its_status(status: int, answer: bytes, kind: Kind) -> None:
    failure = UPSTREAM.read_error(status, {}, answer)
    assert (failure.kind, failure.status) == (kind, status)
    assert failure.message


def test_html_and_empty_bodies_give_a_clear_message_without_tags() -> None:
    html = b"<html><script>var x</script><body><h1>502 Bad\n Gateway</h1></body></html>"
    assert UPSTREAM.read_error(502, {}, html).message == "502 Bad Gateway"
    assert "503" in UPSTREAM.read_error(503, {}, b"").message


def test_long_messages_are_shortened() -> None:
    assert len(UPSTREAM.read_error(500, {}, body(message="x" * 5000)).message) <= 300


@pytest.mark.parametrize(
    "secret", ["sk-fake-abcdef0123456789", "sk_fake_abcdef0123", "Bearer abc.def-ghi0123456", "ghp_fakefakefake"]
)
def test_keys_quoted_by_an_upstream_are_hidden(secret: str) -> None:
    message = UPSTREAM.read_error(401, {}, body(message=f"Incorrect API key provided: {secret}.")).message
    assert secret.removeprefix("Bearer ") not in message
    assert "[hidden]" in message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({b"retry-after": b"20"}, 20.0),
        ({b"retry-after-ms": b"1500", b"retry-after": b"20"}, 1.5),
        ({b"retry-after": b"Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({b"retry-after": b"nan"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_from_the_headers(headers: dict[bytes, bytes], seconds: float | None) -> None:
    assert UPSTREAM.read_error(429, headers, body(message="slow")).retry_after == seconds


def test_the_wait_is_read_from_the_message_where_no_header_has_it() -> None:
    answer = body(message="Please try again in 250ms.", code="rate_limit_exceeded")
    assert UPSTREAM.read_error(429, {}, answer).retry_after == 0.25


@pytest.mark.parametrize("answer", [b'"text"', b"[]", b"null", b'{"error":5}', b'{"error":{"message":7}}', b"\xff\xfe"])
def test_no_body_however_odd_raises(answer: bytes) -> None:
    assert UPSTREAM.read_error(500, {}, answer).kind is Kind.UPSTREAM


def test_every_kind_has_a_body_of_the_right_shape() -> None:
    for kind in Kind:
        rendered = CLIENT.render_error(Failure(kind, "why"), "req_1")
        error = msgspec.json.decode(rendered.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 400 <= rendered.status < 600


def test_an_upstreams_500_stays_one_and_other_faults_are_502() -> None:
    assert CLIENT.render_error(Failure(Kind.UPSTREAM, "x", status=500), "").status == 500
    assert CLIENT.render_error(Failure(Kind.UPSTREAM, "x", status=520), "").status == 502


def test_the_field_at_fault_is_named_as_openai_names_it() -> None:
    rendered = CLIENT.render_error(Failure(Kind.BAD_REQUEST, "x", at="/input/3/content/0/image_url"), "")
    assert msgspec.json.decode(rendered.body)["error"]["param"] == "input[3].content[0].image_url"
