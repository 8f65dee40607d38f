"""The workers of one gateway, as one of them sees the others: pass a request on to one, or ask all of them.

Each worker listens on a Unix socket in a directory that only this user can enter, and accepts there what carries the
secret of the gateway. The parent process makes both before it forks, so the secret is never written anywhere.
"""

import asyncio
import hmac
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.bodies import BodyBounds, ByteBudget, read_and_close, read_chunks
from dragoman.net.client import ConnectionLost, DialOptions, HttpClient, HttpResponse, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import Header, Headers, names_in_connection
from dragoman.net.http_request import HttpRequest
from dragoman.net.limits import ConnectionLimits
from dragoman.net.server import RenderError, Server
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.proxy.reply_bounds import charge_bytes
from dragoman.server.routes import ForwardedSender, RoutedRequest
from dragoman.tenancy.keys import KeyId
from dragoman.translate.hub.failure import Failure, Kind, RequestError, describe_cause

log = logging.getLogger(__name__)

Question = dict[str, str]
Answer = Callable[[Question], Awaitable[bytes]]
AnswerForwarded = Callable[[HttpRequest, ReplySink, ForwardedSender], Awaitable[None]]

OWN = b"x-dragoman-worker-"  # the header fields between workers; a client's fields of such names are left out
SECRET, KEY, VIA_CONSOLE, REQUEST_ID = OWN + b"secret", OWN + b"key", OWN + b"via-console", OWN + b"request-id"
CARRIED = OWN + b"field-"  # before the name of a client's field that our HTTP client would replace
REPLACED_FIELDS = (b"host", b"accept-encoding")
MORE_HEADER_BYTES = 16 * 1024  # than a client may send: for our own fields
MORE_HEADER_FIELDS = 20
RESTART_S = 3.0  # how long a worker that was replaced is waited for
RETRY_S = 0.05
ANSWER_S = 2.0  # how long an answer is waited for
MAX_ANSWER_BYTES = 16 * 1024 * 1024
NO_LIMIT_S = 7 * 24 * 3600.0  # a worker that dies closes its sockets, and a living one observes the time-outs itself
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~?"


class GroupMember(Struct, frozen=True):
    """One worker's place among the workers of a gateway."""

    number: int  # from 0
    count: int
    directory: str  # of the sockets
    secret: bytes

    def socket_path(self, worker: int) -> str:
        return f"{self.directory}/{worker}"

    def __repr__(self) -> str:
        return f"GroupMember({self.number} of {self.count})"


