"""A provider: one configured upstream, described by small records.

Each vendor's folder builds these records from its section of the configuration. The records contain values and
functions of the vendor; nothing is looked up by the vendor's name anywhere else. The functions at the end
interpret failures that several vendors report alike, and correct the bytes of a response.
"""

import asyncio
import math
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from msgspec import Struct, field

from dragoman.net.bodies import ResponseInChunks
from dragoman.net.client import DialOptions, LatestFields, OutgoingRequest, Upload, join_fields
from dragoman.net.client import IncomingResponse as IncomingResponse
from dragoman.net.client import SendRequest as SendRequest
from dragoman.net.dial import parse_url
from dragoman.net.headers import JSON, Header, Headers
from dragoman.server_tools.web_search import AccountSearch
from dragoman.translate.framing.known_secrets import LatestForms, SecretForms, list_secrets
from dragoman.translate.hub.caching import CacheMode
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ListedModel, Stage
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Request
from dragoman.upstreams.account_state import AccountLimits, Finding, Quota, read_exhausted_until
from dragoman.upstreams.credentials.pool import CredentialChooser, Pool

Pass = Callable[[Request, Ledger], Request]


class UnsignedRequest(Struct, frozen=True):
    """A request that lacks only its credential: what `Auth.authorize` sees of it, and may sign.

    It is final: what is changed afterwards is authorized again. The HTTP client adds `host`, as the URL has it, and
    `content-length`, and writes `accept-encoding` itself. A form that is sent on while it arrives has no `body` but an
    `upload`, of which a signer can include the length, not the bytes.
    """

    protocol: str  # the upstream's
    method: str
    url: str
    own: tuple[Header, ...]  # of the gateway and the provider
    others: tuple[Header, ...] = ()  # of the client; those that have the name of one of ours are not sent
    body: bytes = b""
    upload: Upload | None = None  # instead of the body

    @property
    def headers(self) -> tuple[Header, ...]:
        """All headers, the credential apart."""
        return join_fields(self.own, self.others)

    def add_credentials(self, credentials: tuple[Header, ...]) -> OutgoingRequest:
        """Return the request with the headers that `authorize` has returned for it."""
        fields = join_fields((*self.own, *credentials), self.others)
        return OutgoingRequest(self.method, self.url, fields, self.body, self.upload)

    def __repr__(self) -> str:
        # Headers, query and body hold secrets.
        return f"UnsignedRequest({self.method} {parse_url(self.url)!r})"


Authorize = Callable[[UnsignedRequest], Awaitable[tuple[Header, ...]]]  # returns headers with the credential


class ModelInfo(ListedModel, frozen=True):
    """What an upstream's list says of a model."""

    trained_window: int | None = None  # the most that the model can have; its server may run it with less


class Adjustment(Struct, frozen=True):
    """How to send a refused request again: unchanged, or without what the upstream objected to."""

    name: str
    change: Callable[[Request, Ledger], Request] | None = None
    drops_reasoning: bool = False  # of this request, and the same values of later ones in the session
    of_reasoning: bool = False  # only a request with opaque reasoning can have been refused for this


def make_uuid() -> str:
    """Return a UUID of version 4. It only has to be unique, so the system's randomness is not needed."""
    bits = random.getrandbits(128)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[bits & 3]}{text[17:20]}-{text[20:]}"


class Attempt(Struct, frozen=True):
    """Which upstream request of a call this is."""

    id: str  # a UUID, the same for every attempt of one call
    number: int = 1
    tenant: str = ""  # of the client's key; ids derived from a request's content must differ between tenants
    session: str | None = None  # the key of the session, where one was derived
    forwarded: tuple[Header, ...] = ()  # what is passed on of the client's headers


# Parses the request only when called; then the client's headers, and which attempt this is.
RequestHeaders = Callable[[Callable[[], Request], Headers, Attempt], tuple[Header, ...]]


# The defaults below have names so that the path of every request can skip them.


async def no_options(model: str) -> object:
    return None


def pass_body(protocol: str, body: bytes) -> bytes | None:
    return body


def forward_every_header(name: bytes) -> bool:
    return True


def pass_response(out: OutgoingRequest, response: IncomingResponse) -> IncomingResponse:
    return response


class FirstTokenWait(Struct, frozen=True):
    """How long the first token of a reply may take."""

    timeout_s: float | None = None  # from the provider's section; None: the server's, at most `limit_s`
    limit_s: float = math.inf
    retries_timeouts: bool = False  # whether a request that timed out after it was sent is sent again


class Address(Struct, frozen=True):
    """Where one request is sent."""

    url: str
    headers: tuple[Header, ...] = (JSON,)  # the content type, and the operation where the URL does not name it


