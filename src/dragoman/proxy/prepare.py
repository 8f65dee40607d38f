"""Make the upstream request of a call for one target, and note what the translation loses."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import final
from urllib.parse import parse_qsl, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.problems import ConfigError
from dragoman.net.body_threads import LARGE_BYTES, run_off_loop
from dragoman.net.client import OutgoingRequest, join_fields
from dragoman.net.headers import CREDENTIAL_FIELDS, JSON, Header, Headers, LastingFields, names_in_connection
from dragoman.proxy.call import Call
from dragoman.proxy.offered_tools import EarlierRounds, choose_plan, find_server_tools, offer_tools
from dragoman.proxy.ports import MediaFetcher, PromptMemory
from dragoman.proxy.prompt_caching import PlannedCache, choose_mode, plan_cache, put_key_in_header
from dragoman.proxy.response_headers import format_loss_count, format_loss_headers
from dragoman.proxy.why import RELAYED, Obstacles, Why, explain_translation, other_protocols, same_protocol
from dragoman.server_tools.backends import ToolPlan
from dragoman.translate.caching.billing_line import drop_billing_line
from dragoman.translate.caching.client_marks import remove_cache_settings
from dragoman.translate.framing.known_secrets import Secrets, redact_known_in_fields
from dragoman.translate.hub.caching import CacheMode, CachePlan
from dragoman.translate.hub.events import Started
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ErrorShape, Issuer, Protocol, Upstream
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import Hosted, Request
from dragoman.translate.hub.server_tools import ServerToolUse
from dragoman.translate.passes.adapt_tools import ToolMap, adapt_tools
from dragoman.translate.passes.adapt_turns import find_links, inline_links
from dragoman.translate.passes.default_thinking import add_default_thinking
from dragoman.translate.passes.server_tools import ServerTools
from dragoman.translate.protocols import ACCOUNT_CHOICES, KEY_PLACES
from dragoman.upstreams.provider import Attempt, Pass, Provider, UnsignedRequest, no_options, pass_body
from dragoman.upstreams.rejections.repairs import apply_rules, is_own_vendor, list_configured
from dragoman.upstreams.rejections.rules import Found
from dragoman.upstreams.rejections.sent import Sent
from dragoman.upstreams.routing import Route

IDENTITY = (b"accept-encoding", b"identity")
JSON_IDENTITY: tuple[Header, ...] = (JSON, IDENTITY)

# Headers for the gateway, not for the upstream: credentials, the connection, the client's address.
KEPT_BACK = frozenset(
    (
        b"authorization proxy-authorization cookie host content-length content-encoding "
        b"content-type accept-encoding connection keep-alive proxy-connection te trailer transfer-encoding upgrade "
        b"expect origin referer forwarded via user-agent x-request-id"
    ).split()
) | frozenset((*KEY_PLACES.headers, *CREDENTIAL_FIELDS))
NOTHING: frozenset[bytes] = frozenset()
KEPT_BACK_PREFIXES = (b"x-dragoman-", b"x-forwarded-", b"x-real-", b"cf-", b"sec-")


class Outbound(Struct, frozen=True, kw_only=True):
    """One target's request, ready to be sent."""

    route: Route
    provider: Provider
    protocol: Protocol  # the upstream's
    upstream: Upstream  # of this protocol
    unsigned: UnsignedRequest
    out: OutgoingRequest  # the same with its credential
    options: object
    secrets: Secrets  # to be redacted in the reply
    owner: bool  # the client may see the upstream account's headers

    @property
    def issuer(self) -> Issuer:
        """The upstream of the reply. Of bytes that pass unchanged, the first answer is read."""
        provider, model = self.provider, self.route.model
        window, quirks = provider.catalogue.context_window(model), provider.requests.quirks
        return Issuer(provider.issuer, model, window, self.options, quirks)

    @property
    def streams(self) -> bool:
        """Whether the upstream streams, even if the client did not request it."""
        return self.upstream.always_streams

    def select_headers(self, headers: Headers) -> Headers | None:
        """Return which headers of the upstream's answer belong to its reply; None: they are not the client's."""
        return None

    def find_stored_id(self, started: Started | None) -> str | None:
        """Return the id under which the upstream keeps its reply for the client; None if it does not."""
        return None

    def find_error_body(self, body: bytes) -> bytes | None:
        """Return the upstream's error as a client's SDK reads it; None: it is rendered from the failure."""
        return None

    def count_losses(self, *, explain: bool, whole: bool) -> list[Header]:
        """Return the headers that count the losses; for a stream, those of its request."""
        return []


