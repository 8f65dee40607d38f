"""What a provider is: one upstream with its address, its languages and its way of proving who we are."""

import math
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from dragoman import __version__
from dragoman.accounts.pool import Pool
from dragoman.config.proxies import NO_PROXY, parse_proxy, read_proxies
from dragoman.config.secret import resolve_secret
from dragoman.config.settings import ProviderConfig
from dragoman.hub.events import Event
from dragoman.hub.failure import Failure
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request
from dragoman.hub.stage import Stage
from dragoman.net.client import Dial, Outgoing
from dragoman.net.client import SendRequest as SendRequest
from dragoman.net.client import UpstreamResponse as UpstreamResponse
from dragoman.net.headers import Header, Headers
from dragoman.providers.finding import Finding
from dragoman.providers.limits import Limits
from dragoman.providers.quota import Quota
from dragoman.providers.spent import spent_until

USER_AGENT = f"dragoman/{__version__}"


Authorize = Callable[[str], Awaitable[tuple[Header, ...]]]  # protocol -> the headers that prove who we are


class ModelInfo(Struct, frozen=True):
    id: str
    name: str = ""
    created: int = 0
    owned_by: str = ""
    max_input: int | None = None
    max_output: int | None = None


class Amend(Struct, frozen=True):
    """A second try: the same again, or with what the upstream objected to changed."""

    name: str
    change: Callable[[Request, Ledger], Request] | None = None
    quirk: str | None = None  # learnt for good: from now on requests are built for it
    of_model: bool = False  # the quirk is this model's, not the provider's
    reroutes: bool = False  # it goes another way, so that bytes which were refused need not pass again


Pass = Callable[[Request, Ledger], Request]


class Trial(Struct, frozen=True):
    """The same question may be put several times."""

    id: str  # of the question, the same each time: a UUID
    number: int = 1
    tenant: str = ""  # the client key's; what is derived from a request's content must differ between tenants


# The request, if it is worth parsing for it, the client's headers, and how often it was asked -> headers that tell so
Describe = Callable[[Callable[[], Request], Headers, Trial], tuple[Header, ...]]


async def _no_options(model: str) -> object:
    return None


class Provider(Struct, frozen=True):
    name: str
    kind: str
    issuer: str  # whose opaque reasoning it reads
    protocols: tuple[str, ...]  # what it speaks, preferred first; `spoken` knows of a model
    endpoint: str
    send: SendRequest  # as it answers; `ask` gives what that was meant to be
    authorize: Authorize
    dial: Dial = Dial()
    headers: tuple[Header, ...] = ()
    secrets: tuple[bytes, ...] = ()  # besides its credential: those of its headers and of its proxy
    models: tuple[ModelInfo, ...] = ()  # known without asking
    fallback_models: tuple[ModelInfo, ...] = ()  # assumed until it has been asked
    lists_models: bool = True
    list_models: Callable[[], Awaitable[tuple[ModelInfo, ...]]] | None = None  # where GET /models is not its way
    rename: Callable[[str], str] = lambda model: model  # a client's name for a model -> its own
    counts_tokens: bool = False  # of requests in its own protocol, before they are sent
    model_ttl_s: float = 3600.0
    first_token_timeout_s: float | None = None  # its stanza's own; None: the server's, or `first_token_limit_s` if less
    first_token_limit_s: float = math.inf
    repeats_timeouts: bool = False  # a request that timed out after it was sent is sent to it again
    speaks: Callable[[str], Awaitable[tuple[str, ...]]] | None = None  # model -> its protocols, where models differ
    paths: Mapping[str, str] = {}  # protocol -> its path below the endpoint, where that is not the vendor's own
    as_is: Callable[[str, bytes], bytes | None] = lambda protocol, body: body  # None: it must be built anew
    forwards: Callable[[bytes], bool] = lambda name: True  # which of a client's headers pass with its body
    describe: Describe | None = None
    heed: Callable[[Failure], Failure] = lambda failure: failure  # what a failure means, coming from this one
    limits: Callable[[], Limits | None] = lambda: None  # what it last said of the account's allowance
    quirks: frozenset[str] = frozenset()
    passes: tuple[Pass, ...] = ()  # what its requests go through before they are built
    stages: Callable[[Request], list[Stage[Event, Event]]] | None = None  # what its replies go through
    aim: Callable[[str], Awaitable[object]] = _no_options  # model -> what its own protocol must know for one request
    window: Callable[[str], int | None] = lambda model: None
    renew: Callable[[], Awaitable[bool]] | None = None  # a new credential, after the old one was refused
    remedy: str = ""  # the command that mends a credential which is refused for good; empty: another api_key does
    righted: Callable[[Outgoing, UpstreamResponse], UpstreamResponse] = lambda out, answer: (
        answer
    )  # what its streams get wrong
    amend: Callable[[Failure], Amend | None] = lambda failure: None
    withholds_cut_calls: bool = False  # its decoder never opens a call that is not whole
    mend: bool = False  # ask for the rest of a cut tool call within the same turn
    inspect: Callable[[], Awaitable[list[Finding]]] | None = None  # what `dragoman doctor` says of it, asked now
    quota: Callable[[], Awaitable[list[Quota]]] | None = None  # what `usage --plans` says of it, asked now
    spent_until: Callable[[Headers, float], float | None] = spent_until  # when an answer says that nothing is left
    members: tuple["Provider", ...] = ()  # one for each of several credentials; see providers/pooled.py
    pool: Pool | None = None  # which of them is asked; each of them knows it, and its seat there
    seat: int = 0
    rests: Pool | None = None  # the same pool; where there is one credential, one of it alone. None: nobody keeps count
    credential: str = ""  # which of several credentials it proves itself with, in words for people

    async def spoken(self, model: str) -> tuple[str, ...]:
        """What it speaks for that model, preferred first."""
        return self.protocols if self.speaks is None else await self.speaks(model)

    async def ask(self, out: Outgoing, head_timeout_s: float) -> UpstreamResponse:
        """Its answer, with what its streams get wrong put right as they pass."""
        return self.righted(out, await self.send(out, self.dial, head_timeout_s=head_timeout_s))