class Endpoint(Struct, frozen=True):
    """Where requests are sent, and in which protocols."""

    url: str
    protocols: tuple[str, ...]  # preferred first
    send: SendRequest
    dial: DialOptions = DialOptions()
    headers: tuple[Header, ...] = ()  # sent with every request, the credential apart
    urls: Mapping[str, str] = {}  # protocol -> its URL, where it is not `url`
    paths: Mapping[str, str] = {}  # protocol -> path below the URL, where it is not the vendor's usual one
    find_protocols: Callable[[str], Awaitable[tuple[str, ...]]] | None = None  # of one model, where models differ
    # Path -> the address of the request that is made now, where the account in use decides it; None: `url` and path.
    find_address: Callable[[str], Awaitable[Address]] | None = None
    relays: frozenset[str] = frozenset()  # the other paths of OpenAI's API that it serves
    stores_replies: bool = False  # it stores replies that later requests refer to, where its protocol has that
    counts_tokens: bool = False  # it has an endpoint that counts the tokens of a request
    first_token: FirstTokenWait = FirstTokenWait()


class Auth(Struct, frozen=True):
    """How the gateway proves its identity to the upstream."""

    authorize: Authorize
    renew: Callable[[], Awaitable[bool]] | None = None  # get a new credential after the upstream rejected this one
    renews_after: Callable[[Failure], bool] = lambda failure: failure.kind is Kind.CREDENTIAL  # once in a call
    login_command: str = ""  # run it if the credential stays rejected; empty: the api_key must be replaced
    expires_at: Callable[[], float | None] = lambda: None  # when the token in use expires; None: not known, or never
    secrets: tuple[bytes, ...] = ()  # besides the credential: those in configured headers and in the proxy's URL
    secret_forms: LatestForms = field(default_factory=LatestForms)  # of the credential in use, and of the above
    latest_fields: LatestFields = field(default_factory=LatestFields)  # with the credential


class Catalogue(Struct, frozen=True):
    """Which models there are, and by which names."""

    models: tuple[ModelInfo, ...] = ()  # from the configuration
    fallback_models: tuple[ModelInfo, ...] = ()  # assumed until the list has been read
    unlisted: frozenset[str] = frozenset()  # ids of models that are served even if the list lacks them
    has_list: bool = True  # whether the upstream can list its models
    list_url: str = ""  # empty: the endpoint's, then /models
    list_models: Callable[[], Awaitable[tuple[ModelInfo, ...]]] | None = None  # None: GET /models
    ttl_s: float = 3600.0
    rename: Callable[[str], str] = lambda model: model  # a client's name for a model -> the upstream's
    context_window: Callable[[str], int | None] = lambda model: None  # in tokens
    default_window: int | None = None  # from the configuration, for models whose window is not known
    servers: frozenset[str] = frozenset()  # the names of servers among the quirks of the section


class RequestRules(Struct, frozen=True):
    """What this upstream needs of a request."""

    quirks: frozenset[str] = frozenset()
    passes: tuple[Pass, ...] = ()  # run before a request is built
    passthrough_body: Callable[[str, bytes], bytes | None] = pass_body  # None: rebuild it
    forwards_header: Callable[[bytes], bool] = forward_every_header  # whether a client's header is passed on
    headers: RequestHeaders | None = None  # of one request
    options: Callable[[str], Awaitable[object]] = no_options  # model -> what its protocol needs to build a request
    hosted_tools: frozenset[str] = frozenset()  # of web_search, web_fetch: those that the upstream runs itself
    mixes_tools: Callable[[Profile], bool] | None = None  # whether those work beside functions; None: with every model
    adjust: Callable[[Failure], Adjustment | None] = lambda failure: None  # whether a refused request is sent again
    default_thinking: str | int | None = None  # effort or budget that is requested where a client requests none
    cache: CacheMode = CacheMode.AUTO  # of translated requests
    cache_keys: bool = False  # it knows `prompt_cache_key`
    cache_key_headers: Mapping[str, bytes] = {}  # protocol -> the header that has the key instead of the body
    cache_breakpoints: bool = False  # it takes explicit breakpoints, of models that have them
    cache_ttl: str | None = None  # 5m or 1h; None: as the pauses of the session ask for


class ReplyRules(Struct, frozen=True):
    """What this upstream's replies need."""

    stages: Callable[[Request], list[Stage[Event, Event]]] | None = None  # None: bytes may pass unchanged
    interpret_failure: Callable[[Failure], Failure] = lambda failure: failure
    fix_response: Callable[[OutgoingRequest, IncomingResponse], IncomingResponse] = pass_response
    withholds_cut_calls: bool = False  # the decoder emits a tool call only once it is complete
    completes_cut_calls: bool = False  # request the rest of a tool call that was cut off


