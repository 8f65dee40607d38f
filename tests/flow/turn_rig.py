"""One upstream turn against a fake upstream on a real socket, for a client in memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.accounts.lost_calls import LostCalls
from dragoman.config.settings import Server
from dragoman.flow.prepare import Change
from dragoman.flow.response_writer import ResponseWriter, StreamWriter
from dragoman.flow.step import Ask, Completed, Interrupted, TurnEnd
from dragoman.flow.turn import CallContext, Turn
from dragoman.hub.failure import Failure
from dragoman.net.bodies import ByteBudget
from dragoman.net.client import HttpClient
from dragoman.net.headers import Header
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.providers.provider import Auth, ReplyRules
from dragoman.routing import Route
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from flow.in_memory import (
    CHAT,
    CHAT_STREAM,
    MESSAGES,
    MESSAGES_STREAM,
    ClientReply,
    MemoryWire,
    make_call,
    make_encoding,
    make_exchange,
    make_provider,
    make_whole_writer,
    make_world,
    run,
)

BODIES = {
    ("chat", False): CHAT,
    ("chat", True): CHAT_STREAM,
    ("messages", False): MESSAGES,
    ("messages", True): MESSAGES_STREAM,
}


PATIENT = Server()


PLAIN = ReplyRules()


@dataclass
class Scene:
    """A client's request, its upstream, and the timeouts. `speaks` is the upstream's protocol."""

    client: str = "chat"
    stream: bool = True
    speaks: str = "chat"
    body: bytes = b""
    headers: Sequence[Header] = ()
    joins: bool = False
    server: Server = PATIENT
    budget: int = 1 << 30
    changes: tuple[Change, ...] = ()
    renew_after: Failure | None = None
    memory: LostCalls | None = None
    auth: Auth | None = None  # of every provider; None: without a key
    replies: ReplyRules = PLAIN


@dataclass
class Played:
    end: TurnEnd
    turn: Turn
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
        client = HttpClient()
        try:
            return await run_turn(scene, fake, client)
        finally:
            await client.close()

    return run(send_request())


async def run_turn(scene: Scene, fake: FakeUpstream, client: HttpClient) -> Played:
    """Run the turn; a reply that it has written is ended as the loop ends it, so that the client can read it."""
    provider = make_provider(
        protocols=(scene.speaks,), url=fake.url, send=client.send, auth=scene.auth, replies=scene.replies
    )
    wire = MemoryWire()
    exchange = make_exchange(wire, headers=scene.headers, budget=ByteBudget(scene.budget))
    body = scene.body or BODIES[scene.client, scene.stream]
    call = make_call(scene.client, body, exchange=exchange)
    call.continues = scene.joins
    writer: ResponseWriter = make_whole_writer(exchange, call)
    if call.stream:
        writer = StreamWriter(exchange, call, make_encoding(call, joins=scene.joins), scene.server.keep_alive_s)
    noted: list[Turn] = []
    around = CallContext(
        call,
        make_world(provider, server=scene.server),
        scene.memory or LostCalls(None),
        writer,
        lambda: ReplyMonitor(lambda: 0.0),
        noted.append,
        asyncio.get_running_loop().time,
    )
    turn = Turn(Ask(Route("up", "m"), provider, 1, scene.changes, None, None, scene.renew_after), around)
    try:
        end = await turn.run()
        await finish(turn, writer, end)
        if isinstance(end, Completed):
            await turn.let_upstream_end()
        return Played(end, turn, writer, wire, fake.calls, len(noted))
    finally:
        turn.close()
        writer.close()


async def finish(turn: Turn, writer: ResponseWriter, end: TurnEnd) -> None:
    if isinstance(end, Interrupted):
        await writer.fail(end.failure)
    elif isinstance(end, Completed):
        if turn.pipe is not None:
            writer.keep_for_end(turn.pipe.finish())
        await writer.finish()
