"""Whatever bytes stand in a request's head, the answer is a clear 4xx or a reply, never an internal error."""

import random
import socket
from collections.abc import Iterator

import msgspec
import pytest

from shell import Served, Shell

MALFORMED = (
    *(
        b"http://[",
        b"http://]",
        b"http://[::1",
        b"http://a:b",
        b"http://a:99999999999999999999",
        b"http://[::1%25\xff]:3",
    ),
    *(b"", b" ", b"\t", b",", b";", b"=", b"*", b"[", b"//", b"%", b"%zz", b"%ff%fe", b"%00", b"%0d%0a", b"\xff\xfe"),
    *(
        b"\xc0\x80",
        b"\xe2\x80\xa8",
        "http://\u2100.example".encode(),
        b"http://\xff\xff",
        b"null",
        b"0",
        b"-1",
        b"1e999",
    ),
    *(b"1" * 5000, b"x" * 9000, b"gzip, gzip", b"br", b"identity, \xff", b"Bearer", b"Bearer \xff", b"Basic ===="),
    *(b"text/html;q=x", b"application/json; charset=\xff", b"run_x:" + b"9" * 40, b"00-x-y-z", b"100-continue, x"),
)
FIELDS = (
    *(b"Host", b"Origin", b"Authorization", b"X-Api-Key", b"X-Goog-Api-Key", b"Content-Encoding", b"Content-Type"),
    *(b"Accept", b"Accept-Encoding", b"Expect", b"Connection", b"User-Agent", b"Traceparent", b"X-Request-Id"),
    *(b"Anthropic-Version", b"Anthropic-Beta", b"OpenAI-Beta", b"X-Dragoman-Explain", b"X-Dragoman-Strict"),
    *(b"X-Dragoman-Park", b"X-Dragoman-Resume", b"Last-Event-Id", b"Idempotency-Key", b"Cookie", b"Upgrade", b"Te"),
    *(b"Session_id", b"Originator", b"X-Stainless-Timeout", b"X-Codex-Turn-Metadata", b"Keep-Alive", b"Trailer"),
)
BODIES = {
    b"/v1/chat/completions": b'{"model":"echo","messages":[{"role":"user","content":"x"}]}',
    b"/v1/responses": b'{"model":"echo","input":"x"}',
    b"/v1/messages": b'{"model":"echo","max_tokens":9,"messages":[{"role":"user","content":"x"}]}',
    b"/v1/messages/count_tokens": b'{"model":"echo","messages":[{"role":"user","content":"x"}]}',
}
TARGETS = (
    *(b"/", b"/health", b"/metrics", b"/v1/models", *BODIES, b"/v1/models/%b", b"/v1/models?%b", b"/health?key=%b"),
    *(b"/v1/models?client_version=%b", b"/v1/models?key=%b&key=", b"/v1/%b", b"/%b", b"%b", b"http://%b/v1/models"),
    *(b"/v1beta/models/%b:generateContent", b"/v1/responses/%b", b"/api/v1/usage?by=%b", b"/api/v1/usage?%b"),
    *(b"/api/usage?since=%b", b"/api/usage?by=%b&days=%b", b"/api/usage?from=%b&to=%b", b"/api/usage?%b"),
)
SHOWN = 300


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Shell(tmp_path_factory.mktemp("hostile")).serve() as gateway:
        yield gateway


def ask(served: Served, data: bytes) -> tuple[int, bytes]:
    """Send these bytes, then the end, and return the last reply's status and body."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert answer, data[:SHOWN]
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


def head_of(method: bytes, target: bytes, fields: dict[bytes, bytes]) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % field for field in fields.items())
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, lines)


def test_a_malformed_origin_is_a_bad_request_that_names_it(served: Served) -> None:
    for origin in (b"http://[", b"http://]", b"http://[::1", b"http://a:b", b"\xff", b"//", b"http://a@b"):
        fields = {b"Host": b"127.0.0.1", b"Origin": origin, b"Connection": b"close"}
        status, body = ask(served, head_of(b"GET", b"/v1/messages", fields))
        assert status == 400, origin
        error = msgspec.json.decode(body)["error"]
        assert error["type"] == "invalid_request_error", origin
        assert "Origin" in error["message"], origin


def test_well_formed_origins_are_judged_by_their_host(served: Served) -> None:
    expected = {
        b"http://localhost:3000": 200,
        b"https://[::1]:8484": 200,
        b"http://evil.example": 403,
        b"null": 403,
        b"file://": 403,
        b"vscode-webview://0a1b2c": 403,
    }
    for origin, status in expected.items():
        fields = {b"Host": b"127.0.0.1", b"Origin": origin, b"Connection": b"close"}
        assert ask(served, head_of(b"GET", b"/health", fields))[0] == status, origin


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.rest)])
def test_no_bytes_in_a_head_make_an_internal_error(served: Served, count: int) -> None:
    chance = random.Random(count)

    def value() -> bytes:
        if chance.random() < 0.8:
            return chance.choice(MALFORMED)
        return bytes(chance.choice((*range(32, 127), *range(128, 256))) for _ in range(chance.randrange(40)))

    for _ in range(count):
        target = chance.choice(TARGETS)
        while b"%b" in target:
            target = target.replace(b"%b", value().replace(b" ", b""), 1)
        method = chance.choice((b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
        body = b"" if method in (b"GET", b"HEAD") else BODIES.get(target, b'{"model":"echo"}')
        fields = {b"Host": b"127.0.0.1", b"Content-Length": b"%d" % len(body)}
        if chance.random() < 0.7:
            fields[b"Authorization"] = b"Bearer " + served.key.encode()
        fields |= {chance.choice(FIELDS): value() for _ in range(chance.randrange(4))}
        data = head_of(method, target, fields | {b"Connection": b"close"}) + body
        status, answer = ask(served, data)
        assert status < 500 or status in (501, 505), (status, data[:SHOWN], answer[:SHOWN])
        if status >= 400 and method != b"HEAD":
            assert "error" in msgspec.json.decode(answer), (data[:SHOWN], answer[:SHOWN])
    assert " failed: " not in served.err
