"""Kiro's error answers as bytes: keyed on reason, message, class and status in this order; no secret in them."""

import msgspec
import pytest

from dragoman.translate.hub.events import Failed
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.protocols.kiro.errors import _BY_CLASS, describe_request, may_be_old_token, read_failure
from fakes.eventstream import exception
from tables import each_row
from translate.protocols.kiro.kiro_replies import read as decoded
from translate.protocols.kiro.kiro_replies import text_event
from translate.protocols.kiro.kiro_requests import ask, chat, user

ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/FAKE"


def read_answer(status: int, message: object = None, reason: str | None = None, **headers: bytes) -> Failure:
    body = msgspec.json.encode({"message": message, "reason": reason})
    return read_failure(status, {name.replace("_", "-").encode(): value for name, value in headers.items()}, body)


@each_row(
    ("status", "reason", "message", "kind"),
    [
        (400, "CONTENT_LENGTH_EXCEEDS_THRESHOLD", "Input is too long.", Kind.CONTEXT_TOO_LONG),
        (400, None, "Input is too long.", Kind.CONTEXT_TOO_LONG),
        (400, "INVALID_MODEL_ID", "Invalid model.", Kind.NOT_FOUND),
        (400, "INVALID_CONVERSATION_ID", "x", Kind.BAD_REQUEST),
        (400, "INVALID_KMS_GRANT", "x", Kind.BAD_REQUEST),
        (400, None, "Improperly formed request.", Kind.BAD_REQUEST),
        (400, "REQUEST_BODY_INVALID", "Improperly formed request.", Kind.BAD_REQUEST),
        (400, None, "profileArn is required for this request.", Kind.BAD_REQUEST),
        (400, "THINKING_SIGNATURE_INVALID", "x", Kind.BAD_REQUEST),
        (400, None, "Invalid tool use format.", Kind.BAD_REQUEST),
        (401, None, "The bearer token included in the request is invalid.", Kind.CREDENTIAL),
        (403, None, "The bearer token included in the request is invalid.", Kind.CREDENTIAL),
        (403, None, "The security token included in the request is expired", Kind.CREDENTIAL),
        (401, None, "no", Kind.CREDENTIAL),
        (403, "TEMPORARILY_SUSPENDED", "x", Kind.FORBIDDEN),
        (403, None, "Your User ID (d-1) temporarily is suspended.", Kind.FORBIDDEN),
        (403, "FEATURE_NOT_SUPPORTED", "x", Kind.FORBIDDEN),
        (403, "UNAUTHORIZED_CUSTOMIZATION_RESOURCE_ACCESS", "x", Kind.FORBIDDEN),
        (403, None, "User is not authorized to make this call.", Kind.FORBIDDEN),
        (402, "MONTHLY_REQUEST_COUNT", "You have reached the limit.", Kind.QUOTA),
        (400, "MONTHLY_REQUEST_COUNT", "You have reached the limit.", Kind.QUOTA),
        (429, "MONTHLY_REQUEST_COUNT", "Too many requests", Kind.QUOTA),
        (429, "DAILY_REQUEST_COUNT", "x", Kind.QUOTA),
        (402, "OVERAGE_REQUEST_LIMIT_EXCEEDED", "x", Kind.QUOTA),
        (402, "CONVERSATION_LIMIT_EXCEEDED", "x", Kind.QUOTA),
        (400, None, "You have reached the limit.", Kind.QUOTA),
        (402, None, "", Kind.QUOTA),
        (404, None, "x", Kind.NOT_FOUND),
        (409, "CUSTOMER_KMS_KEY_DISABLED", "x", Kind.CONFLICT),
        (409, "MISMATCHED_KMS_KEY", "x", Kind.CONFLICT),
        (413, None, "length limit exceeded", Kind.TOO_LARGE),
        (429, "INSUFFICIENT_MODEL_CAPACITY", "I am experiencing high traffic", Kind.OVERLOADED),
        (429, None, "I am experiencing high traffic, please try again shortly.", Kind.OVERLOADED),
        (429, "INSUFFICIENT_THROUGHPUT", "x", Kind.OVERLOADED),
        (429, "SERVICE_REQUEST_RATE_EXCEEDED", "x", Kind.OVERLOADED),
        (429, "USER_REQUEST_RATE_EXCEEDED", "x", Kind.RATE_LIMITED),
        (429, "CREDIT_CONSUMPTION_RATE_EXCEEDED", "x", Kind.RATE_LIMITED),
        (429, None, "Due to suspicious activity, we have limited you.", Kind.RATE_LIMITED),
        (429, "SOMETHING_NEW", "x", Kind.RATE_LIMITED),
        (500, "MODEL_TEMPORARILY_UNAVAILABLE", "x", Kind.OVERLOADED),
        (500, None, "Encountered unexpectedly high load when processing the request.", Kind.OVERLOADED),
        (500, None, "x", Kind.UPSTREAM),
        (502, None, "", Kind.UPSTREAM),
        (503, None, "x", Kind.OVERLOADED),
        (418, None, "x", Kind.BAD_REQUEST),
    ],
)
def test_what_an_answer_means(status: int, reason: str | None, message: str, kind: Kind) -> None:
    failure = read_answer(status, message, reason)
    assert (failure.kind, failure.status, failure.code) == (kind, status, reason)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ThrottlingException", Kind.RATE_LIMITED),
        ("ServiceQuotaExceededException", Kind.QUOTA),
        ("AccessDeniedException", Kind.FORBIDDEN),
        ("ExpiredTokenException", Kind.CREDENTIAL),
        ("ResourceNotFoundException", Kind.NOT_FOUND),
        ("InternalServerException", Kind.UPSTREAM),
        ("ServiceUnavailableException", Kind.OVERLOADED),
        ("ValidationException", Kind.BAD_REQUEST),
    ],
)
def test_the_class_decides_over_the_status_wherever_it_is_recorded(name: str, kind: Kind) -> None:
    spelled = f"com.amazon.aws.codewhisperer#{name}:http://internal.amazon.com/coral/"
    in_header = read_answer(400, "x", x_amzn_errortype=spelled.encode())
    in_body = read_failure(400, {}, msgspec.json.encode({"__type": spelled, "Message": "x"}))
    in_code = read_failure(400, {}, msgspec.json.encode({"code": name, "errorMessage": "x"}))
    for failure in (in_header, in_body, in_code):
        assert (failure.kind, failure.message, failure.code) == (kind, "x", name)


