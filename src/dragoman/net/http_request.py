"""One HTTP request: its head and its body, with the bytes that are held for it."""

from collections.abc import Sequence
from typing import Protocol

from dragoman.net.bodies import BudgetShare, ByteBudget, ChunkedBody, IncomingBody, SizedBody
from dragoman.net.errors import ClientDisconnected, RequestRejected
from dragoman.net.headers import Header, Headers
from dragoman.net.request_head import RequestHead


class BodySource(Protocol):
    """What a request that came over a connection needs of it."""

    address: str  # of the peer, without its port; empty for a local socket

    async def wait_for_body(self, request: "HttpRequest", *, whole: bool) -> None: ...

    authenticated: bool  # a request of this connection carried a valid key

    def mark_authenticated(self, key: str) -> None: ...


class HttpRequest:
    """A request of a client, or one that the gateway makes of itself, which has no source and has its body at once."""

    __slots__ = (
        "_body",
        "_source",
        "body_open",
        "buffered",
        "expects_continue",
        "headers",
        "incoming",
        "key_digests",
        "method",
        "path",
        "query",
        "raw_path",
        "refusal",
    )

    def __init__(self, head: RequestHead, source: BodySource | None, budget: ByteBudget) -> None:
        self.method = head.method
        self.path = head.path
        self.raw_path = head.raw_path
        self.query = head.query
        self.headers = Headers(head.fields, head.lasting, head.by_name)
        self.expects_continue = head.expects_continue
        self.key_digests = head.key_digests  # filled by who checks the keys
        self.incoming: IncomingBody | None = None
        self.body_open = False  # more bytes of the body are expected
        self.refusal: RequestRejected | None = None
        self.buffered = BudgetShare(budget)  # bodies of the request and of its reply
        self._source = source
        self._body = b""

    def expect_body(self, head: RequestHead, max_bytes: int) -> None:
        """Prepare for the body that the head announces, or refuse one that is longer than `max_bytes`."""
        if head.tunnel:
            return
        if head.chunked:
            self.incoming = ChunkedBody(max_bytes, self.buffered)
            self.body_open = True
        elif head.length:
            self.body_open = True
            try:
                self.incoming = SizedBody(head.length, max_bytes, self.buffered)
            except RequestRejected as refusal:
                self.refuse_body(refusal)

    def refuse_body(self, refusal: RequestRejected) -> None:
        self.refusal = refusal.copy()  # its traceback would refer to the request and to the bytes read
        self.incoming = None

    @property
    def arrived_body(self) -> bytes | None:
        """The whole body if it has arrived, as most do with their head; None: it must be waited for."""
        return None if self.body_open or self.refusal is not None else self._body

    async def body(self) -> bytes:
        """Return the whole body; raises BodyTooLarge, BodyTimeout, BodyMalformed or ClientDisconnected."""
        if self.body_open and self.refusal is None and self._source is not None:
            await self._source.wait_for_body(self, whole=True)
        if self.refusal is not None:
            raise self.refusal.copy()
        if self.body_open:
            raise ClientDisconnected
        return self._body

    async def next_piece(self) -> bytes:
        """Return the next bytes of the body as soon as there are any, b"" at its end; raises as `body` does.

        Between two calls, the client is held back.
        """
        while True:
            if self.refusal is not None:
                raise self.refusal.copy()
            if self.incoming is not None:
                piece = self.incoming.take()
            else:
                piece, self._body = self._body, b""
            if piece or not self.body_open or self._source is None:
                return piece
            await self._source.wait_for_body(self, whole=False)

    @property
    def address(self) -> str:
        """Return the address of the peer: that of the proxy if there is one in front of the gateway."""
        return "" if self._source is None else self._source.address

    def mark_authenticated(self, key: str) -> None:
        """Note that a request of this connection had a valid key: if connections run out, others are closed first.

        `key` is the id of the key: one that has very many connections does not keep all of them.
        """
        if self._source is not None and not self._source.authenticated:
            self._source.mark_authenticated(key)

    def take_short_body(self, content: bytes) -> None:
        """Take a body that came whole with its head, as most do; it is too short to count in the budget."""
        self.buffered.held = len(content)
        self._body = content

    def set_body(self, content: bytes) -> None:
        self._body = content
        self.incoming = None
        self.body_open = False


def make_post(path: str, headers: Sequence[Header], budget: ByteBudget, query: str = "") -> HttpRequest:
    """Return a POST that the gateway makes of itself, without a body."""
    head = RequestHead(fields=list(headers), method="POST", path=path, raw_path=path.encode(), query=query)
    return HttpRequest(head, None, budget)