class Unchanged(Outbound, frozen=True, kw_only=True):
    """The client's own bytes, without what the upstream is known to reject."""

    ledger: Ledger | None = None  # what was left out or changed; None: nothing

    def count_losses(self, *, explain: bool, whole: bool) -> list[Header]:
        return [] if self.ledger is None else _format_losses(self, self.ledger, len(self.ledger), explain)

    def find_error_body(self, body: bytes) -> bytes | None:
        """Return the error without the list of one in which Google writes it at times."""
        client = self.protocol.client
        try:
            if body.lstrip()[:1] == b"[":
                [only] = msgspec.json.decode(body, type=list[msgspec.Raw])
                body = bytes(only)
            msgspec.json.decode(body, type=client.error_shape if client is not None else ErrorShape)
        except (ValueError, RecursionError):
            return None
        return body


@final
class Passthrough(Unchanged, frozen=True, kw_only=True):
    """The client's own bytes, for an upstream of the same protocol."""

    why: Why

    def select_headers(self, headers: Headers) -> Headers | None:
        return headers

    def find_stored_id(self, started: Started | None) -> str | None:
        return None if started is None else started.id


@final
class Relayed(Unchanged, frozen=True, kw_only=True):
    """The client's own bytes, for one of the other paths of OpenAI's API: nothing of the reply is decoded."""

    why: Why = RELAYED


@final
class Translated(Outbound, frozen=True, kw_only=True):
    """A request that was built for its upstream."""

    why: Why
    request: Request
    target: Target  # that it was built for
    tools: ToolMap
    ledger: Ledger
    losses: int  # number of request losses; they precede reply losses in the ledger
    server_tools: ServerTools | None = None  # that the gateway runs
    tool_plan: ToolPlan | None = None
    unrun_uses: tuple[ServerToolUse, ...] = ()  # of server tools, which run before the request is sent
    may_pause: bool = False  # the upstream may pause, and the client's protocol has no pause
    cache: PlannedCache | None = None  # None: the request is not remembered

    @property
    def has_rounds(self) -> bool:
        """Whether the reply may go on in another turn, after tools have run or after a pause."""
        return self.server_tools is not None or self.may_pause

    @property
    def streams(self) -> bool:
        return self.upstream.always_streams or self.request.stream

    @property
    def issuer(self) -> Issuer:
        provider, model, request = self.provider, self.route.model, self.request
        window, quirks = provider.catalogue.context_window(model), provider.requests.quirks
        return Issuer(provider.issuer, model, window, self.options, quirks, request.n or 1, request.tools)

    def count_losses(self, *, explain: bool, whole: bool) -> list[Header]:
        count = len(self.ledger) if whole else self.losses
        return _format_losses(self, self.ledger, count, explain)


def _format_losses(prepared: Outbound, ledger: Ledger, count: int, explain: bool) -> list[Header]:
    if not explain:
        return [format_loss_count(count)]
    return redact_known_in_fields(format_loss_headers(tuple(ledger)[:count], count), prepared.secrets)


Prepared = Passthrough | Translated | Relayed


Change = Pass


class TargetSettings(Struct, frozen=True):
    """What a request is fitted to, besides its provider."""

    protocols: dict[str, Protocol]
    profile: Profile
    budgets: dict[str, int]
    quirks: frozenset[str]  # learnt, besides those that the provider is known for
    fetcher: MediaFetcher | None  # None: linked media are not fetched
    rules: tuple[Found, ...] = ()  # learnt, of what the upstream rejects
    tool_plan: ToolPlan | None = None  # None: the gateway runs no tools for this provider
    if_built: Sequence[Change] = ()  # changes that are no reason to build a request whose bytes may pass


