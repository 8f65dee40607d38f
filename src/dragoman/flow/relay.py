"""An opened stream and the client's exchange come in; bytes go from one to the other until either ends."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from dragoman.config.settings import Server
from dragoman.flow.asking import Asking
from dragoman.flow.call import Call
from dragoman.flow.line import Translation
from dragoman.flow.mend import Mender
from dragoman.flow.open import Streaming, is_speaking
from dragoman.flow.rotation import learn_from_end
from dragoman.flow.sink import Sink
from dragoman.hub.failure import Failure, Kind
from dragoman.net.client import Lost, TimedOut
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.tasks import spawn
from dragoman.routing.resolve import Route

T = TypeVar("T")

# Worth a retry: there may be another gateway by now. Codex takes an overload for final.
STOPPING = Failure(Kind.SHUTDOWN, "The gateway is shutting down. Send the request again.")
LINGER_S = 1.0  # how long an upstream may take to end its body after its terminal event


class Relay:
    """One reply on its way: one read, at most one write."""

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        reply: Streaming,
        head_route: Route,  # whom the head of the reply names
        server: Server,
        mender: Mender,
        asking: Asking,
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._reply = reply
        self._server = server
        self._mender = mender
        self._asking = asking
        route = reply.prepared.route
        self._routes = [route] if route == head_route else [head_route, route]
        self._keep_alive = b"" if reply.prepared.passthrough else call.client.keep_alive
        self._clock = asyncio.get_running_loop().time
        self._wait = reply.wait  # for the next sign of life
        # How long the next bytes of a reply that is under way may take.
        self._lull_s = min(server.idle_timeout_s, server.keep_alive_s) if self._keep_alive else server.idle_timeout_s
        self._last: bytes | None = None  # what `_pass_on` leaves for the end

    async def run(self) -> None:
        """A slow reader holds the upstream back; a gone one cancels this task."""
        exchange = self._exchange
        try:
            last = await self._told()
            while (sink := self._reply.line.sink) is not None and sink.broken is not None:
                await exchange.send(last)
                last = await self._handed_on(sink, sink.broken)
            exchange.finish(last + self._reply.line.close(), self._trailers())
        except asyncio.CancelledError:
            if not exchange.gone:  # the gateway is stopping, the client is still there
                exchange.finish(self._given_up(STOPPING))
            raise
        else:
            await self._let_upstream_end()
        finally:
            self._reply.answer.close()

    async def _told(self) -> bytes:
        """Passes on what this upstream has to say, all but the last bytes, which it returns."""
        await self._exchange.send(self._reply.held)
        last = b"" if self._reply.ended else await self._pump()
        learn_from_end(self._reply)
        return last + await self._mended()

    async def _handed_on(self, sink: Sink, failure: Failure) -> bytes:
        """Another upstream goes on where this one broke off; where none does, the failure is told."""
        broken = self._reply
        broken.answer.close()
        if broken.line.has_stopped:  # its words are all there, and only the end of its stream is not
            return self._given_up(failure)
        heir = await self._while_kept_alive(self._asking.heir(broken, sink, failure))
        if heir is None:
            return self._given_up(failure)
        self._reply = heir
        if heir.prepared.route != self._routes[-1]:  # else it is another credential of the same target
            self._routes.append(heir.prepared.route)
        return await self._told()

    def _given_up(self, failure: Failure) -> bytes:
        line = self._reply.line
        if line.sink is not None:
            line.sink.seal()
        return line.fail(failure)

    def _trailers(self) -> list[Header]:
        """Who answered, where that was more than the one named in the head."""
        if len(self._routes) == 1:
            return []
        return [(b"x-dragoman-route", ", ".join(map(str, self._routes)).encode("ascii", "replace"))]

    async def _pump(self) -> bytes:
        """Passes on all but the last bytes, which it returns."""
        exchange, reply, line = self._exchange, self._reply, self._reply.line
        self._wait, self._last = reply.wait, None
        while True:
            try:
                if await reply.answer.pour(self._pass_on, self._patience()):
                    return line.drain()
            except TimedOut:
                if line.watch.ended:
                    return b""
                if self._clock() >= self._wait.deadline:
                    return line.drain() if line.is_whole else line.fail(self._silence())
                await exchange.send(self._keep_alive)
            except Lost as lost:
                if line.watch.ended:
                    return b""
                return line.drain() if line.is_whole else line.fail(_broken(reply, lost))
            else:
                if self._last is not None:
                    return self._last
                await exchange.writable()

    def _pass_on(self, chunk: bytes) -> float | None:
        """Called for each read of the upstream's socket, with no task in between; None: the last bytes, or too many."""
        line, wait, now = self._reply.line, self._wait, self._clock()
        watch = line.watch
        out = line.feed(chunk)
        if watch.ended:
            if isinstance(line, Translation) or now >= wait.deadline:
                self._last = out
                return None
            wait.deadline = min(wait.deadline, now + LINGER_S)  # what follows the terminal event passes too
        elif watch.substance or is_speaking(self._reply.prepared, watch, line.at_work):
            wait.deadline = now + self._server.idle_timeout_s
            return self._lull_s if not out or self._exchange.write(out) else None
        elif now >= wait.deadline:  # bytes without end, and none of them a token
            self._last = out + line.fail(self._silence())
            return None
        else:
            wait.extend(now, has_token=False)
        if out and not self._exchange.write(out):
            return None
        return self._patience()

    def _silence(self) -> Failure:
        prepared, line = self._reply.prepared, self._reply.line
        self._wait.has_token = is_speaking(prepared, line.watch, line.at_work)
        return self._wait.failure()

    def _patience(self) -> float:
        """How long the next bytes may take; shorter than the deadline where the client must be kept alive."""
        left = self._wait.left(self._clock())
        return min(left, self._server.keep_alive_s) if self._keep_alive else left

    async def _mended(self) -> bytes:
        """What completes a cut tool call, with the client kept alive while the upstream is asked for it."""
        line, reply = self._reply.line, self._reply
        if not isinstance(line, Translation) or line.hold is None or line.hold.held is None:
            return b""
        mending = self._mender.events(self._call, reply.prepared, line.hold, line.watch.usage)
        return line.push(await self._while_kept_alive(mending))

    async def _while_kept_alive(self, work: Coroutine[object, object, T]) -> T:
        task = spawn(work, name="keeping a client waiting")
        try:
            while not (await asyncio.wait((task,), timeout=self._server.keep_alive_s))[0]:
                await self._exchange.send(self._keep_alive)
            return task.result()
        finally:
            task.cancel()
            del task  # what it raised would hold this frame, and this frame the task

    async def _let_upstream_end(self) -> None:
        """Reads on to the end of the body, if it is near, so that the connection can be used again."""
        try:
            if self._reply.line.watch.failure is None:
                await self._reply.answer.chunk(LINGER_S)
        except (Lost, TimedOut):
            return


def _broken(reply: Streaming, lost: Lost) -> Failure:
    return Failure(Kind.LOST, f"The connection to {reply.prepared.provider.name} broke: {lost}")
