"""Errors of upstreams in their own protocols, and what a client of each protocol must get for them."""

from dataclasses import dataclass, field

import anthropic
import msgspec
import openai

from fakes.upstream import Answer, End

SECRET = "sk-fake-upstream"
ALWAYS_AGAIN = 3  # attempts, as these tests configure them


@dataclass(frozen=True)
class Fault:
    status: int
    openai_error: tuple[str, str | None]  # type, code
    messages_type: str
    message: str = "The vendor says no."
    calls: int = 1  # requests that the upstream gets
    seen: dict[str, int] = field(default_factory=dict)  # client protocol -> status, where it is not the upstream's
    headers: tuple[tuple[str, str], ...] = ()


OPENAI_OVERLOADED = {"chat": 503, "responses": 503, "messages": 529}
ALL_502 = {"chat": 502, "responses": 502, "messages": 502}

FAULTS: dict[str, Fault] = {
    "400": Fault(400, ("invalid_request_error", None), "invalid_request_error"),
    "401": Fault(
        401,
        ("invalid_request_error", "invalid_api_key"),
        "authentication_error",
        f"Incorrect API key provided: {SECRET}.",
        seen=ALL_502,
    ),
    "403": Fault(403, ("permission_error", None), "permission_error", "Your organisation may not use this model."),
    "404": Fault(404, ("invalid_request_error", "model_not_found"), "not_found_error"),
    "413": Fault(413, ("invalid_request_error", None), "request_too_large"),
    "429 for half a minute": Fault(
        429, ("rate_limit_error", "rate_limit_exceeded"), "rate_limit_error", headers=(("retry-after", "30"),)
    ),
    "429": Fault(429, ("rate_limit_error", "rate_limit_exceeded"), "rate_limit_error", calls=ALWAYS_AGAIN),
    "500": Fault(500, ("server_error", None), "api_error", calls=ALWAYS_AGAIN),
    "504": Fault(504, ("server_error", None), "timeout_error", calls=ALWAYS_AGAIN),
    "503": Fault(503, ("server_error", None), "overloaded_error", calls=ALWAYS_AGAIN, seen=OPENAI_OVERLOADED),
    "529": Fault(529, ("server_error", None), "overloaded_error", calls=ALWAYS_AGAIN, seen=OPENAI_OVERLOADED),
}

HTML = b"<!doctype html><html><head><title>502 Bad Gateway</title></head><body><h1>cloud fell over</h1></body></html>"

OPENAI_CLASSES: dict[int, type[Exception]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    413: openai.APIStatusError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    502: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
    529: openai.InternalServerError,
}
ANTHROPIC_CLASSES: dict[int, type[Exception]] = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    413: anthropic._exceptions.ContentTooLargeError,
    429: anthropic.RateLimitError,
    500: anthropic.InternalServerError,
    502: anthropic.InternalServerError,
    503: anthropic._exceptions.ServiceUnavailableError,
    504: anthropic._exceptions.GatewayTimeoutError,
    529: anthropic._exceptions.OverloadedError,
}
MESSAGES_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def body_of(upstream: str, fault: Fault) -> bytes:
    if upstream == "messages":
        error: dict[str, object] = {"type": fault.messages_type, "message": fault.message}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": "req_upstream"})
    kind, code = fault.openai_error
    return msgspec.json.encode({"error": {"message": fault.message, "type": kind, "param": None, "code": code}})


def refusal(upstream: str, fault: Fault) -> Answer:
    return Answer(
        body_of(upstream, fault),
        status=fault.status,
        content_type="application/json",
        headers=fault.headers,
        chunked=False,
    )


# No protocol has a status for these: every client gets 502, and the upstream is retried until the attempts are used up.
ACCIDENTS: dict[str, Answer] = {
    "502 in HTML": Answer(HTML, status=502, content_type="text/html"),
    "200 in HTML": Answer(HTML, content_type="text/html"),
    "200 without a body": Answer(b"", content_type="application/json", chunked=False),
    "reset before the first byte": Answer(headless=True, end=End.RESET),
    "closed before the first byte": Answer(headless=True, end=End.CUT),
    "closed after the head": Answer(b"", end=End.CUT),
    "cut in the middle of a body": Answer(b'{"id":"x","choices"', content_type="application/json", end=End.CUT),
    "a body that is half JSON": Answer(b'{"id":"x","choices"', content_type="application/json"),
}


def assert_error(client: str, error: Exception, status: int) -> None:
    """The right exception of the SDK, with an error body that is valid in the client's protocol."""
    classes = ANTHROPIC_CLASSES if client == "messages" else OPENAI_CLASSES
    assert type(error) is classes[status], repr(error)
    assert isinstance(error, anthropic.APIStatusError | openai.APIStatusError)
    assert error.status_code == status
    assert error.response.headers["content-type"].startswith("application/json")
    assert error.response.headers["x-request-id"]
    body = msgspec.json.decode(error.response.content)
    response = body["error"]
    assert isinstance(response["message"], str)
    assert response["message"]
    assert SECRET not in error.response.text
    if client == "messages":
        assert body["type"] == "error"
        assert response["type"] == MESSAGES_TYPES[status]
    else:
        assert response.keys() >= {"message", "type", "param", "code"}
        assert isinstance(response["type"], str)