class WorkerGroup:
    """The other workers of this worker's gateway. It exists only if there are several."""

    def __init__(
        self,
        member: GroupMember,
        answer_forwarded: AnswerForwarded,
        render_error: RenderError,
        budget: ByteBudget,
    ) -> None:
        self.number = member.number
        self.count = member.count
        self._member = member
        self._answer_forwarded = answer_forwarded
        self._answers: dict[str, Answer] = {}
        self._client = HttpClient()
        limits = ConnectionLimits()
        limits = replace(
            limits,
            max_body_bytes=sys.maxsize,  # the worker that read the request has checked it
            max_header_bytes=limits.max_header_bytes + MORE_HEADER_BYTES,
            max_header_fields=limits.max_header_fields + MORE_HEADER_FIELDS,
        )
        self.server = Server(self._receive, limits, render_error, budget)

    def start(self) -> None:
        """Accept requests of the other workers."""
        self.server.start_local(self._member.socket_path(self.number))

    async def stop(self, grace_s: float) -> None:
        """Let requests of other workers end, then close all connections and remove the socket."""
        await self.server.drain(grace_s)
        await self.server.close()
        await self._client.close()
        with suppress(OSError):
            os.unlink(self._member.socket_path(self.number))

    def answer(self, name: str, answer: Answer) -> None:
        """Answer questions of this name, which other workers ask, with what `answer` returns."""
        self._answers[name] = answer

    async def ask(self, worker: int, name: str, question: Question, within_s: float = ANSWER_S) -> bytes | None:
        """Return the answer of another worker; None if it did not answer in time or could not."""
        headers = ((SECRET, self._member.secret), (b"content-type", b"application/json"))
        out = OutgoingRequest("POST", f"http://worker-{worker}/{name}", headers, msgspec.json.encode(question))
        try:
            async with asyncio.timeout(within_s):
                response = await self._client.send(out, self._dial(worker), head_timeout_s=within_s)
                body = await read_and_close(response, MAX_ANSWER_BYTES, within_s)
        except (ConnectionLost, UpstreamTimeout, TimeoutError) as error:
            log.debug("worker %d did not answer %s: %s", worker, name, describe_cause(error))
            return None
        return body if response.status == 200 else None

    async def ask_all(self, name: str, question: Question) -> dict[int, bytes]:
        """Return the answers of all other workers that answer in time."""
        others = [worker for worker in range(self.count) if worker != self.number]
        answers = await asyncio.gather(*(self.ask(worker, name, question) for worker in others))
        return {worker: answer for worker, answer in zip(others, answers, strict=True) if answer is not None}

    async def forward(self, request: RoutedRequest, worker: int) -> None:
        """Pass a request on to another worker and its response back, byte for byte, at the pace of the client.

        The other worker does not check it again, and logs and counts it. Raises RequestError if it cannot be reached.
        """
        sink = request.sink
        body = _ForwardedBody(sink, await request.http.body())
        out = _describe_request(request, body, self._member.secret)
        try:
            response = await self._send(worker, out)
        except ConnectionLost as lost:
            raise _unreachable(worker) from lost
        try:
            await _relay(response, request.http, sink)
        except ConnectionLost as lost:
            log.warning("worker %d ended in the middle of a response: %s", worker, lost)
            if sink.phase < SinkPhase.SENT:
                raise _unreachable(worker) from lost
            sink.abort()
        finally:
            response.close()

    async def _send(self, worker: int, out: OutgoingRequest) -> HttpResponse:
        """Send a request over a connection of its own; wait for a worker that is being replaced."""
        dial = replace(self._dial(worker), keeps_connections=False)
        clock = asyncio.get_running_loop().time
        until = clock() + RESTART_S
        while True:
            try:
                return await self._client.send(out, dial, head_timeout_s=NO_LIMIT_S)
            except ConnectionLost as lost:
                if lost.sent or clock() > until:
                    raise
            await asyncio.sleep(RETRY_S)

    def _dial(self, worker: int) -> DialOptions:
        return DialOptions(socket_path=self._member.socket_path(worker))

    async def _receive(self, request: HttpRequest, sink: ReplySink) -> None:
        """Answer another worker's question, or a client's request that it passes on."""
        given = request.headers.get(SECRET)
        if given is None or not hmac.compare_digest(given, self._member.secret):
            sink.respond(403, [], b"")
            return
        request.mark_authenticated("")
        key = request.headers.get(KEY)
        if key is None:
            sink.allow_leaving()
            await self._answer_question(request, sink)
            return
        request_id = (request.headers.get(REQUEST_ID) or b"").decode("latin-1")
        sender = ForwardedSender(KeyId(key.decode("latin-1")), request.headers.get(VIA_CONSOLE) is not None, request_id)
        # The fields that the client sent.
        kept = ((name, value) for name, value in request.headers if name not in REPLACED_FIELDS)
        restored = ((name.removeprefix(CARRIED), value) for name, value in kept)
        request.headers = Headers([(name, value) for name, value in restored if not name.startswith(OWN)])
        await self._answer_forwarded(request, sink, sender)

    async def _answer_question(self, request: HttpRequest, sink: ReplySink) -> None:
        answer = self._answers.get(request.path.removeprefix("/"))
        if answer is None:
            sink.respond(404, [], b"")
            return
        sink.respond(200, [], await answer(msgspec.json.decode(await request.body(), type=Question)))


class _ForwardedBody:
    """The body of a request that is passed on.

    Once the other worker has all of it, a client that leaves ends the connection to that worker, which decides what
    becomes of the request.
    """

    def __init__(self, sink: ReplySink, body: bytes) -> None:
        self._sink = sink
        self._body = body

    @property
    def length(self) -> int:
        return len(self._body)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        yield self._body
        self._sink.allow_leaving()  # it is sent


def _describe_request(request: RoutedRequest, body: _ForwardedBody, secret: bytes) -> OutgoingRequest:
    """Return a client's request as it is sent to another worker."""
    http = request.http
    own = [(SECRET, secret), (KEY, request.key.encode("latin-1")), (REQUEST_ID, request.request_id.encode())]
    if request.via_console:
        own.append((VIA_CONSOLE, b"1"))
    hop = names_in_connection(http.headers)
    fields: list[Header] = []
    for name, value in http.headers:
        if name in REPLACED_FIELDS:
            fields.append((CARRIED + name, value))
        elif not name.startswith(OWN) and name not in hop:
            fields.append((name, value))
    target = quote(http.raw_path, safe=_PATH_CHARACTERS)
    if http.query:
        target += "?" + quote(http.query, safe=_PATH_CHARACTERS, encoding="latin-1")
    return OutgoingRequest(http.method, f"http://worker{target}", (*own, *fields), upload=body)


async def _relay(response: HttpResponse, request: HttpRequest, sink: ReplySink) -> None:
    """Pass a response on; a whole one counts in `server.max_buffered_mb`. Raises RequestError or ConnectionLost."""
    headers: Sequence[Header] = list(response.headers)
    if b"content-length" in response.headers:
        hold = partial(charge_bytes, request.buffered)
        body = await read_chunks(response, BodyBounds(sys.maxsize, NO_LIMIT_S), "the other worker", hold)
        sink.respond(response.status, headers, body)
        return

    def write(data: bytes) -> float | None:
        return NO_LIMIT_S if sink.write(data) else None

    sink.begin(response.status, headers)
    while not await response.stream_to(write, NO_LIMIT_S):
        await sink.wait_writable()
    sink.end()


def _unreachable(worker: int) -> RequestError:
    message = f"Worker {worker} of the gateway, which has this request's run, ended. Retry in a second."
    return RequestError(Failure(Kind.OVERLOADED, message, retry_after=1.0))