@each_row(("name", "kind"), [*_BY_CLASS.items(), ("error", Kind.UPSTREAM), ("somethingNewException", Kind.UPSTREAM)])
def test_an_exception_in_a_stream_means_the_same_in_any_letter_case(name: str, kind: Kind) -> None:
    """Streams name the member of a union, which begins with a small letter."""
    for spelled in (name, name[:1].lower() + name[1:], name.lower(), name.upper(), f"com.amazon#{name}"):
        *_, failed = decoded(text_event("Hel") + exception(spelled, {"message": "x"}))
        assert isinstance(failed, Failed)
        assert failed.failure.kind is kind
        if name in _BY_CLASS:
            assert failed.failure.code == name


def test_a_403_without_a_reason_may_be_a_token_that_ran_out() -> None:
    for body in (b"", b"{}", b'{"message":null,"reason":null}'):
        assert read_failure(403, {}, body).kind is Kind.CREDENTIAL
    assert read_failure(403, {}, b'{"reason":"TEMPORARILY_SUSPENDED"}').kind is Kind.FORBIDDEN


@each_row(
    ("status", "reason", "message", "is_expected"),
    [
        (401, None, "no", True),
        (403, None, "The bearer token included in the request is invalid.", True),
        (403, None, "", True),
        (403, None, "User is not authorized to make this call.", True),
        (403, "SOMETHING_NEW", "x", True),
        (403, "TEMPORARILY_SUSPENDED", "x", False),
        (403, None, "Your User ID (d-1) temporarily is suspended.", False),
        (403, "FEATURE_NOT_SUPPORTED", "x", False),
        (403, "UNAUTHORIZED_WORKSPACE_CONTEXT_FEATURE_ACCESS", "x", False),
        (403, None, "The subscription is unsupported.", False),
        (403, "MONTHLY_REQUEST_COUNT", "x", False),
        (400, None, "Improperly formed request.", False),
        (429, None, "Too many requests", False),
    ],
)
def test_a_new_token_may_help_unless_the_reason_is_final(
    status: int, reason: str | None, message: str, is_expected: bool
) -> None:
    assert may_be_old_token(read_answer(status, message, reason)) is is_expected


def test_a_request_is_described_by_its_figures() -> None:
    look = {"name": "look", "arguments": "{}"}
    built = ask(
        "chat",
        chat(
            user("hi"),
            {"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": look} for id in "ab"]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            user("é日"),
            tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        ),
    )
    figures = "2 earlier messages, 2 characters in the last one, 1 tools, 2 calls, 2 tool results, 0 images"
    assert describe_request(built.body) == f"{len(built.body)} bytes, {figures}"
    assert describe_request(b"{") == "1 bytes"


def test_the_error_may_be_wrapped() -> None:
    body = msgspec.json.encode({"error": {"message": "x", "reason": "DAILY_REQUEST_COUNT"}})
    assert read_failure(400, {}, body).kind is Kind.QUOTA
    assert read_failure(400, {}, b'{"error":"bad thing"}').message == "bad thing"


def test_a_wait_is_passed_on_and_never_too_short_for_a_limited_account() -> None:
    assert read_answer(429, "x", "INSUFFICIENT_MODEL_CAPACITY", retry_after=b"3").retry_after == 3
    assert read_answer(429, "x", "INSUFFICIENT_MODEL_CAPACITY").retry_after is None
    assert read_answer(429, "x", "USER_REQUEST_RATE_EXCEEDED", retry_after=b"3").retry_after == 8
    assert read_answer(429, "x", "USER_REQUEST_RATE_EXCEEDED", retry_after=b"60").retry_after == 60
    assert read_answer(429, "Due to suspicious activity").retry_after == 300
    assert read_answer(429, "x", retry_after=b"soon").retry_after is None


@pytest.mark.parametrize(
    "body", [b"", b"<html><style>x{}</style><h1>Bad gateway</h1></html>", b"[1]", b"\xff\xfe", b"{" * 9999]
)
def test_a_body_that_is_no_error_still_reports_the_status(body: bytes) -> None:
    failure = read_failure(502, {}, body)
    assert failure.kind is Kind.UPSTREAM
    assert "502" in failure.message
    assert len(failure.message) < 400


@pytest.mark.parametrize(
    "secret",
    [ARN, "ksk_fakefakefake", "aorAAAAfakefakefake:fake", "aoaAAAAfakefakefake", "eyJfakefake.fake", "d-906-fake"],
)
def test_no_secret_is_echoed(secret: str) -> None:
    losses = f"User ID ({secret}) is odd" if secret.startswith("d-") else f"It was {secret}, Bearer {secret}"
    for failure in (read_answer(403, losses), read_failure(500, {}, losses.encode())):
        assert secret not in failure.message
        assert "[hidden]" in failure.message