async def prepare(
    call: Call,
    route: Route,
    provider: Provider,
    fitting: TargetSettings,
    number: int,
    changes: Sequence[Change] = (),
    rounds: EarlierRounds | None = None,
    prompts: PromptMemory | None = None,
) -> Prepared:
    """Make the request for one target; `number` is that of this upstream request in its call. Raises RequestError."""
    endpoint, rules, name = provider.endpoint, provider.requests, call.protocol.name
    speaks = endpoint.protocols if endpoint.find_protocols is None else await endpoint.find_protocols(route.model)
    keeps_state = call.state is None or call.leaves_state_to(endpoint.stores_replies)
    passing = call.body if keeps_state and name in speaks else None
    if passing is not None and rules.passthrough_body is not pass_body:
        passing = await run_off_loop(len(passing), partial(rules.passthrough_body, name, passing))
    choosing = (name, speaks, fitting.protocols, fitting.profile, call.body)
    choice = choose_protocol(*choosing) if len(call.body) <= LARGE_BYTES else await _choose_off_loop(*choosing)
    protocol, upstream = choice.protocol, choice.protocol.upstream
    assert upstream is not None
    options = None if rules.options is no_options else await rules.options(route.model)
    plan = fitting.tool_plan
    has_own = passing is not None and plan is not None and plan.mentions(call.body)
    own_tools = await find_server_tools(call, plan) if has_own and plan is not None else ()
    is_altered = changes or own_tools or call.is_from_other_protocol or call.continues or provider.replies.stages
    if passing is not None and choice.unchanged and not is_altered:
        return await _pass_unchanged(call, route, provider, fitting.rules, protocol, passing, options, number)
    if call.size > LARGE_BYTES:
        await call.read()
    ledger = call.ledger()
    plan = choose_plan(call.request(), plan, mixes=rules.mixes_tools is None or rules.mixes_tools(fitting.profile))
    offered = await offer_tools(call, plan, rounds, protocol, ledger)
    request = _fit_to_provider(offered.request, call, provider, fitting.profile, ledger)
    request, cache = await _plan_cache(call, request, route, provider, protocol, prompts, ledger)
    target = _make_target(route, provider, fitting, options, cache)
    request, tools, message = await _translate(call, target, provider, fitting, protocol, changes, ledger, request)
    unsigned, out, secrets = await _address(message, call, provider, protocol, number, cache)
    return Translated(
        route=route,
        provider=provider,
        protocol=protocol,
        upstream=upstream,
        unsigned=unsigned,
        out=out,
        options=options,
        secrets=secrets,
        owner=call.is_owner,
        why=_explain(call, provider, speaks, choice, own_tools, is_changed=bool(changes)),
        request=request,
        target=target,
        tools=tools,
        ledger=ledger,
        losses=len(ledger),
        server_tools=offered.tools,
        tool_plan=plan,
        unrun_uses=offered.unrun,
        may_pause=not call.client.knows_pause and Hosted in map(type, request.tools),
        cache=cache,
    )


async def _plan_cache(
    call: Call,
    request: Request,
    route: Route,
    provider: Provider,
    protocol: Protocol,
    prompts: PromptMemory | None,
    ledger: Ledger,
) -> tuple[Request, PlannedCache | None]:
    """Return the plan for a request of another protocol; None: only the client's own marks are sent, if any."""
    if request.protocol == protocol.name:
        return request, None
    if choose_mode(request, provider.requests) is CacheMode.OFF:
        return remove_cache_settings(request, ledger), None
    if prompts is None:
        return request, None
    return request, await plan_cache(call, request, route, provider, protocol, prompts)


def _make_target(
    route: Route, provider: Provider, fitting: TargetSettings, options: object, cache: PlannedCache | None
) -> Target:
    quirks = provider.requests.quirks | fitting.quirks
    caches = CachePlan() if cache is None else cache.plan
    return Target(route.model, provider.issuer, fitting.profile, fitting.budgets, quirks, options, caches)


def _fit_to_provider(request: Request, call: Call, provider: Provider, profile: Profile, ledger: Ledger) -> Request:
    """Leave out what only the client's vendor reads; ask for the thinking that is set for the key or the provider."""
    request = drop_billing_line(request, provider.issuer, ledger)
    of_key, of_provider = call.default_thinking, provider.requests.default_thinking
    default = of_provider if of_key is None else of_key
    return request if default is None else add_default_thinking(request, default, profile, ledger)