def configured(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str], **own: object) -> Provider:
    """A provider from its stanza; `own` is what its kind decides."""
    dial, headers = dial_of(config, environ), _headers(config, environ)
    fields: dict[str, object] = {
        "name": config.name,
        "kind": config.kind,
        "issuer": config.name,
        "protocols": config.protocols,
        "endpoint": config.endpoint or "",
        "send": send,
        "dial": dial,
        "headers": headers,
        "secrets": _secrets(config, dial, headers),
        "models": tuple(ModelInfo(name) for name in config.models),
        "model_ttl_s": config.model_cache_ttl_s,
        "first_token_timeout_s": config.first_token_timeout_s,
    }
    return Provider(**{**fields, **own})  # type: ignore[arg-type]


def dial_of(config: ProviderConfig, environ: Mapping[str, str]) -> Dial:
    """The route to it: its proxy or else the environment's, and whose certificates are believed."""
    ca_file = str(config.ca_file) if config.ca_file else None
    if config.proxy is None:
        return Dial(ca_file=ca_file, detours=read_proxies(environ))
    proxy = resolve_secret(config.proxy, environ).reveal()
    if proxy == NO_PROXY:
        return Dial(ca_file=ca_file)
    try:
        parse_proxy(proxy)
    except ValueError as error:
        raise config.proxy.fault(str(error)) from None
    return Dial(proxy=proxy, ca_file=ca_file)


def _secrets(config: ProviderConfig, dial: Dial, headers: tuple[Header, ...]) -> tuple[bytes, ...]:
    configured_names = {name.lower().encode() for name in config.headers}
    found = [value for name, value in headers if name in configured_names]
    urls = (dial.proxy, *((dial.detours.http, dial.detours.https) if dial.detours else ()))
    for proxy in (parse_proxy(url) for url in urls if url is not None):
        basic = proxy.authorization()
        found += [] if basic is None else [proxy.password.encode(), basic.rpartition(b" ")[2]]
    return tuple(found)


def api_key(config: ProviderConfig, environ: Mapping[str, str]) -> Callable[[], bytes | None]:
    """Reads the configured key at each use, so that a rotated one is seen."""
    source = config.api_key

    def read() -> bytes | None:
        return resolve_secret(source, environ).reveal().encode() if source else None

    return read


def _headers(config: ProviderConfig, environ: Mapping[str, str]) -> tuple[Header, ...]:
    agent = (b"user-agent", (config.user_agent or USER_AGENT).encode())
    extra = [
        (name.lower().encode(), resolve_secret(source, environ).reveal().encode())
        for name, source in config.headers.items()
    ]
    return (agent, *extra)
