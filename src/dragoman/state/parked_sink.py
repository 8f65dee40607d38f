"""The sink of a reply that outlives its client."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from dragoman.net.errors import ClientDisconnected, ResponseOrderError
from dragoman.net.headers import Header
from dragoman.net.sink import DetachedSink, ReplySink, SinkPhase
from dragoman.state.parked_run import ParkedRun


class ParkedSink(DetachedSink):
    """A tee: a reply goes to its run, and to the run's first client as long as that is there.

    It never waits for a client that has left. A listener of the client's sink, such as a capture, gets the whole reply
    in any case.
    """

    def __init__(self, run: ParkedRun, client: ReplySink, record_growth: Callable[[ParkedRun, int], None]) -> None:
        super().__init__()
        self._run = run
        self._client = client
        self._record_growth = record_growth

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self._is_over:
            return
        if self.phase >= SinkPhase.SENT:
            raise ResponseOrderError("a reply was already sent")
        self.phase = SinkPhase.ENDED
        self._keep_head(status, headers)
        self._keep(body)
        headers = [*headers, *self._run.own_headers]
        if not self._client.reader_gone:
            self._client.respond(status, headers, body)
        elif self._client.listener is not None:
            self._client.listener.on_head(status, headers)
            self._client.listener.on_body(body)

    def write(self, data: bytes) -> bool:
        if self.phase is not SinkPhase.SENT or self.reader_gone:
            if self._is_over:
                return False
            self._check_begun()
            self.phase = SinkPhase.SENT
        return self._take_body(data)

    def end(self, last: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        if self._is_over:
            return
        self._check_begun()
        self.phase = SinkPhase.ENDED
        self._keep(last)
        if not self._client.reader_gone:
            self._client.end(last, trailers)
        elif self._client.listener is not None:
            self._client.listener.on_body(last)

    async def wait_writable(self) -> None:
        await super().wait_writable()
        with suppress(ClientDisconnected):  # the run goes on without it
            await self._client.wait_writable()

    def abort(self) -> None:
        super().abort()
        self._client.abort()

    def _take_head(self, status: int, headers: Sequence[Header]) -> None:
        self._keep_head(status, headers)
        headers = [*headers, *self._run.own_headers]
        if not self._client.reader_gone:
            self._client.begin(status, headers)
        elif self._client.listener is not None:
            self._client.listener.on_head(status, headers)

    def _take_body(self, data: bytes) -> bool:
        self._keep(data)
        client = self._client
        if not client.reader_gone:
            return client.write(data)
        if client.listener is not None:
            client.listener.on_body(data)
        return True

    def _keep_head(self, status: int, headers: Sequence[Header]) -> None:
        before = self._run.size
        self._run.begin(status, headers)
        self._record_growth(self._run, self._run.size - before)

    def _keep(self, data: bytes) -> None:
        before = self._run.size
        self._run.add(data)
        self._record_growth(self._run, self._run.size - before)
