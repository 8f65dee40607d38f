"""Small requests to a vendor's services: sign-in, renewal, model lists and plans, by the clock of its servers."""

import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from dragoman.net.bodies import read_and_close
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    OutgoingRequest,
    SendRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.net.headers import JSON, Header
from dragoman.translate.framing.jsonread import JSON_ERRORS, parse_or
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.credentials.credential import CredentialError

TIMEOUT_S = 15.0
MAX_BYTES = 8 * 1024 * 1024
NOISE_S = 30.0  # a Date header is in whole seconds and arrives late: a smaller difference is not a skew

T = TypeVar("T")

FORM: Header = (b"content-type", b"application/x-www-form-urlencoded")


class ServerClock:
    """The servers' time: ours, corrected by their Date headers."""

    __slots__ = ("_clock", "_skew")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._skew = 0.0

    def now(self) -> float:
        return self._clock() + self._skew

    def observe_date(self, date: bytes | None) -> None:
        if date is None:
            return
        from email.utils import parsedate_to_datetime  # 2 MB, only for vendors whose clock matters

        try:
            skew = parsedate_to_datetime(date.decode("latin-1")).timestamp() - self._clock()
        except ValueError:
            return
        self._skew = skew if abs(skew) > NOISE_S else 0.0


class _ErrorBody(Struct):
    error: object = None
    code: object = None
    type: object = msgspec.field(default=None, name="__type")


def observe_responses(
    send: SendRequest, clock: ServerClock, observe: Callable[[IncomingResponse], None]
) -> SendRequest:
    """Return `send`, with the clock updated and `observe` called by every response."""

    async def send_and_observe(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        response = await send(out, dial, head_timeout_s=head_timeout_s)
        clock.observe_date(response.headers.get(b"date"))
        observe(response)
        return response

    return send_and_observe


class ServiceResponse(Struct, frozen=True):
    status: int
    body: bytes

    def parse(self, kind: type[T]) -> T | None:
        """Return the body as a value of that type; None if it is not one."""
        return parse_or(self.body, kind, None)

    def parse_account(self, kind: type[T], service: str) -> T:
        """Return the body of an account's service as a value of that type. Raises RequestError."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except JSON_ERRORS as error:
            raise RequestError(Failure(Kind.UPSTREAM, f"cannot parse {service} response: {error}")) from error

    @property
    def error_code(self) -> str:
        """The error code, such as `invalid_grant`, from any of the places where issuers put it; else the status."""
        body = self.parse(_ErrorBody) or _ErrorBody()
        nested = body.error.get("code") if isinstance(body.error, dict) else body.error
        words = (word for word in (nested, body.code, body.type) if isinstance(word, str) and word)
        return next((word.rpartition("#")[2][:64] for word in words), f"HTTP {self.status}")

    def __repr__(self) -> str:
        return f"ServiceResponse({self.status}, {len(self.body)} bytes)"  # bodies contain tokens


class ServiceClient(Struct, frozen=True):
    """Sends requests with the gateway's headers; the clock is corrected by every response."""

    send: SendRequest
    dial: DialOptions
    clock: ServerClock
    headers: tuple[Header, ...]

    async def request(
        self, method: str, url: str, headers: tuple[Header, ...] = (), body: bytes = b""
    ) -> ServiceResponse:
        """Return the response. Raises CredentialError, of a kind that may be retried, if there is none."""
        accept = (b"accept", b"application/json")
        out = OutgoingRequest(method, url, (*self.headers, accept, *headers), body)
        try:
            answer = await self.send(out, self.dial, head_timeout_s=TIMEOUT_S)
            self.clock.observe_date(answer.headers.get(b"date"))
            return ServiceResponse(answer.status, await read_and_close(answer, MAX_BYTES, TIMEOUT_S))
        except UpstreamTimeout as late:
            raise CredentialError(str(late), Kind.TIMEOUT) from late
        except (ConnectionLost, SizeLimitExceeded) as lost:
            raise CredentialError(str(lost), Kind.LOST) from lost

    async def post(self, url: str, value: object, headers: tuple[Header, ...] = ()) -> ServiceResponse:
        return await self.request("POST", url, (JSON, *headers), msgspec.json.encode(value))

    async def post_form(self, url: str, fields: dict[str, str], headers: tuple[Header, ...] = ()) -> ServiceResponse:
        return await self.request("POST", url, (FORM, *headers), urlencode(fields).encode())