class _Message(Struct, frozen=True):
    """What is sent, before it is addressed."""

    body: bytes
    headers: tuple[Header, ...]
    path: str
    query: str
    request: Callable[[], Request]  # parsed only where the provider's own headers depend on it
    is_lasting: bool = True  # the headers contain no secret of a client


async def _pass_unchanged(
    call: Call,
    route: Route,
    provider: Provider,
    rules: tuple[Found, ...],
    protocol: Protocol,
    passing: bytes,
    options: object,
    number: int,
) -> Passthrough:
    """Return a request of the client's own bytes, with the upstream's name of the model."""
    upstream = protocol.upstream
    assert upstream is not None
    if call.record.recording is not None:
        call.record.recording.record_built(None)
    body = passing
    if route.model != call.model:
        if len(passing) <= LARGE_BYTES:
            body = upstream.put_model(passing, route.model)
        else:
            body = await run_off_loop(len(passing), partial(upstream.put_model, passing, route.model))
    path, query = upstream.locate(route.model, call.stream).path, client_query(call.query)
    headers = client_headers(call.headers, call.is_owner, provider, upstream)
    ledger = None
    if rules and not is_own_vendor(provider, protocol.name):
        sent, ledger = await _leave_out_rejected(Sent(protocol.name, body, headers), rules)
        body, headers = sent.body, sent.headers
        if call.record.recording is not None:
            call.record.recording.record_built(ledger)
    message = _Message(body, headers, path, query, call.request, call.headers.lasting is not None)
    unsigned, out, secrets = await _address(message, call, provider, protocol, number)
    return Passthrough(
        ledger=ledger,
        route=route,
        provider=provider,
        protocol=protocol,
        upstream=upstream,
        unsigned=unsigned,
        out=out,
        options=options,
        secrets=secrets,
        owner=call.is_owner,
        why=same_protocol(protocol.name),
    )


async def _leave_out_rejected(sent: Sent, rules: tuple[Found, ...]) -> tuple[Sent, Ledger | None]:
    """Return bytes that pass without what their upstream rejects, and what that costs, if anything."""
    ledger = Ledger()
    sent = await run_off_loop(len(sent.body), partial(apply_rules, sent, rules, ledger))
    return sent, ledger if len(ledger) else None


def _explain(
    call: Call,
    provider: Provider,
    speaks: tuple[str, ...],
    choice: "ProtocolChoice",
    tools: tuple[str, ...],
    *,
    is_changed: bool,
) -> Why:
    """Return why a request is translated."""
    own = call.protocol.name
    if own not in speaks:
        return other_protocols(speaks)
    found = Obstacles(
        client=own,
        chosen=choice.protocol.name,
        continues_stored=call.state is not None and call.state.is_rebuilt,
        is_stored=not call.leaves_state_to(provider.endpoint.stores_replies),
        is_converted=call.is_from_other_protocol,
        has_envelope=choice.protocol.name == own and not choice.unchanged,
        tools=tools,
        is_changed=is_changed,
        may_continue=call.continues,
    )
    return explain_translation(found)


