"""An exchange comes in; it is checked, keyed, routed to what its path means, and answered in its own protocol."""

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import UTC, datetime
from functools import partial

import msgspec

from dragoman import __version__
from dragoman.accounts.keys import KeyId, Keyring, presented_keys
from dragoman.flow.call import Call
from dragoman.flow.count import count_tokens
from dragoman.flow.gateway import Gateway
from dragoman.flow.headers import id_headers
from dragoman.flow.offload import run_off_loop
from dragoman.flow.reading import no_room
from dragoman.flow.refusal import refuse_exchange
from dragoman.flow.trail import Trail
from dragoman.flow.world import UNLISTED_WAIT_S
from dragoman.framing.jsonsize import exceeds_values
from dragoman.http.auth_backoff import AuthBackoff
from dragoman.http.models import Listing
from dragoman.http.paths import COUNTS, GEMINI, INFERENCE, plain_path, protocol_of
from dragoman.http.safety import Doorkeeper
from dragoman.http.usage import PATHS as USAGE
from dragoman.http.usage import UsageDesk
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.hub.ports import Client, Protocol
from dragoman.net import current
from dragoman.net.budget import BudgetSpent
from dragoman.net.encoding import decompress
from dragoman.net.exchange import Exchange
from dragoman.net.faults import BadEncoding, TooLarge
from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.refusals import BodyTooLarge, ClientGone
from dragoman.net.refusals import Refused as Unreadable
from dragoman.net.tasks import place_of
from dragoman.observers.metrics_text import CONTENT_TYPE

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
BUSY_S = 1.0  # when to try again where there is more to do than we take on

Answerer = Callable[[Exchange, str, str], Awaitable[None]]
AnswerCall = Callable[[Exchange, Call], Awaitable[None]]


