"""An opened stream and the client's exchange come in; bytes go from one to the other until either ends."""

import asyncio

from dragoman.config.settings import Server
from dragoman.flow.call import Call
from dragoman.flow.open import Streaming
from dragoman.hub.failure import Failure, Kind
from dragoman.net.client import Lost, TimedOut
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header

LINGER_S = 1.0  # how long an upstream may take to end its body after its terminal event


async def relay(exchange: Exchange, call: Call, reply: Streaming, head: list[Header], server: Server) -> None:
    """One read, at most one write; a slow reader holds the upstream back, a gone one cancels this task."""
    exchange.start(200, head)
    try:
        await exchange.send(reply.held)
        if not reply.ended:
            await _pump(exchange, call, reply, server)
        exchange.finish()
    except asyncio.CancelledError:
        if not exchange.gone:  # the gateway is stopping, the client is still there
            stopping = Failure(Kind.OVERLOADED, "The gateway is shutting down.")
            await exchange.send(reply.line.fail(stopping))
            exchange.finish()
        raise
    finally:
        reply.answer.close()


async def _pump(exchange: Exchange, call: Call, reply: Streaming, server: Server) -> None:
    clock = asyncio.get_running_loop().time
    answer, line, deadline = reply.answer, reply.line, reply.deadline
    watch = line.watch
    keep_alive = b"" if reply.prepared.passthrough else call.client.keep_alive
    patience = server.keep_alive_s if keep_alive else server.idle_timeout_s
    while True:
        try:
            chunk = await answer.chunk(min(patience, max(0.001, deadline - clock())))
        except TimedOut:
            if watch.ended:
                return
            if clock() >= deadline:
                await exchange.send(line.fail(_silent(reply, watch.substance)))
                return
            await exchange.send(keep_alive)
            continue
        except Lost as lost:
            if not watch.ended:
                failure = Failure(Kind.LOST, f"The connection to {reply.prepared.provider.name} broke: {lost}")
                await exchange.send(line.fail(failure))
            return
        if not chunk:
            await exchange.send(line.finish())
            return
        out = line.feed(chunk)
        if out:
            await exchange.send(out)
        if watch.ended:
            deadline = clock() + LINGER_S
        elif watch.substance:
            deadline = clock() + server.idle_timeout_s


def _silent(reply: Streaming, spoke: bool) -> Failure:
    setting = "idle_timeout_s" if spoke else "first_token_timeout_s"
    name = reply.prepared.provider.name
    return Failure(Kind.TIMEOUT, f"{name} fell silent; server.{setting} sets how long to wait.")
