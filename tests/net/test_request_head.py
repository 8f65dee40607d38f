"""Heads that differ only in their content-length are parsed once; every check still holds for each of them."""

import pytest

from dragoman.net.errors import HeadRejected
from dragoman.net.request_head import parse_head

MAX_FIELDS = 100


def head(*lines: str, line: str = "POST /v1/messages?beta=true HTTP/1.1") -> bytes:
    return "".join(f"{text}\r\n" for text in (line, "Host: localhost", *lines, "")).encode()


def test_heads_that_differ_in_length_keep_their_own_length_and_field() -> None:
    first = parse_head(head("Content-Length: 17", "x-api-key: k"), MAX_FIELDS)
    second = parse_head(head("Content-Length: 4096", "x-api-key: k"), MAX_FIELDS)
    assert (first.length, second.length) == (17, 4096)
    assert first.fields == [(b"host", b"localhost"), (b"content-length", b"17"), (b"x-api-key", b"k")]
    assert second.fields == [(b"host", b"localhost"), (b"content-length", b"4096"), (b"x-api-key", b"k")]
    assert (second.method, second.path, second.query) == ("POST", "/v1/messages", "beta=true")


def test_a_change_of_one_head_does_not_reach_the_next() -> None:
    raw = head("content-length: 5")
    parse_head(raw, MAX_FIELDS).fields.append((b"x", b"y"))
    assert parse_head(raw, MAX_FIELDS).fields == [(b"host", b"localhost"), (b"content-length", b"5")]


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 5", "content-length: 5"),
        ("content-length: 5", "Content-length: 6"),
        ("content-length: 5", "transfer-encoding: chunked"),
        ("content-length: 1234567890123456789",),
        ("x: a\nb", "content-length: 5"),
    ],
)
def test_an_ambiguous_head_is_rejected_each_time(lines: tuple[str, ...]) -> None:
    for _ in range(2):
        with pytest.raises(HeadRejected):
            parse_head(head(*lines), MAX_FIELDS)


def test_the_limit_of_fields_holds_for_a_known_head() -> None:
    raw = head("content-length: 5", "a: 1", "b: 2")
    assert parse_head(raw, 4).length == 5
    with pytest.raises(HeadRejected):
        parse_head(raw, 3)


def test_an_upgrade_with_a_body_is_read_like_one_without_the_cache() -> None:
    raw = head("connection: upgrade", "upgrade: websocket", "content-length: 5")
    long = head("connection: upgrade", "upgrade: websocket", "content-length: 5", "x: " + "a" * 5000)
    known, unknown = parse_head(raw, MAX_FIELDS), parse_head(long, MAX_FIELDS)
    assert (known.upgrade, known.keep_alive, known.length) == (unknown.upgrade, unknown.keep_alive, unknown.length)
