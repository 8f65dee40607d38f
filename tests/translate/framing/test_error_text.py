"""Error messages of upstreams, made safe to show."""

import pytest

from dragoman.translate.framing.error_text import clean_message, describe_error_page, kind_for_status, retry_after
from dragoman.translate.hub.failure import Kind


@pytest.mark.parametrize(
    "secret",
    [
        *("sk-fake-0123456789", "ksk_fake0123456789", "aoaFAKE0123456789", "aorFAKE0123456789", "AIzaFAKE0123456789"),
        *("eyJfake.eyJfake.fake", "arn:aws:codewhisperer:us-east-1:123456789012:profile/FAKE"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(secret: str) -> None:
    message = clean_message(f"The key {secret} in Bearer {secret} is wrong")
    assert secret not in message
    assert message.startswith("The key [hidden]")


def test_words_about_tokens_stay() -> None:
    original = "The bearer token included in the request is invalid."
    assert clean_message(original) == original


def test_an_html_page_is_reduced_to_its_text_and_shortened() -> None:
    page = b"<html><style>p{}</style><h1>502</h1>\n<p>" + b"word " * 200 + b"</p></html>"
    message = describe_error_page(502, page)
    assert message.startswith("the upstream returned HTTP 502: 502 word word")
    assert len(message) < 340
    assert "<" not in message
    assert describe_error_page(503, b"") == "the upstream returned HTTP 503 without a message"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Kind.CREDENTIAL),
        (418, Kind.BAD_REQUEST),
        (422, Kind.BAD_REQUEST),
        (500, Kind.UPSTREAM),
        (529, Kind.OVERLOADED),
    ],
)
def test_a_status_means_something_by_itself(status: int, kind: Kind) -> None:
    assert kind_for_status(status) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({b"retry-after": b"7"}, 7.0),
        ({b"retry-after": b"7", b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after": b"-1"}, None),
        ({b"retry-after": b"inf"}, None),
        ({}, None),
    ],
)
def test_a_number_of_seconds_is_waited_for_and_nothing_else(headers: dict[bytes, bytes], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
