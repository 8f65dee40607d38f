"""A gateway over one or two upstreams on real sockets, with clients in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.accounts.lost_calls import LostCalls
from dragoman.config.settings import ModelRoute, Retry, Server
from dragoman.flow.call import Call
from dragoman.flow.gateway import Gateway
from dragoman.hub.outcome import Outcome
from dragoman.net.client import HttpClient
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.providers.provider import Auth, Provider, ReplyRules
from fakes.upstream import FakeUpstream
from flow.in_memory import (
    ClientReply,
    MemoryWire,
    make_call,
    make_exchange,
    make_pooled,
    make_provider,
    make_world,
)

AT_ONCE = Retry(attempts=2, base_s=0.0)


PLAIN = ReplyRules()


@dataclass
class Rig:
    """A gateway over one or two upstreams on real sockets, with clients in memory."""

    fakes: dict[str, FakeUpstream]
    speaks: str = "chat"
    server: Server = field(default_factory=Server)
    retry: Retry = AT_ONCE
    auth: Auth | None = None  # of every provider; None: without a key
    replies: ReplyRules = PLAIN
    credentials: int = 1

    async def __aenter__(self) -> "Rig":
        self.client = HttpClient()
        providers = [self._provider(name, fake) for name, fake in self.fakes.items()]
        targets = tuple(f"{name}/m" for name in self.fakes)
        world = make_world(*providers, server=self.server, retry=self.retry, models=(ModelRoute("m", targets),))
        self.memory = LostCalls(None)
        self.gateway = Gateway(world, self.memory)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def _provider(self, name: str, fake: FakeUpstream) -> Provider:
        provider = make_provider(
            name, (self.speaks,), url=fake.url, send=self.client.send, auth=self.auth, replies=self.replies
        )
        return provider if self.credentials == 1 else make_pooled(provider, self.credentials)

    def make_call(self, protocol: str, body: bytes, headers: Sequence[Header] = ()) -> "ClientCall":
        wire = MemoryWire()
        exchange = make_exchange(wire, headers=headers)
        return ClientCall(self.gateway, wire, exchange, make_call(protocol, body, exchange=exchange))


@dataclass
class ClientCall:
    gateway: Gateway
    wire: MemoryWire
    exchange: Exchange
    call: Call

    async def answer(self) -> ClientReply:
        await self.gateway.answer(self.exchange, self.call)
        assert self.wire.ended
        return self.wire.reply

    def outcome(self) -> Outcome:
        self.call.record.end()
        return self.call.record.outcome()
