"""Chat's errors, both ways: what upstreams answer is read, what clients get raises the right class in OpenAI's SDK."""

import msgspec
import openai
import pytest

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.protocols.chat.errors import read_failure, render_error
from tables import each_row
from translate.protocols.chat.chat_encoding import sdk

CLASSES: dict[Kind, tuple[int, type[openai.APIStatusError]]] = {
    Kind.BAD_REQUEST: (400, openai.BadRequestError),
    Kind.TOO_LARGE: (413, openai.APIStatusError),
    Kind.REQUEST_TIMEOUT: (408, openai.APIStatusError),
    Kind.AUTH: (401, openai.AuthenticationError),
    Kind.CREDENTIAL: (502, openai.InternalServerError),
    Kind.FORBIDDEN: (403, openai.PermissionDeniedError),
    Kind.NOT_FOUND: (404, openai.NotFoundError),
    Kind.CONFLICT: (409, openai.ConflictError),
    Kind.QUOTA: (429, openai.RateLimitError),
    Kind.RATE_LIMITED: (429, openai.RateLimitError),
    Kind.LIMITED: (429, openai.RateLimitError),
    Kind.SPENT: (402, openai.APIStatusError),
    Kind.OVERLOADED: (503, openai.InternalServerError),
    Kind.BUSY: (503, openai.InternalServerError),
    Kind.CONTEXT_TOO_LONG: (400, openai.BadRequestError),
    Kind.REFUSED: (400, openai.BadRequestError),
    Kind.TIMEOUT: (504, openai.InternalServerError),
    Kind.TRUNCATED: (502, openai.InternalServerError),
    Kind.CORRUPT: (502, openai.InternalServerError),
    Kind.LOST: (502, openai.InternalServerError),
    Kind.UPSTREAM: (502, openai.InternalServerError),
    Kind.SHUTDOWN: (503, openai.InternalServerError),
    Kind.BUG: (500, openai.InternalServerError),
}


def catch_failure(failure: Failure) -> openai.APIStatusError:
    rendered = render_error(failure, "req_1")
    with pytest.raises(openai.APIStatusError) as caught:
        sdk(rendered.body, "application/json", rendered.status).chat.completions.create(model="m", messages=[])
    return caught.value


@each_row("kind", Kind)
def test_every_kind_raises_its_class_in_the_sdk(kind: Kind) -> None:
    status, expected = CLASSES[kind]
    error = catch_failure(Failure(kind, "so it goes"))
    assert error.status_code == status
    assert isinstance(error, expected)
    assert "so it goes" in str(error)


def test_codes_that_clients_look_for() -> None:
    assert (
        catch_failure(Failure(Kind.CONTEXT_TOO_LONG, "x", code="invalid_request_error")).code
        == "context_length_exceeded"
    )
    assert catch_failure(Failure(Kind.QUOTA, "x")).code == "insufficient_quota"
    assert catch_failure(Failure(Kind.NOT_FOUND, "x", status=404)).code == "model_not_found"
    assert catch_failure(Failure(Kind.BAD_REQUEST, "x", code="unsupported_value")).code == "unsupported_value"


def test_the_field_at_fault_is_written_as_openai_writes_it() -> None:
    error = catch_failure(Failure(Kind.BAD_REQUEST, "x", at="/messages/0/content/2/image_url"))
    assert error.param == "messages[0].content[2].image_url"


def test_an_upstreams_own_500_stays_one() -> None:
    assert render_error(Failure(Kind.UPSTREAM, "x", status=500), "").status == 500
    assert render_error(Failure(Kind.UPSTREAM, "x", status=507), "").status == 502


def body(**error: object) -> bytes:
    return msgspec.json.encode({"error": error})


@each_row(
    ("status", "answer", "kind"),
    [
        (400, body(message="no", type="invalid_request_error", code=None), Kind.BAD_REQUEST),
        (400, body(message="This model's maximum context length is 8192 tokens"), Kind.CONTEXT_TOO_LONG),
        (400, body(message="too much", code="context_length_exceeded"), Kind.CONTEXT_TOO_LONG),
        (400, body(message="flagged", code="content_filter"), Kind.REFUSED),
        (401, body(message="Incorrect API key provided", code="invalid_api_key"), Kind.CREDENTIAL),
        (402, body(message="pay"), Kind.QUOTA),
        (403, body(message="not entitled"), Kind.FORBIDDEN),
        (403, body(message="bad token", type="authentication_error"), Kind.CREDENTIAL),
        (404, body(message="no model", code="model_not_found"), Kind.NOT_FOUND),
        (404, b"", Kind.NOT_FOUND),
        (408, b"", Kind.TIMEOUT),
        (409, b"{}", Kind.CONFLICT),
        (413, b"too big", Kind.TOO_LARGE),
        (422, msgspec.json.encode({"detail": [{"loc": ["body"], "msg": "field required"}]}), Kind.BAD_REQUEST),
        (429, body(message="slow down", type="requests", code="rate_limit_exceeded"), Kind.RATE_LIMITED),
        (429, body(message="You exceeded your quota", code="insufficient_quota"), Kind.QUOTA),
        (400, body(message="Insufficient Balance"), Kind.QUOTA),
        (500, body(message="oops", type="server_error"), Kind.UPSTREAM),
        (502, b"<html>Bad Gateway</html>", Kind.UPSTREAM),
        (503, body(message="busy", type="server_error"), Kind.OVERLOADED),
        (504, b"", Kind.TIMEOUT),
        (529, b"", Kind.OVERLOADED),
        (429, b'[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}]', Kind.RATE_LIMITED),
        (500, b'{"error":"plain words"}', Kind.UPSTREAM),
        (400, b"[" * 100_000, Kind.BAD_REQUEST),
        (400, b'{"error": "\xff"}', Kind.BAD_REQUEST),
    ],
)
def test_an_upstreams_answer_has_its_kind(status: int, answer: bytes, kind: Kind) -> None:
    failure = read_failure(status, {}, answer)
    assert failure.kind is kind
    assert failure.status == status
    assert failure.message


def test_a_page_of_html_becomes_a_short_line() -> None:
    page = b"<html><head><style>p{color:red}</style></head><body><h1>502</h1>" + b"<p>word</p>" * 500
    message = read_failure(502, {}, page).message
    assert message.startswith("the upstream returned HTTP 502: 502 word")
    assert len(message) < 340
    assert "<" not in message
    assert "color" not in message


@pytest.mark.parametrize(
    "secret", ["sk-fake-0123456789abcdef", "Bearer abc.def.ghi", "eyJhbGciOi.J9fake", "ghp_fakefakefake"]
)
def test_secrets_in_messages_are_masked(secret: str) -> None:
    hidden = secret.removeprefix("Bearer ")
    assert hidden not in read_failure(401, {}, body(message=f"Incorrect key {secret}.")).message
    assert hidden not in read_failure(502, {}, f"<p>{secret}</p>".encode()).message


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({b"retry-after": b"7"}, 7.0),
        ({b"retry-after": b"7", b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after": b"Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({b"retry-after": b"-1"}, None),
        ({b"retry-after": b"inf"}, None),
        ({b"retry-after": b"nan"}, None),
        ({}, None),
    ],
)
def test_when_to_come_back_is_read(headers: dict[bytes, bytes], wait: float | None) -> None:
    assert read_failure(429, headers, b"").retry_after == wait


def test_the_vendors_code_is_kept() -> None:
    assert read_failure(400, {}, body(message="x", type="invalid_request_error", code="bad_thing")).code == "bad_thing"
    assert read_failure(529, {}, body(message="x", type="overloaded_error", code=529)).code == "overloaded_error"
