"""Send requests to upstreams over pooled connections, and read their responses at the consumer's pace."""

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import cached_property, lru_cache, partial
from typing import Protocol, Self

import msgspec

from dragoman.config.proxies import Proxy
from dragoman.net.bodies import BodyBounds, BodySink, read_chunks, stream_chunks
from dragoman.net.dial import DialOptions, ParsedUrl, apply_environment_proxies, connect, may_hold_secret, parse_url
from dragoman.net.encoding import StreamDecompressor, make_decoders
from dragoman.net.errors import ConnectionLost, InvalidEncoding, InvalidResponse, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.headers import Header, Headers
from dragoman.net.outbound import DONE, UpstreamConnection
from dragoman.net.pool import ConnectionPool

__all__ = [
    "ConnectionLost",
    "DialOptions",
    "HttpClient",
    "HttpResponse",
    "InvalidResponse",
    "OutgoingRequest",
    "SizeLimitExceeded",
    "UpstreamTimeout",
]

DIRECT = DialOptions()
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})

_Origin = tuple[str, str, int, DialOptions]

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# Framing and hop-by-hop fields are set by this module; those of a caller are left out.
_OURS = frozenset(
    b"accept-encoding connection content-length expect host keep-alive proxy-authorization proxy-connection"
    b" te trailer transfer-encoding upgrade".split()
)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class Upload(Protocol):
    """A request body that is sent in pieces, and can be sent more than once."""

    @property
    def length(self) -> int: ...
    def pieces(self) -> AsyncGenerator[bytes, None]: ...


class OutgoingRequest(msgspec.Struct, frozen=True):
    """A request to an upstream."""

    method: str
    url: str
    headers: tuple[Header, ...]
    body: bytes = b""
    upload: Upload | None = None  # instead of the body

    @property
    def length(self) -> int:
        return len(self.body) if self.upload is None else self.upload.length

    def __repr__(self) -> str:
        # Headers, query and body hold secrets.
        return f"OutgoingRequest({self.method} {parse_url(self.url)!r}, {self.length} bytes)"


class JoinedFields(tuple[Header, ...]):
    """Fields of a request that may be sent more than once: what is made of them is freed with them."""

    @cached_property
    def lines(self) -> bytes:
        return _format_fields(self)


def join_fields(own: tuple[Header, ...], others: tuple[Header, ...]) -> JoinedFields:
    """Return our own fields, and those of the others that have another name."""
    names = dict(own)
    return JoinedFields((*own, *[field for field in others if field[0] not in names]))


class LatestFields:
    """Remembers the fields of the latest request: clients send the same again and again.

    Not more than that: a credential that was replaced is forgotten with the next request.
    """

    __slots__ = ("_joined", "_others", "_own")

    def __init__(self) -> None:
        self._own: tuple[Header, ...] = ()
        self._others: tuple[Header, ...] = ()
        self._joined = JoinedFields()

    def join(self, own: tuple[Header, ...], others: tuple[Header, ...]) -> JoinedFields:
        """Return what `join_fields` returns. The others must not contain a client's secret."""
        if own != self._own or others != self._others:
            self._own, self._others, self._joined = own, others, join_fields(own, others)
        return self._joined


