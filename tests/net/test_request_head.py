"""Heads that differ only in their length and credential are parsed once; every check still holds for each of them."""

import pytest
from msgspec.structs import replace

from dragoman.net.errors import HeadRejected
from dragoman.net.request_head import HeadReader, RequestHead, parse_head
from tables import each_row

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


def test_a_remembered_head_serves_another_client_with_its_own_credentials() -> None:
    first = parse_head(head("content-length: 5", "Authorization: Bearer one", "x-api-key: k1 ", "cookie: a=b"), 9)
    other = parse_head(head("content-length: 7", "Authorization: Bearer two", "x-api-key: k2 ", "cookie: c=d"), 9)
    assert first.lasting is not None
    assert first.lasting is other.lasting
    assert first.fields[2:] == [(b"authorization", b"Bearer one"), (b"x-api-key", b"k1"), (b"cookie", b"a=b")]
    assert other.fields[1:] == [
        (b"content-length", b"7"),
        (b"authorization", b"Bearer two"),
        (b"x-api-key", b"k2"),
        (b"cookie", b"c=d"),
    ]
    assert other.by_name == dict(other.fields)


@each_row(
    "lines",
    [
        ("x-api-key:1", "authorization: Bearer a"),
        ("authorization: Bearer a", "x-api-key: 1\t"),
        ("authorization:", "x-api-key: b"),
        ("authorization: \xe9", "x-api-key: 1"),
        ("AUTHORIZATION: Bearer a", "Authorization: Bearer b"),
        ("x-api-key: 1", "x-goog-api-key: 2", "cookie: 1"),
        ("x-session-token: 1", "x-api-key: 2"),
        ("x-api-key: 1", "x-api-key: 2", "x-api-key: 1"),
    ],
)
def test_credentials_are_read_alike_whether_the_head_is_remembered_or_not(lines: tuple[str, ...]) -> None:
    long = parse_head(head("content-length: 5", *lines, "x: " + "a" * 5000), MAX_FIELDS)
    for _ in range(2):
        read = parse_head(head("content-length: 5", *lines), MAX_FIELDS)
        assert read.fields == long.fields[:-1]
        assert read.by_name is None or read.by_name == dict(reversed(read.fields))
        assert (read.length, read.method, read.path, read.query) == (5, "POST", "/v1/messages", "beta=true")


def test_a_head_with_another_credential_has_no_lasting_fields() -> None:
    assert parse_head(head("content-length: 5", "x-session-token: fake"), MAX_FIELDS).lasting is None
    with_key = head("content-length: 5", line="POST /v1beta/models/m:countTokens?key=fake HTTP/1.1")
    assert parse_head(with_key, MAX_FIELDS).lasting is None


def test_a_connection_knows_the_head_that_it_has_read_before() -> None:
    reader = HeadReader()
    first = reader.parse(head("Content-Length: 17", "x-api-key: k", "x-session-token: s"), MAX_FIELDS)
    first.key_digests.append(b"digest")
    second = reader.parse(head("Content-Length: 4096", "x-api-key: k", "x-session-token: s"), MAX_FIELDS)
    assert second == parse_again(second, "Content-Length: 4096", "x-api-key: k", "x-session-token: s")
    assert (second.length, second.key_digests) == (4096, [b"digest"])
    assert first.fields[1] == (b"content-length", b"17")


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 17", "x-api-key: other"),
        ("Content-Length: 0", "x-api-key: k"),
        ("Content-Length: 017", "x-api-key: k"),
        ("Content-Length: 17 ", "x-api-key: k"),
        ("Content-Length: 1\r\nx: 7", "x-api-key: k"),
        ("Transfer-Encoding: chunked", "x-api-key: k"),
        ("x-api-key: k",),
    ],
)
def test_a_head_that_differs_otherwise_is_parsed_anew(lines: tuple[str, ...]) -> None:
    reader = HeadReader()
    reader.parse(head("Content-Length: 5", "x-api-key: k"), MAX_FIELDS).key_digests.append(b"digest")
    read = reader.parse(head(*lines), MAX_FIELDS)
    assert read.key_digests == []
    assert read == parse_again(read, *lines)


def test_what_is_rejected_is_rejected_on_a_connection_that_knows_a_similar_head() -> None:
    reader = HeadReader()
    reader.parse(head("Content-Length: 5", "a: 1"), 3)
    for lines in (("Content-Length: 5\nb: 2", "a: 1"), ("Content-Length: 5", "Content-Length: 5", "a: 1")):
        with pytest.raises(HeadRejected):
            reader.parse(head(*lines), 9)
    reader.parse(head("Content-Length: 5", "a: 1"), 3)
    with pytest.raises(HeadRejected):
        reader.parse(head("Content-Length: 6", "a: 1"), 2)


def parse_again(read: RequestHead, *lines: str) -> RequestHead:
    """Return the same head, parsed without any memory."""
    parsed = parse_head(head(*lines, "x: " + "a" * 5000), MAX_FIELDS)
    fields = parsed.fields[:-1]
    return replace(parsed, fields=fields, by_name=read.by_name, lasting=read.lasting, key_digests=read.key_digests)
