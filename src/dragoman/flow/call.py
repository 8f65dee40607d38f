"""One client's request as the flow sees it, read no further than it must be."""

from collections.abc import Callable
from functools import cached_property
from uuid import uuid4

import msgspec
from msgspec import Struct

from dragoman.accounts.keys import ENVIRONMENT_KEY
from dragoman.flow.offload import run_off_loop
from dragoman.flow.trail import Trail
from dragoman.framing.jsonread import read_json
from dragoman.hub.failure import Failure, Kind, Refused, refuse
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Client, Protocol
from dragoman.hub.request import Request
from dragoman.net.exchange import Exchange

Parse = Callable[[bytes, Ledger], Request]


class _Head(Struct):
    model: object = None
    stream: object = None


_head = msgspec.json.Decoder(_Head)

MAX_MODEL_BYTES = 1024  # names stay in logs, metrics, caches and usage rows


class Call:
    """A request body with what routing needs of it; the whole is parsed once, and only to be translated."""

    def __init__(
        self, protocol: Protocol, body: bytes, exchange: Exchange, trail: Trail, parse: Parse | None = None
    ) -> None:
        assert protocol.client is not None
        self.protocol = protocol
        self.client: Client = protocol.client
        self.continues = False  # another upstream may go on where the first breaks off
        self.retold = parse is not None  # the body is written in another protocol than the answer is awaited in
        self._parse = parse or protocol.client.parse
        self._parsed: tuple[Request, Ledger] | None = None
        self.body = body
        self.headers = headers = exchange.headers
        self.query = exchange.query
        self.buffered = exchange.buffered
        self._held = exchange.buffered.held  # by the request alone
        self.id = trail.id
        self.trail = trail
        self.strict = headers.get(b"x-dragoman-strict") == b"1"
        self.explain = headers.get(b"x-dragoman-explain") == b"1"
        self.model, self.stream = _read_head(body)
        trail.wanted, trail.stream, trail.body = self.model, self.stream, body

    @property
    def tenant(self) -> str:
        """Whose state this request may see and change: the client key's own."""
        return self.trail.tenant

    @property
    def is_owner(self) -> bool:
        """Whether the gateway's owner asks, with the key of the environment."""
        return self.trail.key == ENVIRONMENT_KEY

    @cached_property
    def uuid(self) -> str:
        """Unlike `id`, which a client may choose, nobody else's."""
        return str(uuid4())

    async def read(self) -> None:
        """Parse the body, off the event loop where it is large; raises Refused."""
        if self._parsed is None:
            self._parsed = await run_off_loop(len(self.body), self._read_body)

    def release_reply(self) -> None:
        """Count nothing any more of what was read of a reply that nobody will see."""
        self.buffered.release_to(self._held)

    def request(self) -> Request:
        return self._content()[0]

    def ledger(self) -> Ledger:
        """A fresh ledger that starts with what parsing lost."""
        return self._content()[1].copy()

    def _content(self) -> tuple[Request, Ledger]:
        if self._parsed is None:
            self._parsed = self._read_body()
        return self._parsed

    def _read_body(self) -> tuple[Request, Ledger]:
        ledger = Ledger()
        return self._parse(self.body, ledger), ledger


def _read_head(body: bytes) -> tuple[str, bool]:
    try:
        head = read_json(_head, body)
    except RecursionError:
        raise Refused(Failure(Kind.BAD_REQUEST, "The body is nested too deeply.")) from None
    except msgspec.ValidationError:
        raise Refused(Failure(Kind.BAD_REQUEST, "The body must be a JSON object.")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Refused(Failure(Kind.BAD_REQUEST, f"The body is not valid JSON: {problem}.")) from None
    if head.model is None:
        raise refuse("/model", "model is missing: name the model to use.")
    if not isinstance(head.model, str) or not head.model:
        raise refuse("/model", f"model must be a non-empty string, got {_shown(head.model)}.")
    if len(head.model) > MAX_MODEL_BYTES // 4 and len(head.model.encode(errors="surrogatepass")) > MAX_MODEL_BYTES:
        got = f"{len(head.model)} characters that begin with {_shown(head.model[:60])}"
        raise refuse("/model", f"model must be at most {MAX_MODEL_BYTES} bytes long, got {got}.")
    if head.stream is not None and not isinstance(head.stream, bool):
        raise refuse("/stream", f"stream must be true or false, got {_shown(head.stream)}.")
    return head.model, bool(head.stream)


def _shown(value: object) -> str:
    return msgspec.json.encode(value)[:80].decode(errors="replace")