class IncomingResponse(Protocol):
    """An upstream's response whose head has arrived, whatever carries it."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    def take_whole(self) -> bytes | None: ...
    async def chunk(self, timeout_s: float) -> bytes: ...
    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool: ...
    async def read(self, limit: int, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


class SendRequest(Protocol):
    async def __call__(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse: ...


class HttpResponse:
    """A response whose head has arrived; its body is read in chunks. It must be closed in every case."""

    __slots__ = ("_connection", "_ended", "_pool", "_unpacking", "headers", "status")

    def __init__(self, connection: UpstreamConnection, pool: ConnectionPool) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._connection: UpstreamConnection | None = connection
        self._pool = pool
        self._ended = False
        self._unpacking: StreamDecompressor | None = None
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None:
            self._begin_unpacking(encoding)

    def take_whole(self) -> bytes | None:
        """Return the whole body if it arrived together with the head; None if it must be read with `chunk`."""
        connection = self._connection
        if connection is None or connection.phase is not DONE or self._unpacking is not None:
            return None
        body = connection.take()
        self._ended = True
        self.close()
        return body

    def chunk(self, timeout_s: float) -> Coroutine[object, object, bytes]:
        """Return the next chunk of the body, b"" at its end; raises ConnectionLost or UpstreamTimeout."""
        if self._unpacking is None:
            return self._raw_chunk(timeout_s)
        return self._unpacked_chunk(self._unpacking, timeout_s)

    def stream_to(self, sink: BodySink, timeout_s: float) -> Coroutine[object, object, bool]:
        """Pass chunks to the sink as they arrive. Return True at the end of the body, False if the sink paused it."""
        if self._unpacking is None:
            return self._copy_raw(sink, timeout_s)
        return stream_chunks(self.chunk, sink, timeout_s)

    def read(self, limit: int, timeout_s: float) -> Coroutine[object, object, bytes]:
        """Return the whole body. `timeout_s` is for all of it; SizeLimitExceeded is raised beyond `limit`."""
        return read_chunks(self, BodyBounds(limit, timeout_s), self._pool.where)

    def close(self) -> None:
        """Return the connection to the pool if the response is complete, else abort it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)

    async def _raw_chunk(self, timeout_s: float) -> bytes:
        connection = self._connection
        if connection is None:
            return self._read_past_end()
        data = connection.take()
        while not data and connection.phase is not DONE:
            await connection.wait(timeout_s)
            data = connection.take()
        if connection.phase is DONE:
            self._ended = True
            self.close()
        return data

    async def _copy_raw(self, sink: BodySink, timeout_s: float) -> bool:
        connection = self._connection
        if connection is None:
            return not self._read_past_end()
        while True:
            piece = connection.take()
            if piece:
                next_timeout_s = sink(piece)
                if next_timeout_s is None:
                    return False
                timeout_s = next_timeout_s
            elif connection.phase is DONE:
                self._ended = True
                self.close()
                return True
            elif await connection.stream_to(sink, timeout_s):
                return False

    def _read_past_end(self) -> bytes:
        if self._ended:
            return b""
        raise ConnectionLost(f"{self._pool.where}: closed by us", sent=True, received=True)

    async def _unpacked_chunk(self, unpacking: StreamDecompressor, timeout_s: float) -> bytes:
        if unpacking.has_more:
            await asyncio.sleep(0)  # it came with the chunk before: let other tasks run
        try:
            while not (data := unpacking.take()):
                packed = await self._raw_chunk(timeout_s)
                if not packed:
                    unpacking.finish()
                    return b""
                unpacking.put(packed)
            return data
        except (InvalidEncoding, SizeLimitExceeded) as error:
            self.close()
            raise self._make_invalid_response(error) from error

    def _begin_unpacking(self, encoding: bytes) -> None:
        """Decompress the body: some servers compress it although we do not accept any encoding."""
        try:
            chain = make_decoders(encoding)
        except InvalidEncoding as error:
            self.close()
            raise self._make_invalid_response(error) from error
        if chain:
            self._unpacking = StreamDecompressor(chain)
        dropped = (b"content-encoding", b"content-length")
        self.headers = Headers([field for field in self.headers if field[0] not in dropped])

    def _make_invalid_response(self, error: Exception) -> InvalidResponse:
        return InvalidResponse(f"{self._pool.where}: {error}", sent=True, received=True)


