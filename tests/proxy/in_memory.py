"""Small real values for tests of single modules of the proxy: a client's connection in memory, calls, and providers."""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Config, Debug, Effort, Fetch, ModelRoute, Retry, ServerSettings, StoreSettings
from dragoman.net.bodies import ByteBudget
from dragoman.net.client import ConnectionLost, DialOptions, OutgoingRequest
from dragoman.net.headers import Header, Headers
from dragoman.net.http_request import HttpRequest
from dragoman.net.request_head import RequestHead
from dragoman.net.sink import ReplySink
from dragoman.net.socket_sink import SocketSink
from dragoman.proxy.call import Call
from dragoman.proxy.client_encoding import ClientEncoding, ReplyShape
from dragoman.proxy.prepare import prepare
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.response_writer import DocumentWriter
from dragoman.proxy.runtime import Runtime, TargetSettings
from dragoman.proxy.step import Ask
from dragoman.tenancy.keys import CLIENT, Access
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ReplyContext, Stage
from dragoman.translate.hub.profile import Profile
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.credentials.pool import Member, Pool
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.models import CachedCatalogue
from dragoman.upstreams.provider import (
    Account,
    Auth,
    Catalogue,
    Endpoint,
    IncomingResponse,
    Provider,
    ReplyRules,
    RequestRules,
    SendRequest,
    UnsignedRequest,
)
from dragoman.upstreams.routing import Route

NOW = 1_800_000_000.0
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
CHAT = b'{"model":"m","messages":[{"role":"user","content":"Go on."}]}'
CHAT_STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Go on."}]}'
MESSAGES = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Go on."}]}'
MESSAGES_STREAM = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go on."}]}'

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    """Run to the end; nothing in these tests may take longer than this, however busy the machine is."""

    async def run_bounded() -> T:
        async with asyncio.timeout(40):
            return await work

    return asyncio.run(run_bounded())


class MemoryWire:
    """A client's connection that keeps what is written; `blocked` stands for a client that reads too slowly."""

    def __init__(self) -> None:
        self.blocked = False
        self.writes: list[bytes] = []
        self.ended = False
        self.dropped = False

    @property
    def writer(self) -> "MemoryWire":
        return self

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes) -> bool:
        if data:
            self.writes.append(data)
        return True

    def must_close(self, sink: SocketSink) -> bool:
        return False

    def end_reply(self, sink: SocketSink) -> None:
        self.ended = True

    def drop(self, sink: SocketSink) -> None:
        self.dropped = True

    def take_over(self, head: bytes, receive: Callable[[bytes], None]) -> None:
        self.writes.append(head)

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    async def wait_writable(self) -> None:
        self.blocked = False

    @property
    def reply(self) -> "ClientReply":
        return read_reply(self.written)


@dataclass
class ClientReply:
    """What a client reads from the bytes on its connection."""

    status: int
    headers: Headers
    body: bytes
    complete: bool = True
    trailers: list[Header] = field(default_factory=list)


def read_reply(raw: bytes) -> ClientReply:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    reply = ClientReply(int(first.split(b" ")[1]), Headers([_field(line) for line in lines]), body)
    if reply.headers.get(b"transfer-encoding") == b"chunked":
        _read_chunks(reply)
    return reply


def _field(line: bytes) -> Header:
    name, _, value = line.partition(b":")
    return name, value.strip()


def _read_chunks(reply: ClientReply) -> None:
    raw, reply.body, reply.complete = reply.body, b"", False
    while found := re.match(rb"([0-9a-f]+)\r\n", raw):
        size, raw = int(found[1], 16), raw[found.end() :]
        if size == 0:
            assert raw.endswith(b"\r\n")
            reply.complete = True
            reply.trailers = [_field(line) for line in raw.split(b"\r\n") if line]
            return
        reply.body += raw[:size]
        raw = raw[size + 2 :]


def make_request(
    path: str = "/v1/chat/completions",
    headers: Sequence[Header] = (),
    query: str = "",
    budget: ByteBudget | None = None,
) -> HttpRequest:
    return HttpRequest(make_head(path, headers, query), None, budget or ByteBudget(sys.maxsize))


def make_sink(wire: MemoryWire) -> SocketSink:
    """Return the sink of a reply whose bytes, framing included, are kept in memory."""
    return SocketSink(wire, modern=True, keep_alive=True, _is_head=False)


def make_head(path: str, headers: Sequence[Header] = (), query: str = "") -> RequestHead:
    head = RequestHead()
    head.method = "POST"
    head.raw_path, head.path, head.query = path.encode(), unquote(path), query
    head.fields = list(headers)
    return head


class Sender(Struct, frozen=True):
    """Who sent a call. Its record has other values, since nothing that is sent may depend on them."""

    request_id: str = "req_1"
    key: str = ""
    tenant: str = "t"
    received_at: float = NOW
    access: Access = CLIENT