class Account(Struct, frozen=True):
    """The upstream account: its state, and which of several credentials this one is."""

    inspect: Callable[[], Awaitable[list[Finding]]] | None = None  # for `dragoman doctor`
    read_quotas: Callable[[], Awaitable[list[Quota]]] | None = None  # for `dragoman usage --plans`
    search: AccountSearch | None = None  # the web search that comes with the account
    last_limits: Callable[[], AccountLimits | None] = lambda: None  # as of the last response
    exhausted_until: Callable[[Headers, float], float | None] = read_exhausted_until  # (response headers, now)
    pool: Pool | None = None  # where the provider has several credentials
    chooser: CredentialChooser | None = None  # chooses instead of the pool, in captures and replays
    slot: int = 0  # this credential's index in the pool
    label: str = ""  # this credential in messages, for example "2 of 3 (env:KEY)"
    cooldowns: Pool | None = None  # the same pool, or one of a single credential; None: cooldowns are not kept


class Provider(Struct, frozen=True):
    """One upstream. With several credentials, `members` holds one provider for each (see upstreams/section.py)."""

    name: str
    kind: str
    issuer: str  # whose opaque reasoning it can read
    endpoint: Endpoint
    auth: Auth
    catalogue: Catalogue = Catalogue()
    requests: RequestRules = RequestRules()
    replies: ReplyRules = ReplyRules()
    account: Account = Account()
    members: tuple["Provider", ...] = ()

    async def protocols_for(self, model: str) -> tuple[str, ...]:
        """Return the protocols of a model, preferred first."""
        find = self.endpoint.find_protocols
        return self.endpoint.protocols if find is None else await find(model)

    def send(self, out: OutgoingRequest, head_timeout_s: float) -> Coroutine[object, object, IncomingResponse]:
        """Send a request; return the response, with this upstream's known mistakes corrected."""
        sending = self.endpoint.send(out, self.endpoint.dial, head_timeout_s=head_timeout_s)
        return sending if self.replies.fix_response is pass_response else self._send_and_fix(out, sending)

    async def list_secrets(self) -> SecretForms:
        """Return all forms of the secrets in its requests. Raises as `authorize` does."""
        endpoint, auth = self.endpoint, self.auth
        request = UnsignedRequest(endpoint.protocols[0], "GET", endpoint.url, endpoint.headers)
        return list_secrets(await auth.authorize(request), auth.secrets)

    async def _send_and_fix(
        self, out: OutgoingRequest, sending: Coroutine[object, object, IncomingResponse]
    ) -> IncomingResponse:
        return self.replies.fix_response(out, await sending)


# Some vendors answer 403 to a bad token: that is a rejected credential, not a missing entitlement.
BAD_TOKEN_CODES = frozenset({"invalid_api_key", "token_expired", "token_invalidated", "invalid_token", "expired_token"})
BAD_TOKEN = re.compile(
    r"\b(?:token|api[ -]?key)\b.{0,60}\b(?:invalid|expired|revoked|malformed)\b"
    r"|\b(?:invalid|incorrect|expired|bad)\b.{0,60}\b(?:token|(?:api[ -]?)?key|credentials?)\b",
    re.IGNORECASE | re.DOTALL,
)


def is_bad_token(failure: Failure) -> bool:
    """Return whether an HTTP 403 is about the credential itself."""
    return failure.code in BAD_TOKEN_CODES or BAD_TOKEN.search(failure.message) is not None


class WrappedResponse(ResponseInChunks):
    """The head of another response, of which the bytes are changed or watched."""

    _response: IncomingResponse

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.headers

    def close(self) -> None:
        self._response.close()


class FixedResponse(WrappedResponse):
    """An IncomingResponse whose bytes pass through a stage."""

    def __init__(self, response: IncomingResponse, stage: Stage[bytes, bytes]) -> None:
        self._response = response
        self._stage = stage
        self._over = False

    async def chunk(self, timeout_s: float) -> bytes:
        """Return the next bytes, b"" only at the end; wait while the stage holds bytes back."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while not self._over:
            chunk = await self._response.chunk(max(0.001, deadline - clock()))
            self._over = not chunk
            out = b"".join(self._stage.feed(chunk) if chunk else self._stage.finish())
            if out:
                return out
        return b""

    async def read(self, limit: int, timeout_s: float) -> bytes:
        body = await self._response.read(limit, timeout_s)
        return b"".join([*self._stage.feed(body), *self._stage.finish()])


def is_event_stream(response: IncomingResponse) -> bool:
    kind = response.headers.get(b"content-type") or b""
    return response.status == 200 and kind.partition(b";")[0].strip().lower() == b"text/event-stream"