async def _translate(
    call: Call,
    target: Target,
    provider: Provider,
    fitting: TargetSettings,
    protocol: Protocol,
    changes: Sequence[Change],
    ledger: Ledger,
    offered: Request,
) -> tuple[Request, ToolMap, _Message]:
    upstream, rules, size = protocol.upstream, provider.requests, call.size
    assert upstream is not None
    changes = (*changes, *fitting.if_built)
    limits = upstream.tool_limits
    if "no_custom_tools" in target.quirks:
        limits = replace(limits, custom=False)
    if size <= LARGE_BYTES and fitting.fetcher is None:
        request, tools = adapt_tools(offered, limits, ledger)
        request = _apply_changes(request, (*changes, *rules.passes), ledger)
        body = upstream.build(request, target, ledger)
    else:
        request, tools = await run_off_loop(size, partial(adapt_tools, offered, limits, ledger))
        request = await run_off_loop(size, partial(_apply_changes, request, changes, ledger))
        if fitting.fetcher is not None:
            request = await _with_media(request, upstream, fitting.fetcher)
        request = await run_off_loop(size, partial(_apply_changes, request, rules.passes, ledger))
        body = await run_off_loop(size, partial(upstream.build, request, target, ledger))
    headers = (*_headers_for(request, upstream), *put_key_in_header(target.cache, rules, protocol))
    location = upstream.locate(target.model, request.stream or upstream.always_streams)
    query, is_lasting = location.query, True
    if request.protocol == protocol.name == call.protocol.name:  # headers such as betas belong to the body
        headers = client_headers(call.headers, call.is_owner, provider, upstream)
        is_lasting = call.headers.lasting is not None
        query = _merge_queries(query, client_query(call.query))
    rejected = (*fitting.rules, *list_configured(provider, target.model))
    if rejected:
        sent = Sent(protocol.name, body, headers)
        sent = await run_off_loop(len(body), partial(apply_rules, sent, rejected, ledger))
        body, headers = sent.body, sent.headers
    if call.strict and len(ledger):
        raise RequestError(strict_refusal(ledger))
    return request, tools, _Message(body, headers, location.path, query, lambda: request, is_lasting)


async def _address(
    message: _Message,
    call: Call,
    provider: Provider,
    protocol: Protocol,
    number: int,
    cache: PlannedCache | None = None,
) -> tuple[UnsignedRequest, OutgoingRequest, Secrets]:
    """Add address, the provider's own headers and the credential; return what is sent, and the secrets in it."""
    endpoint, auth, name, others = provider.endpoint, provider.auth, protocol.name, message.headers
    path = endpoint.paths.get(name, message.path)
    if endpoint.find_address is None:
        url, own = endpoint.urls.get(name, endpoint.url) + path, JSON_IDENTITY + endpoint.headers
    else:
        address = await endpoint.find_address(path)
        url, own = address.url, (*address.headers, IDENTITY, *endpoint.headers)
    if provider.requests.headers is not None:
        session = None if cache is None else cache.session_key
        attempt = Attempt(call.uuid, number, call.tenant, session, others)
        own += provider.requests.headers(message.request, call.headers, attempt)
    if message.query:
        url = f"{url}?{message.query}"
    unsigned = UnsignedRequest(name, "POST", url, own, others, message.body)
    try:
        credentials = await auth.authorize(unsigned)
    except ConfigError as error:
        raise RequestError(_missing_credential(provider, error)) from error
    join = auth.latest_fields.join if message.is_lasting else join_fields
    out = OutgoingRequest("POST", url, join(own + credentials, others), message.body)
    return unsigned, out, auth.secret_forms.find(credentials, auth.secrets)


async def authorize(provider: Provider, request: UnsignedRequest) -> tuple[Header, ...]:
    """Return the headers with the provider's credential; raises RequestError if it has none."""
    try:
        return await provider.auth.authorize(request)
    except ConfigError as error:
        raise RequestError(_missing_credential(provider, error)) from error


def _missing_credential(provider: Provider, error: ConfigError) -> Failure:
    which = f" {provider.account.label}" if provider.account.label else ""
    problems = "; ".join(problem.message for problem in error.problems)
    message = f"Provider {provider.name!r} has no credential{which}: {problems}. Run: dragoman doctor"
    return Failure(Kind.CREDENTIAL, message)


def _apply_changes(request: Request, changes: Sequence[Change], ledger: Ledger) -> Request:
    for change in changes:
        request = change(request, ledger)
    return request


async def _with_media(request: Request, upstream: Upstream, fetcher: MediaFetcher) -> Request:
    urls = find_links(request, upstream.needs_inline)
    return inline_links(request, await fetcher.fetch_all(urls)) if urls else request


def strict_refusal(ledger: Ledger) -> Failure:
    losses = [{"path": loss.path, "how": loss.how.value, "why": loss.why} for loss in ledger]
    named = "; ".join(f"{loss['path']} {loss['how']}: {loss['why']}" for loss in losses)
    more = f"; and {len(ledger) - len(losses)} more" if len(ledger) > len(losses) else ""
    message = f"Strict mode: this request cannot be carried over without loss. {named}{more}"
    detail: dict[str, object] = {"losses": losses, "count": len(ledger)} if more else {"losses": losses}
    return Failure(Kind.BAD_REQUEST, message, code="translation_loss", at=losses[0]["path"], detail=detail)