def make_call(
    protocol: str = "chat",
    body: bytes = CHAT,
    headers: Sequence[Header] = (),
    *,
    query: str = "",
    request: HttpRequest | None = None,
    key: str = "",
    tenant: str = "t",
) -> Call:
    request = request or make_request(PATHS[protocol], headers, query)
    record = RequestRecord("log_1", "of the log", request.headers)
    call = Call(PROTOCOLS[protocol], request, Sender(key=key, tenant=tenant), record)
    call.take_body(body)
    return call


URL = "http://127.0.0.1:9/v1"
ANY_MODEL, PLAIN_REQUESTS, PLAIN_REPLIES = Catalogue(), RequestRules(), ReplyRules()


async def send_nothing(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
    raise ConnectionLost("127.0.0.1:9: nothing listens in this test", sent=False, received=False)


def make_provider(
    name: str = "up",
    protocols: tuple[str, ...] = ("chat",),
    *,
    url: str = URL,
    send: SendRequest = send_nothing,
    key: bytes = b"",
    endpoint: Endpoint | None = None,
    auth: Auth | None = None,
    catalogue: Catalogue = ANY_MODEL,
    requests: RequestRules = PLAIN_REQUESTS,
    replies: ReplyRules = PLAIN_REPLIES,
) -> Provider:
    """Return a provider with one credential; a record given whole replaces the plain one."""

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        return ((b"authorization", b"Bearer " + key),) if key else ()

    return Provider(
        name,
        "openai-compatible",
        name,
        endpoint or Endpoint(url, protocols, send),
        auth or Auth(authorize),
        catalogue,
        requests,
        replies,
    )


async def authorize_nothing(request: UnsignedRequest) -> tuple[Header, ...]:
    return ()


def make_renewing(renew: Callable[[], Awaitable[bool]]) -> Auth:
    """Return how a provider without a key is authorized whose credential can be renewed."""
    return Auth(authorize_nothing, renew=renew)


def make_pooled(provider: Provider, size: int, clock: Callable[[], float] = lambda: NOW) -> Provider:
    """Return the provider with so many credentials."""
    pool = Pool(tuple(Member(f"id-{slot}", f"{slot + 1} of {size}") for slot in range(size)), clock)
    members = tuple(
        replace(provider, account=Account(pool=pool, cooldowns=pool, slot=slot, label=member.label))
        for slot, member in enumerate(pool.members)
    )
    return replace(members[0], members=members)


def make_resting(provider: Provider, clock: Callable[[], float] = lambda: NOW) -> Provider:
    """Return the provider with one credential of which it is known when it may be used again."""
    return replace(provider, account=Account(cooldowns=Pool((Member("", ""),), clock)))


UNKNOWN_MODEL = Profile()


def make_fitting(profile: Profile = UNKNOWN_MODEL, quirks: frozenset[str] = frozenset()) -> TargetSettings:
    return TargetSettings(PROTOCOLS, profile, {}, quirks, None)


async def prepare_for(call: Call, provider: Provider, model: str = "m") -> Prepared:
    return await prepare(call, Ask(Route(provider.name, model), provider, 1), make_fitting())


def make_encoding(call: Call, *, joins: bool = False) -> ClientEncoding:
    """Return the encoding of a streamed reply, with a clock that stands still and ids that are always the same."""
    client = call.client

    def make(ledger: Ledger) -> Stage[Event, bytes]:
        context = ReplyContext(call.request(), call.model, int(NOW), lambda prefix: prefix + "1", lambda: NOW)
        return client.encoder(context, ledger)

    return ClientEncoding(make, lambda trip: None, ReplyShape(client.serial_blocks, joins))


def make_document_writer(sink: ReplySink, call: Call) -> DocumentWriter:
    """Return the writer of a reply in one body."""

    def encode(events: Sequence[Event], ledger: Ledger) -> bytes:
        context = ReplyContext(call.request(), call.model, int(NOW), lambda prefix: prefix + "1", lambda: NOW)
        return call.client.encode_whole(events, context, ledger)

    return DocumentWriter(sink, call, lambda trip: None, encode)


def make_world(
    *providers: Provider,
    server: ServerSettings | None = None,
    retry: Retry | None = None,
    models: tuple[ModelRoute, ...] = (),
) -> Runtime:
    config = Config(
        server=server or ServerSettings(),
        retry=retry or Retry(),
        debug=Debug(),
        store=StoreSettings(),
        fetch=Fetch(),
        effort=Effort(),
        providers={},
        models=models,
        client_key=None,
        source=None,
        origins={},
        warnings=(),
    )
    named = {provider.name: provider for provider in providers}
    catalogues = {name: CachedCatalogue(provider, time.monotonic) for name, provider in named.items()}
    return Runtime(config, named, catalogues, PROTOCOLS, None, {}, LearnedQuirks())
