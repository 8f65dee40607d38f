"""A client in memory, and what answers it from fake upstreams: a whole gateway, one turn, or only the writer."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import msgspec

from dragoman.config.settings import ModelRoute, Retry, ServerSettings
from dragoman.net.bodies import ByteBudget
from dragoman.net.client import HttpClient
from dragoman.net.headers import Header, Headers
from dragoman.net.socket_sink import SocketSink
from dragoman.proxy.call import Call
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.memories import make_memories
from dragoman.proxy.outcome import Outcome
from dragoman.proxy.prepared import Change, Prepared
from dragoman.proxy.replies.opening import DocumentReplies, Replies, StreamReplies
from dragoman.proxy.replies.passed import PassedStream
from dragoman.proxy.replies.translated import TranslatedStream
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.response_writer import DocumentWriter, ResponseWriter, StreamWriter
from dragoman.proxy.step import Ask, Completed, Interrupted, TurnEnd
from dragoman.proxy.steps.choose_routes import choose_routes
from dragoman.proxy.turn import CallContext, UpstreamTurn
from dragoman.state.lost_calls import LostCalls
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.loss import Ledger
from dragoman.upstreams.provider import Auth, Provider, ReplyRules
from dragoman.upstreams.routing import Route
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from narrowing import expect, present
from outgoing import open_http
from proxy.in_memory import (
    CHAT,
    CHAT_STREAM,
    MESSAGES,
    MESSAGES_STREAM,
    PLAIN_REPLIES,
    ClientReply,
    MemoryWire,
    make_call,
    make_document_writer,
    make_encoding,
    make_pooled,
    make_provider,
    make_request,
    make_sink,
    make_world,
    prepare_for,
    run,
)

# What a Chat upstream sends: a reply as a stream and as a document, and its errors.


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice: dict[str, object] = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % msgspec.json.encode({"id": "chatcmpl-1", "model": "vendor-m", "choices": [choice]})


BEGUN = chunk({"role": "assistant", "content": ""})  # no token yet
HALF = BEGUN + chunk({"content": "Half"}) + chunk({"content": " a"})
STOPPED = HALF + chunk({"content": " loaf"}) + chunk({}, "stop")
STREAM = STOPPED + b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"The engine is overloaded.","type":"server_error","code":503}}\n\n'
WHOLE = msgspec.json.encode(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "vendor-m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Half a loaf"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
)


def document(body: bytes, status: int = 200) -> Answer:
    return Answer(body, status=status, content_type="application/json")


def refusal(status: int, message: str = "no", **headers: str) -> Answer:
    body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}})
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(body, status=status, content_type="application/json", headers=fields)


# A whole gateway

AT_ONCE = Retry(attempts=2, base_s=0.0)
PATIENT = ServerSettings()


@dataclass
class GatewayRig:
    """A gateway over one or two upstreams that give these answers. `speaks` is the protocol of both."""

    answers: list[Answer]
    others: list[Answer] | FakeUpstream | None = None
    speaks: str = "chat"
    server: ServerSettings = PATIENT
    retry: Retry = AT_ONCE
    auth: Auth | None = None  # of both; None: without a key
    replies: ReplyRules = PLAIN_REPLIES
    credentials: int = 1

    async def __aenter__(self) -> "GatewayRig":
        self.one = FakeUpstream(self.answers)
        self.two = self.others if isinstance(self.others, FakeUpstream) else FakeUpstream(self.others or [])
        fakes = {"one": self.one} if self.others is None else {"one": self.one, "two": self.two}
        self._servers = ExitStack()
        self._client = HttpClient()
        providers = [self._provider(name, self._servers.enter_context(fake)) for name, fake in fakes.items()]
        models = (ModelRoute("m", tuple(f"{name}/m" for name in fakes)),)
        world = make_world(*providers, server=self.server, retry=self.retry, models=models)
        self.gateway = Gateway(world, make_memories(None))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        self._servers.close()

    def _provider(self, name: str, fake: FakeUpstream) -> Provider:
        provider = make_provider(
            name, (self.speaks,), url=fake.url, send=self._client.send, auth=self.auth, replies=self.replies
        )
        return provider if self.credentials == 1 else make_pooled(provider, self.credentials)

    def make_call(self, protocol: str, body: bytes, headers: Sequence[Header] = ()) -> "ClientCall":
        wire = MemoryWire()
        return ClientCall(
            self.gateway, wire, make_sink(wire), make_call(protocol, body, request=make_request(headers=headers))
        )


@dataclass
class ClientCall:
    gateway: Gateway
    wire: MemoryWire
    sink: SocketSink
    call: Call

    async def answer(self) -> ClientReply:
        await choose_routes(self.call, self.gateway.runtime)
        await self.gateway.answer(self.call, self.sink)
        assert self.wire.ended
        return self.wire.reply

    def outcome(self) -> Outcome:
        self.call.record.end()
        return self.call.record.outcome()


# One turn


def make_watch() -> ReplyMonitor:
    return ReplyMonitor(lambda: 0.0)


BODIES = {"chat": (CHAT, CHAT_STREAM), "messages": (MESSAGES, MESSAGES_STREAM)}


@dataclass
class Scene:
    """A client's request, its upstream, and the timeouts. `speaks` is the upstream's protocol."""

    client: str = "chat"
    stream: bool = True
    speaks: str = "chat"
    body: bytes = b""
    headers: Sequence[Header] = ()
    joins: bool = False
    server: ServerSettings = PATIENT
    budget: int = 1 << 30
    changes: tuple[Change, ...] = ()
    renew_after: Failure | None = None
    memory: LostCalls | None = None
    auth: Auth | None = None  # of every provider; None: without a key
    replies: ReplyRules = PLAIN_REPLIES


@dataclass
class Played:
    end: TurnEnd
    turn: UpstreamTurn
    writer: ResponseWriter
    wire: MemoryWire
    requests: list[ReceivedRequest]
    first_tokens: int  # how often one was noted

    @property
    def reply(self) -> ClientReply:
        return self.wire.reply


def play(scene: Scene, *answers: Answer) -> Played:
    """Run the turn against an upstream that gives these answers."""
    with FakeUpstream(list(answers)) as fake:
        return play_with(scene, fake)


def play_with(scene: Scene, fake: FakeUpstream) -> Played:
    async def send_request() -> Played:
        async with open_http() as client:
            return await run_turn(scene, fake, client)

    return run(send_request())


async def run_turn(scene: Scene, fake: FakeUpstream, client: HttpClient) -> Played:
    """Run the turn; a reply that it has written is ended as the loop ends it, so that the client can read it."""
    provider = make_provider(
        protocols=(scene.speaks,), url=fake.url, send=client.send, auth=scene.auth, replies=scene.replies
    )
    wire = MemoryWire()
    sink, request = make_sink(wire), make_request(headers=scene.headers, budget=ByteBudget(scene.budget))
    body = scene.body or BODIES[scene.client][scene.stream]
    call = make_call(scene.client, body, request=request)
    call.continues = scene.joins
    call.runtime = make_world(provider, server=scene.server)
    writer, replies = open_writer(sink, call, scene)
    noted: list[UpstreamTurn] = []
    around = CallContext(
        call,
        scene.memory or LostCalls(None),
        replies,
        asyncio.get_running_loop().time,
    )
    turn = UpstreamTurn(
        Ask(Route("up", "m"), provider, 1, scene.changes, None, None, scene.renew_after), around, noted.append
    )
    try:
        end = await turn.run()
        await finish(turn, writer, end)
        if isinstance(end, Completed):
            await turn.let_upstream_end()
        return Played(end, turn, writer, wire, fake.calls, len(noted))
    finally:
        turn.close()
        writer.close()


def open_writer(sink: SocketSink, call: Call, scene: Scene) -> tuple[ResponseWriter, Replies]:
    if call.stream:
        encoding = partial(make_encoding, call, joins=scene.joins)
        stream = StreamWriter(sink, call, encoding, scene.server.keep_alive_s)
        return stream, StreamReplies(call, stream, make_watch)
    document = make_document_writer(sink, call)
    return document, DocumentReplies(call, document, make_watch)


async def finish(turn: UpstreamTurn, writer: ResponseWriter, end: TurnEnd) -> None:
    if isinstance(end, Interrupted):
        await present(writer.open_stream).fail(end.failure)
    elif isinstance(end, Completed):
        await present(turn.reply).finish()


# The writer of a stream

NEVER_S, SOON_S = 3600.0, 0.02


class WriterRig:
    """A writer of a stream to a client in memory."""

    def __init__(self, protocol: str = "chat", body: bytes = CHAT_STREAM, keep_alive_s: float = NEVER_S) -> None:
        self.wire = MemoryWire()
        self.call = make_call(protocol, body, request=make_request())
        self.writer = StreamWriter(
            make_sink(self.wire), self.call, partial(make_encoding, self.call, joins=True), keep_alive_s
        )
        self.replies = StreamReplies(self.call, self.writer, make_watch)

    async def begin_passthrough(self, name: str = "up") -> Prepared:
        """Begin a turn whose bytes pass unchanged."""
        return await self._begin(name, self.call.protocol.name)

    async def begin_translation(self, name: str = "up") -> Prepared:
        """Begin a turn that is translated."""
        other = "messages" if self.call.protocol.name == "chat" else "chat"
        prepared = await self._begin(name, other)
        self.writer.encoding.begin_turn(Ledger(), None, make_watch())
        return prepared

    async def open_passed(self, headers: Sequence[Header] = ()) -> PassedStream:
        """Return the reply of a turn whose bytes pass unchanged."""
        await self.begin_passthrough()
        self.replies.begin_answer(200, Headers(list(headers)), is_stream=True)
        return expect(PassedStream, self.replies.open_stream(b""))

    async def open_translated(self) -> TranslatedStream:
        """Return the reply of a turn that is translated."""
        await self.begin_translation()
        self.replies.begin_answer(200, Headers([]), is_stream=True)
        return expect(TranslatedStream, self.replies.open_stream(b""))

    async def commit(self, prepared: Prepared, headers: Headers | None, data: bytes) -> None:
        """Begin the reply of a turn with these bytes."""
        self.writer.begin_reply(prepared, headers, prepared.why)
        await self.writer.send(data)

    async def _begin(self, name: str, protocol: str) -> Prepared:
        prepared = await prepare_for(self.call, make_provider(name, (protocol,)))
        self.replies.begin_turn(Ask(prepared.route, prepared.provider, 1), prepared)
        return prepared

    def encode(self, *events: Event) -> bytes:
        return encode_events(self.writer, *events)


def encode_events(writer: StreamWriter | DocumentWriter, *events: Event) -> bytes:
    given = list(events)
    for stage in writer.encoding.stages:
        given = [out for event in given for out in stage.feed(event)]
    return b"".join(piece for event in given for piece in writer.encoding.encoder.feed(event))