class Site:
    """The handler of every exchange."""

    def __init__(
        self,
        gateway: Gateway,
        keyring: Keyring,
        doorkeeper: Doorkeeper,
        scrape: Callable[[], Awaitable[bytes]],
        usage: UsageDesk | None = None,
    ) -> None:
        self._gateway = gateway
        self._keyring = keyring
        self._scrape = scrape
        self._usage = usage
        self.doorkeeper = doorkeeper
        self.auth_backoff = AuthBackoff()
        self.ready = True
        self.under_way = 0
        # Request ids are unique without asking the system for chance each time: drawn once, then counted.
        self._drawn = secrets.token_hex(8)
        self._counted = itertools.count(1)
        self._open_paths: dict[str, Answerer] = {
            "/": self._root,
            "/health": self._health,
            "/healthz": self._health,
            "/ready": self._ready,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/api/hello": self._hello,
        }

    async def __call__(self, exchange: Exchange) -> None:
        request_id = self._request_id(exchange.headers)
        current.request_id.set(request_id)
        path = plain_path(exchange.path)
        try:
            await self._dispatch(exchange, path, request_id)
        except Refused as refused:
            self._gateway.refused += 1
            if not refused.observed:
                log.info("%s refused: %s", path, refused.failure.kind.value)
            self._refuse(exchange, path, refused, request_id)
        except ClientGone:
            raise
        except Unreadable as unreadable:
            self._refuse(exchange, path, Refused(_unreadable(unreadable)), request_id)
        except Exception as bug:
            log.error("%s failed: %s", path, place_of(bug))
            if exchange.started:
                exchange.abort()
                return
            message = f"The gateway failed on this request; its log names the place under {request_id}."
            self._refuse(exchange, path, Refused(Failure(Kind.BUG, message)), request_id)
        finally:
            if exchange.listener is not None:
                exchange.listener.over()

    def _refuse(self, exchange: Exchange, path: str, refused: Refused, request_id: str) -> None:
        refuse_exchange(exchange, self._client(path, exchange.headers), refused, request_id)

    async def _dispatch(self, exchange: Exchange, path: str, request_id: str) -> None:
        objection = self.doorkeeper.objection(exchange.headers)
        if objection is not None:
            status, failure = objection
            body = self._client(path, exchange.headers).render(failure, request_id).body
            exchange.respond(status, [JSON, _id(request_id)], body)
            return
        answerer = self._open_paths.get(path)
        if answerer is not None and exchange.method in ("GET", "HEAD"):
            await answerer(exchange, path, request_id)
            return
        key = self._key(exchange)
        if key is None:
            had_key = bool(presented_keys(exchange.headers, exchange.query))
            await self.auth_backoff.reject(exchange.address, path, had_key=had_key)
            refused = Refused(_wrong_key(exchange))
            refused.observed = True  # by the backoff, which logs many of them in one line
            raise refused
        if path in INFERENCE and exchange.method == "POST":
            await self._infer(exchange, self._trail(exchange, INFERENCE[path], request_id, key))
        elif path in USAGE and exchange.method == "GET" and self._usage is not None:
            Context().run(self._gateway.audience.tell)  # what is told is not about this request
            exchange.respond(200, [JSON, _id(request_id)], await self._usage.answer(exchange.query, key))
        else:
            await self._keyed(exchange, path, request_id, key)

    def _key(self, exchange: Exchange) -> KeyId | None:
        """Whose key opens the door; None where none does."""
        for presented in presented_keys(exchange.headers, exchange.query):
            key = self._keyring.check(presented)
            if key is not None:
                exchange.mark_authenticated()
                return key
        return None

    def _trail(self, exchange: Exchange, protocol: str, request_id: str, key: KeyId) -> Trail:
        return Trail(request_id, protocol, exchange.headers, key, self._keyring.tenant(key))

    async def _keyed(self, exchange: Exchange, path: str, request_id: str, key: KeyId) -> None:
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if path in COUNTS and method == "POST":
            await self._count(exchange, self._trail(exchange, COUNTS[path], request_id, key))
        elif path == "/models" and method == "GET":
            await self._models(exchange, request_id)
        elif path.startswith("/models/") and method == "GET":
            await self._model(exchange, path.removeprefix("/models/"), request_id)
        elif path == "/responses" and method == "GET":
            _no_websocket(exchange, request_id)
        elif GEMINI.fullmatch(path):
            raise Refused(Failure(Kind.NOT_FOUND, "Gemini's protocol is not in this version yet."))
        elif allowed := self._methods(path):
            self._not_allowed(exchange, path, allowed, request_id)
        elif path.startswith("/responses/"):
            message = "This gateway keeps no responses: server state is not available, send the whole input."
            raise Refused(Failure(Kind.NOT_FOUND, message))
        else:
            raise Refused(Failure(Kind.NOT_FOUND, f"There is nothing at {exchange.method} {exchange.path}."))

    async def _infer(self, exchange: Exchange, trail: Trail) -> None:
        self.under_way += 1
        try:
            await self._observed(exchange, trail, self._gateway.answer, self._gateway.audience.hear)
        except Refused as refused:
            refused.observed = True
            raise
        finally:
            self.under_way -= 1

    async def _count(self, exchange: Exchange, trail: Trail) -> None:
        """It is captured like any other, but uses nothing: no observer hears of it."""
        await self._observed(exchange, trail, partial(count_tokens, self._gateway), Trail.end)

    async def _observed(
        self, exchange: Exchange, trail: Trail, answer: AnswerCall, ended: Callable[[Trail], None]
    ) -> None:
        recording = self._gateway.capturing.begin(exchange, trail.began, self._gateway.world.config.debug)
        trail.recording = recording
        try:
            self._check_room()
            await answer(exchange, await self._call(exchange, trail))
        except BaseException as fault:
            is_cancelled = isinstance(fault, asyncio.CancelledError)
            if is_cancelled and not exchange.gone:
                trail.ended_by_shutdown()
            else:
                trail.ended_by(fault)
            if recording is not None and is_cancelled:
                recording.interrupted(exchange.gone)
            raise
        finally:
            ended(trail)
            if recording is not None:
                recording.concluded(trail.outcome(), trail.ledger)

    def _check_room(self) -> None:
        if self.under_way > self._gateway.world.config.server.max_requests:
            message = "The gateway has as many requests under way as it takes (server.max_requests)."
            raise Refused(Failure(Kind.OVERLOADED, message, retry_after=BUSY_S))

    def _methods(self, path: str) -> str | None:
        """What may be done at a path; None where there is nothing."""
        if path in INFERENCE or path in COUNTS:
            return "POST"
        return "GET, HEAD" if path in self._open_paths or path.startswith("/models") else None

    def _not_allowed(self, exchange: Exchange, path: str, allowed: str, request_id: str) -> None:
        client = self._client(path, exchange.headers)
        message = f"{exchange.method} is not possible on {exchange.path}, only {allowed}."
        body = client.render(Failure(Kind.BAD_REQUEST, message, code="method_not_allowed"), request_id).body
        head = [JSON, (b"allow", allowed.encode()), *id_headers(client, request_id, [])]
        exchange.respond(405, head, body)

    async def _call(self, exchange: Exchange, trail: Trail) -> Call:
        body = await exchange.body()
        encoding = exchange.headers.get(b"content-encoding")
        if encoding:
            # However small it is packed, it may unpack to the limit.
            limit = self._gateway.world.config.server.max_body_bytes
            body = await run_off_loop(limit, partial(_unpack, encoding, body, limit))
            exchange.buffered.hold(len(body))
        if trail.recording is not None:
            trail.recording.asked_for(body)
        most = self._gateway.world.config.server.max_body_values
        if await run_off_loop(len(body), partial(exceeds_values, body, most)):
            message = f"The body holds more than {most} JSON values (server.max_body_values): shorten the conversation."
            raise Refused(Failure(Kind.TOO_LARGE, message))
        parse = None
        if trail.asked == "chat" and b'"input"' in body and _is_responses_body(body):
            responses = self._protocol("responses").client
            assert responses is not None
            parse = responses.parse
        return Call(self._protocol(trail.asked), body, exchange, trail, parse)

    async def _models(self, exchange: Exchange, request_id: str) -> None:
        await self._settle_catalogues()
        listing = Listing(self._gateway.world)
        exchange.respond(200, [JSON, _id(request_id)], listing.render(exchange.headers, exchange.query))

    async def _settle_catalogues(self) -> None:
        """Wait for the first model lists, but not long for one that hangs."""
        catalogues = self._gateway.world.catalogues.values()
        await asyncio.gather(*(catalogue.settled(UNLISTED_WAIT_S) for catalogue in catalogues))

    async def _model(self, exchange: Exchange, name: str, request_id: str) -> None:
        await self._settle_catalogues()
        body = Listing(self._gateway.world).render_one(name, exchange.headers)
        if body is None:
            raise Refused(Failure(Kind.NOT_FOUND, f"The model {name!r} does not exist here.", code="model_not_found"))
        exchange.respond(200, [JSON, _id(request_id)], body)

    async def _root(self, exchange: Exchange, path: str, request_id: str) -> None:
        body = {"status": "ok", "message": "dragoman is running", "version": __version__}
        exchange.respond(200, [JSON, _id(request_id)], msgspec.json.encode(body))

    async def _hello(self, exchange: Exchange, path: str, request_id: str) -> None:
        exchange.respond(200, [JSON, _id(request_id)], b"{}")

    async def _health(self, exchange: Exchange, path: str, request_id: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body = {"status": "healthy", "timestamp": now, "version": __version__}
        exchange.respond(200, [JSON, _id(request_id)], msgspec.json.encode(body))

    async def _ready(self, exchange: Exchange, path: str, request_id: str) -> None:
        status, word = (200, "ready") if self.ready else (503, "draining")
        exchange.respond(status, [JSON, _id(request_id)], msgspec.json.encode({"status": word}))

    async def _metrics(self, exchange: Exchange, path: str, request_id: str) -> None:
        exchange.respond(200, [(b"content-type", CONTENT_TYPE), _id(request_id)], await self._scrape())

    def _request_id(self, headers: Headers) -> str:
        given = headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.fullmatch(given):
            return given.decode()
        return f"req_{self._drawn}{next(self._counted):08x}"

    def _protocol(self, name: str) -> Protocol:
        return self._gateway.world.protocols[name]

    def _client(self, path: str, headers: Headers) -> Client:
        """The protocol in which a request to this path expects its errors."""
        name = protocol_of(path)
        if name is None:
            name = "messages" if headers.get(b"anthropic-version") is not None else "chat"
        client = self._protocol(name).client
        assert client is not None
        return client


class _Shape(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")


_shape = msgspec.json.Decoder(_Shape)


def _is_responses_body(body: bytes) -> bool:
    """Whether a body on the Chat path has the shape of Responses: Cursor posts such, and awaits Chat's answers."""
    try:
        shape = _shape.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return bytes(shape.messages) == b"null" != bytes(shape.input)


def _unpack(encoding: bytes, body: bytes, limit: int) -> bytes:
    try:
        return decompress(encoding, body, limit)
    except TooLarge:
        message = f"The decompressed body exceeds the limit of {limit} bytes (server.max_body_mb)."
        raise Refused(Failure(Kind.TOO_LARGE, message)) from None
    except BadEncoding as bad:
        raise Refused(Failure(Kind.BAD_REQUEST, f"The body cannot be decompressed: {bad}")) from None


def _id(request_id: str) -> Header:
    return b"x-request-id", request_id.encode()


def _wrong_key(exchange: Exchange) -> Failure:
    if not presented_keys(exchange.headers, exchange.query):
        return Failure(Kind.AUTH, "No API key was given: send it as a bearer token or in x-api-key.")
    return Failure(Kind.AUTH, "The API key is not valid here; `dragoman keys create` makes one.")


def _unreadable(unreadable: Unreadable) -> Failure:
    if isinstance(unreadable, BudgetSpent):
        return no_room()
    if isinstance(unreadable, BodyTooLarge):
        return Failure(Kind.TOO_LARGE, f"{unreadable.message} (server.max_body_mb)")
    kind = Kind.REQUEST_TIMEOUT if unreadable.status == 408 else Kind.BAD_REQUEST
    return Failure(kind, unreadable.message)


def _no_websocket(exchange: Exchange, request_id: str) -> None:
    """426 makes Codex fall back to HTTP at once; any other status costs it seconds."""
    message = "WebSockets are not served here: POST /v1/responses."
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "upgrade_required"}}
    exchange.respond(426, [JSON, _id(request_id)], msgspec.json.encode(body))