class HttpClient:
    """Sends requests over pooled connections, one pool per origin and dial options."""

    def __init__(self, *, max_per_host: int = 4096, idle_s: float = 55.0) -> None:
        self._max_per_host = max_per_host
        self._idle_s = idle_s
        self._pools: dict[_Origin, ConnectionPool] = {}
        self._closed = False

    async def send(self, out: OutgoingRequest, dial: DialOptions = DIRECT, *, head_timeout_s: float) -> HttpResponse:
        """Send a request and return once the head of its response has arrived.

        A pooled connection may have been closed by the server at the same moment. If it ends without a byte of the
        response, a request that changes nothing upstream is sent once more, on a new connection. Any other request
        may already be processed or billed: the caller, who counts attempts, decides whether it is sent again, so
        ConnectionLost is raised, marked as `stale`.
        """
        target = parse_url(out.url)
        if dial.environment_proxies is not None:
            dial = apply_environment_proxies(dial, target.scheme, target.host, target.port)
        head = write_head(out, target, None if dial.proxy is None else dial.forwarder(target.scheme))
        pool = self._find_pool(target, dial)
        connection = pool.take_idle() or await pool.acquire(dial.connect_timeout_s)
        while True:
            try:
                connection.begin(out.method, head, out.body)
                if out.upload is None or await _upload(connection, out.upload, head_timeout_s):
                    await connection.wait(head_timeout_s)
                connection.check_head()
            except ConnectionLost as lost:
                connection.abort()
                if lost.received or not connection.used or self._closed:
                    raise
                pool.drop_idle()
                if lost.sent and out.method not in _REPEATABLE:
                    raise lost.as_stale() from lost
                pool = self._find_pool(target, dial)
                connection = await pool.acquire_fresh(dial.connect_timeout_s)
            except BaseException:
                connection.abort()
                raise
            else:
                return HttpResponse(connection, pool)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Abort all connections; requests in progress raise ConnectionLost."""
        self._closed = True
        await asyncio.gather(*(pool.close() for pool in tuple(self._pools.values())))

    def _find_pool(self, target: ParsedUrl, dial: DialOptions) -> ConnectionPool:
        if self._closed:
            raise ConnectionLost(f"{target.where}: the client is closed", sent=False, received=False)
        origin = (target.scheme, target.host, target.port, dial)
        pool = self._pools.get(origin)
        if pool is None:
            self._pools[origin] = pool = ConnectionPool(
                target.where,
                partial(connect, target, dial),
                limit=self._max_per_host,
                idle_s=self._idle_s if dial.keeps_connections else 0.0,
                on_empty=lambda: self._forget(origin),
            )
        return pool

    def _forget(self, origin: _Origin) -> None:
        self._pools.pop(origin, None)


async def _upload(connection: UpstreamConnection, upload: Upload, timeout_s: float) -> bool:
    """Send the body; return False if the server has answered, or broken the connection, before it took all of it."""
    pieces = upload.pieces()
    async with aclosing(pieces):
        async for piece in pieces:
            if not await connection.send_more(piece, timeout_s):
                return False
    return True


def write_head(out: OutgoingRequest, target: ParsedUrl, proxy: Proxy | None) -> bytes:
    """Return the head of a request; raises ValueError, without the value, if a field contains a line break or NUL."""
    fields = out.headers.lines if isinstance(out.headers, JoinedFields) else _format_fields(out.headers)
    size = len(out.body) if out.upload is None else out.upload.length
    length = b"content-length: %d\r\n" % size if size or out.method in _WITH_BODY else b""
    return b"".join((_encode_request_line(out.method, target, proxy), fields, length, b"\r\n"))


def _format_fields(headers: tuple[Header, ...]) -> bytes:
    if not headers:
        return b""
    names: tuple[bytes, ...]
    values: tuple[bytes, ...]
    names, values = zip(*headers)  # noqa: B905 - pairs are of one length; to have that checked takes longer
    template, lines = _make_template(names)
    fields = template % values
    if fields.count(b"\n") != lines or fields.count(b"\r") != lines or b"\0" in fields:
        raise ValueError(f"the value of header {_find_invalid_header(headers)} holds a line break or NUL")
    return fields


@lru_cache(maxsize=256)
def _make_template(names: tuple[bytes, ...]) -> tuple[bytes, int]:
    """Return the lines of these fields with `%b` for the values, which may be secret, and how many lines they are."""
    ours = [*map(_is_ours, names)]
    # `%.0b` takes a value and writes nothing of it.
    lines = [b"%.0b" if own else name.replace(b"%", b"%%") + b": %b\r\n" for own, name in zip(ours, names, strict=True)]
    return b"".join(lines), len(names) - sum(ours)


def _find_invalid_header(headers: tuple[Header, ...]) -> str:
    return next(name.decode("latin-1") for name, value in headers if any(bad in value for bad in (b"\r", b"\n", b"\0")))


def _encode_request_line(method: str, target: ParsedUrl, proxy: Proxy | None) -> bytes:
    """Return the request line and the fields that depend only on the URL and the proxy."""
    write = _write_request_line if "?" in target.path and may_hold_secret(target.path) else _find_request_line
    if proxy is None:
        return write(method, target, False)
    forwarded = proxy.forwards(target.scheme)
    head, secret = write(method, target, forwarded), proxy.authorization() if forwarded else None
    return head if secret is None else head + b"proxy-authorization: " + secret + b"\r\n"


def _write_request_line(method: str, target: ParsedUrl, forwarded: bool) -> bytes:
    verb = method.encode()
    if not _TOKEN.fullmatch(verb):
        raise ValueError("the method is not a token")
    path = f"{target.scheme}://{target.authority}{target.path}" if forwarded else target.path
    return b"%b %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (
        verb,
        path.encode("ascii"),
        target.authority.encode("ascii"),
    )


_find_request_line = lru_cache(maxsize=512)(_write_request_line)


@lru_cache(maxsize=1024)
def _is_ours(name: bytes) -> bool:
    """Return whether this module sets the field itself; raises ValueError if the name is invalid."""
    if not _TOKEN.fullmatch(name) or name.lower() != name:
        raise ValueError("a header name is not a lower-case token")
    return name in _OURS
