"""Requests that two readers could understand differently are refused, and nothing after them is served."""

import pytest

from fakes.loops import on_both_loops
from net.raw_client import GET, Witness, connect_raw, limits, serving

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: gateway\r\n\r\n"
POST = b"POST /first HTTP/1.1\r\nHost: gateway\r\n"
LINE = b"GET /first HTTP/1.1\r\n"

ATTACKS = {
    "content-length and chunked": (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked and content-length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
    "two lengths that differ": (POST + b"Content-Length: 4\r\nContent-Length: 0\r\n\r\n", 400),
    "two equal lengths": (POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
    "a list of lengths": (POST + b"Content-Length: 0, 0\r\n\r\n", 400),
    "a signed length": (POST + b"Content-Length: +0\r\n\r\n", 400),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "a hexadecimal length": (POST + b"Content-Length: 0x0\r\n\r\n", 400),
    "an empty length": (POST + b"Content-Length: \r\n\r\n", 400),
    "an endless length": (POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
    "gzip, chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked, identity": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "xchunked": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked after a vertical tab": (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked with a space before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST /first HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a folded header": (POST + b"X-A: b\r\n c\r\n\r\n", 400),
    "a folded header with a tab": (POST + b"X-A: b\r\n\tc\r\n\r\n", 400),
    "a space before the colon": (POST + b"X-A : b\r\n\r\n", 400),
    "a header without a colon": (POST + b"X-A\r\n\r\n", 400),
    "a header without a name": (POST + b": b\r\n\r\n", 400),
    "a first header that begins with a space": (LINE + b" X-A: b\r\nHost: gateway\r\n\r\n", 400),
    "a bare CR in a value": (POST + b"X-A: b\rX-B: c\r\n\r\n", 400),
    "a bare LF as line end": (POST + b"X-A: b\nX-B: c\r\n\r\n", 400),
    "bare LFs only": (b"GET /first HTTP/1.1\nHost: gateway\n\n", 400),
    "a NUL in a value": (POST + b"X-A: b\0c\r\n\r\n", 400),
    "a NUL in a name": (POST + b"X\0A: b\r\n\r\n", 400),
    "a control character in a value": (POST + b"X-A: b\x01c\r\n\r\n", 400),
    "no Host": (b"GET /first HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (GET[:-2] + b"Host: gateway\r\n\r\n", 400),
    "an empty Host": (LINE + b"Host: \r\n\r\n", 400),
    "a Host with a path": (LINE + b"Host: gateway/?\r\n\r\n", 400),
    "a Host with a user": (LINE + b"Host: a@gateway\r\n\r\n", 400),
    "a Host with a space": (LINE + b"Host: gate way\r\n\r\n", 400),
    "two Hosts in one": (LINE + b"Host: gateway, other\r\n\r\n", 400),
    "a target of another host": (b"GET http://other/first HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "a target of another scheme": (b"GET ftp://gateway/first HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "a target that is no path": (b"GET first HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "a target with a fragment": (b"GET /first#x HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "a target with raw UTF-8": (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "two spaces in the request line": (b"GET  /first HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "no version": (b"GET /first\r\nHost: gateway\r\n\r\n", 400),
    "HTTP/2.0": (b"GET /first HTTP/2.0\r\nHost: gateway\r\n\r\n", 505),
    "HTTP/0.9": (b"GET /first HTTP/0.9\r\nHost: gateway\r\n\r\n", 505),
    "the HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "an unknown method": (b"BREW /first HTTP/1.1\r\nHost: gateway\r\n\r\n", 501),
    "a lower-case method": (b"get /first HTTP/1.1\r\nHost: gateway\r\n\r\n", 400),
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "an unknown expectation": (POST + b"Expect: the-worst\r\n\r\n", 417),
}

CHUNK_ATTACKS = {
    "a size that is no number": b"z\r\nabc\r\n0\r\n\r\n",
    "a signed size": b"+3\r\nabc\r\n0\r\n\r\n",
    "a prefixed size": b"0x3\r\nabc\r\n0\r\n\r\n",
    "an underscored size": b"0_3\r\nabc\r\n0\r\n\r\n",
    "a size after a space": b" 3\r\nabc\r\n0\r\n\r\n",
    "a size that overflows": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "an empty size": b"\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk ended by a bare LF": b"3\r\nabc\n0\r\n\r\n",
    "a size ended by a bare LF": b"3\nabc\r\n0\r\n\r\n",
    "a bare CR in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a NUL in an extension": b"3;a\0b\r\nabc\r\n0\r\n\r\n",
    "an extension without end": b"3;" + b"a" * 5000 + b"\r\nabc\r\n0\r\n\r\n",
    "a trailer without a colon": b"0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
    "an endless trailer": b"0\r\n" + b"x-a: b\r\n" * 20_000 + b"\r\n",
    "one-byte chunks without end": b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n",
    "small extensions without end": (b"1;" + b"e" * 400 + b"\r\na\r\n") * 400 + b"0\r\n\r\n",
}


@pytest.mark.parametrize("name", ATTACKS)
@on_both_loops
async def test_an_ambiguous_head_is_refused_and_nothing_after_it_is_served(name: str) -> None:
    attack, status = ATTACKS[name]
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        client.send(attack + SMUGGLED)
        reply = await client.reply()
        assert reply.status == status
        assert reply.headers[b"connection"] == b"close"
        assert reply.body
        assert await client.wait_closed()
    assert witness.seen == []


@pytest.mark.parametrize("name", CHUNK_ATTACKS)
@on_both_loops
async def test_a_broken_chunked_body_is_refused_and_nothing_after_it_is_served(name: str) -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK_ATTACKS[name] + SMUGGLED)
        assert (await client.reply()).status == 400
        assert await client.wait_closed()
    assert witness.paths == ["/first"]
    assert witness.bodies == []


@pytest.mark.parametrize(
    "host", [b"gateway", b"gate_way.local:8484", b"127.0.0.1:8484", b"[::1]:8484", b"[fe80::1%25eth0]"]
)
@on_both_loops
async def test_an_ordinary_host_is_accepted(host: bytes) -> None:
    async with serving(Witness()) as server, connect_raw(server) as client:
        client.send(LINE + b"Host: " + host + b"\r\n\r\n")
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/v1/models/a%2Fb%20c?key=a%20b&x=/", "/v1/models/a/b c", "key=a%20b&x=/"),
        (b"http://gateway/v1?x=1", "/v1", "x=1"),
        (b"http://GATEWAY", "/", ""),
        (b"/caf%C3%A9", "/caf\u00e9", ""),
        (b"/?", "/", ""),
        (b"//double//v1", "//double//v1", ""),
    ],
)
@on_both_loops
async def test_the_target_is_taken_apart(target: bytes, path: str, query: str) -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        client.send(b"GET " + target + b" HTTP/1.1\r\nHost: gateway\r\n\r\n")
        assert (await client.reply()).status == 200
    request = witness.seen[0]
    assert (request.path, request.query) == (path, query)
    assert request.method == "GET"


@on_both_loops
async def test_header_names_are_lowered_values_trimmed_and_equal_headers_kept() -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        client.send(GET[:-2] + b"User-Agent:one\r\nUSER-AGENT: \t two \t\r\nX-Empty:\r\nX-Latin: \xe9\r\n\r\n")
        assert (await client.reply()).status == 200
    headers = witness.seen[0].headers
    assert headers.get(b"user-agent") == b"one"
    assert [value for name, value in headers if name == b"user-agent"] == [b"one", b"two"]
    assert headers.get(b"x-empty") == b""
    assert headers.get(b"x-latin") == b"\xe9"
    assert headers.get(b"x-absent") is None
    assert [name for name, _ in headers] == [b"host", b"user-agent", b"user-agent", b"x-empty", b"x-latin"]
    assert len(headers) == 5


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
@on_both_loops
async def test_an_upgrade_reaches_the_handler_as_a_request_and_nothing_after_it_is_http(upgrade: bytes) -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        fields = b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\nContent-Length: 4\r\n\r\nbody"
        client.send(POST + fields + SMUGGLED)
        reply = await client.reply()
        assert (reply.status, reply.headers[b"connection"]) == (200, b"close")
        assert await client.wait_closed()
    assert witness.paths == ["/first"]
    assert witness.bodies == [b"body"]
    assert witness.seen[0].headers.get(b"upgrade") == upgrade


@on_both_loops
async def test_connect_reaches_the_handler_and_its_tunnel_is_never_parsed() -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        client.send(b"CONNECT other:443 HTTP/1.1\r\nHost: other\r\n\r\n" + SMUGGLED)
        assert (await client.reply()).headers[b"connection"] == b"close"
        assert await client.wait_closed()
    assert [request.method for request in witness.seen] == ["CONNECT"]


@on_both_loops
async def test_empty_lines_before_a_request_are_ignored() -> None:
    async with serving(Witness()) as server, connect_raw(server) as client:
        for lead in (b"\r\n", b"\r\n\r\n", b""):
            client.send(lead + GET)
            assert (await client.reply()).status == 200


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@on_both_loops
async def test_a_request_survives_any_cut(size: int) -> None:
    request = POST + b"Transfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n"
    witness = Witness()
    async with (
        serving(witness, limits(header_timeout_s=5, body_gap_timeout_s=5)) as server,
        connect_raw(server) as client,
    ):
        await client.send_cut(request + GET, size)
        assert (await client.reply()).status == 200
        assert (await client.reply()).status == 200
    assert witness.bodies == [b"abc0123456789", b""]


@on_both_loops
async def test_the_refusal_names_the_path_so_that_its_protocol_can_word_it() -> None:
    async with serving(Witness()) as server, connect_raw(server) as client:
        client.send(b"POST /v1/messages?beta=true HTTP/1.1\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.headers[b"x-path"]) == (400, b"/v1/messages")