def _headers_for(request: Request, upstream: Upstream) -> tuple[Header, ...]:
    accept = (b"accept", b"text/event-stream" if request.stream else b"application/json")
    return (accept, *upstream.required_headers, *upstream.request_headers(request))


def client_headers(headers: Headers, is_owner: bool, provider: Provider, upstream: Upstream) -> tuple[Header, ...]:
    """Return the client's headers for an upstream of the same protocol, without duplicates: vendors join them."""
    # Only the owner may choose which organisation of the upstream account pays. Another client's choice would be
    # refused, and the refusal would count against the gateway's credential.
    withheld = NOTHING if is_owner else ACCOUNT_CHOICES
    if headers.lasting is None:
        forwards, required = provider.requests.forwards_header, upstream.required_headers
        return _select_fields(headers.fields, withheld, forwards, required)
    return _select_lasting(headers.lasting, withheld, provider.requests.forwards_header, upstream.required_headers)


@lru_cache(maxsize=256)
def _select_lasting(
    sent: LastingFields,
    withheld: frozenset[bytes],
    forwards: Callable[[bytes], bool],
    required: tuple[Header, ...],
) -> tuple[Header, ...]:
    """Do the same for fields that a client sends again and again."""
    return _select_fields(sent.fields, withheld, forwards, required)


def _select_fields(
    sent: Sequence[Header],
    withheld: frozenset[bytes],
    forwards: Callable[[bytes], bool],
    required: tuple[Header, ...],
) -> tuple[Header, ...]:
    """Return which of these headers of a client are forwarded."""
    of_connection = names_in_connection(Headers(list(sent)))
    kept = [
        field
        for field in sent
        if field[0] not in KEPT_BACK
        and field[0] not in withheld
        and field[0] not in of_connection
        and not field[0].startswith(KEPT_BACK_PREFIXES)
        and forwards(field[0])
    ]
    names = dict(kept)
    return (*dict.fromkeys(kept), *[field for field in required if field[0] not in names])


def client_query(query: str) -> str:
    """Return the client's query without its key."""
    if not query:
        return ""
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, value) for name, value in pairs if name not in KEY_PLACES.parameters])


def _merge_queries(own: str, client: str) -> str:
    """Return both; a parameter of the protocol's own replaces the client's."""
    if not own or not client:
        return own or client
    return urlencode(dict(parse_qsl(client, keep_blank_values=True)) | dict(parse_qsl(own)))


class ProtocolChoice(Struct, frozen=True):
    protocol: Protocol
    unchanged: bool = False


def choose_protocol(
    client: str, speaks: tuple[str, ...], protocols: Mapping[str, Protocol], profile: Profile, body: bytes
) -> ProtocolChoice:
    """Prefer the client's own protocol if the upstream has it and accepts the body, else the first that accepts it."""
    own = protocols[client] if client in speaks else None
    if own is not None and _accepts(own, profile, body):
        return ProtocolChoice(own, not _has_envelope(own, body))
    for name in speaks:
        if _accepts(protocols[name], profile, body):
            return ProtocolChoice(protocols[name])
    if own is None:
        return ProtocolChoice(protocols[speaks[0]])
    return ProtocolChoice(own, not _has_envelope(own, body))


async def _choose_off_loop(
    client: str, speaks: tuple[str, ...], protocols: Mapping[str, Protocol], profile: Profile, body: bytes
) -> ProtocolChoice:
    return await run_off_loop(len(body), partial(choose_protocol, client, speaks, protocols, profile, body))


def _has_envelope(protocol: Protocol, body: bytes) -> bool:
    """Whether a body has an envelope of ours, which must be opened for its issuer and taken out for anyone else."""
    return protocol.client is not None and body.find(protocol.client.envelope_start) >= 0


def _accepts(protocol: Protocol, profile: Profile, body: bytes) -> bool:
    assert protocol.upstream is not None
    return protocol.upstream.accepts(profile, body)
