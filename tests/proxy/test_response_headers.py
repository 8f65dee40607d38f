"""Which of an upstream's headers go on to the client, and those of our own."""

import msgspec
import pytest

from dragoman.net.headers import Headers
from dragoman.proxy.response_headers import (
    MAX_DETAIL_BYTES,
    detail,
    drop_account_headers,
    format_loss_count,
    format_loss_headers,
    headers_to_forward,
    id_headers,
)
from dragoman.translate.hub.loss import Loss, LossKind
from dragoman.translate.hub.ports import Client
from dragoman.translate.protocols import PROTOCOLS
from narrowing import present
from tables import each_row


def client(protocol: str) -> Client:
    return present(PROTOCOLS[protocol].client)


@each_row(
    ("name", "passes"),
    [
        (b"content-type", True),
        (b"openai-processing-ms", True),
        (b"request-id", True),
        (b"retry-after", True),
        (b"x-request-id", False),  # ours stands there
        (b"x-dragoman-request-id", False),  # of another gateway
        (b"set-cookie", False),
        (b"transfer-encoding", False),
        (b"content-length", False),
        (b"server", False),
        (b"access-control-allow-origin", False),
        (b"x-hop", False),  # named by Connection
    ],
)
def test_what_concerns_the_client_is_passed_on(name: bytes, passes: bool) -> None:
    headers = Headers([(b"connection", b"close, X-Hop"), (name, b"value")])
    assert headers_to_forward(headers) == ([(name, b"value")] if passes else [])


def test_a_secret_in_a_header_is_hidden() -> None:
    headers = Headers([(b"x-debug", b"asked with sk-secret-0123456789")])
    assert headers_to_forward(headers, (b"sk-secret-0123456789",)) == [(b"x-debug", b"asked with ***")]


@pytest.mark.parametrize(
    ("name", "is_of_account"),
    [
        (b"x-ratelimit-remaining-tokens", True),
        (b"anthropic-ratelimit-requests-limit", True),
        (b"openai-organization", True),
        (b"x-quota-left", True),
        (b"x-codex-primary-used-percent", True),
        (b"retry-after", False),
        (b"retry-after-ms", False),
        (b"x-codex-turn-state", False),
        (b"content-type", False),
    ],
)
def test_headers_about_the_gateways_account_can_be_left_out(name: bytes, is_of_account: bool) -> None:
    left = list(drop_account_headers(Headers([(name, b"1")])))
    assert left == ([] if is_of_account else [(name, b"1")])


def test_the_request_id_stands_where_each_sdk_looks_for_it() -> None:
    ours = [(b"x-request-id", b"req_1"), (b"x-dragoman-request-id", b"req_1")]
    assert id_headers(client("chat"), "req_1", []) == ours
    both = [*ours, (b"request-id", b"req_1")]
    assert id_headers(client("messages"), "req_1", []) == both
    assert id_headers(client("messages"), "req_1", [(b"request-id", b"theirs")]) == ours


LOSSES = [Loss("/seed", LossKind.DROPPED, "it has none"), Loss("/top_k", LossKind.APPROXIMATED, "für alle 𝄞")]


def test_losses_are_counted_and_explained_on_demand() -> None:
    assert format_loss_count(2) == (b"x-dragoman-loss", b"2")
    count, explained = format_loss_headers(LOSSES, 2)
    assert count == (b"x-dragoman-loss", b"2")
    assert explained[0] == b"x-dragoman-loss-detail"
    assert explained[1].isascii()
    assert msgspec.json.decode(explained[1]) == [
        {"path": "/seed", "how": "dropped", "why": "it has none"},
        {"path": "/top_k", "how": "approximated", "why": "für alle 𝄞"},
    ]


def test_what_does_not_fit_into_the_header_is_counted() -> None:
    many = [Loss(f"/messages/{number}", LossKind.DROPPED, "x" * 200) for number in range(100)]
    listed = detail(many, 250)
    entries = msgspec.json.decode(listed)
    assert len(listed) < MAX_DETAIL_BYTES + 200
    assert len(entries) < 100
    assert entries[-1]["why"].startswith(f"{250 - len(entries) + 1} more")
