"""Make the upstream request of a call for one target, and note what the translation loses."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.problems import ConfigError
from dragoman.net.body_threads import JOINED_BYTES, LARGE_BYTES, SCANNED_BYTES, run_off_loop
from dragoman.net.client import OutgoingRequest, join_fields
from dragoman.net.headers import Header
from dragoman.proxy.authorization import missing_credential
from dragoman.proxy.call import Call
from dragoman.proxy.key_policy import limit_output
from dragoman.proxy.left_out import leave_out_rejected
from dragoman.proxy.offered_tools import choose_unmixed, find_server_tools, offer_tools
from dragoman.proxy.ports import MediaFetcher, PromptMemory
from dragoman.proxy.prepared import Change, Passthrough, Prepared, Translated
from dragoman.proxy.prompt_caching import PlannedCache, plan_cache, put_key_in_header
from dragoman.proxy.protocol_choice import ProtocolChoice, choose_protocol
from dragoman.proxy.request_headers import (
    IDENTITY,
    JSON_IDENTITY,
    client_headers,
    client_query,
    merge_queries,
    protocol_headers,
)
from dragoman.proxy.runtime import TargetSettings, target_settings
from dragoman.proxy.step import Ask
from dragoman.proxy.why import Obstacles, Why, explain_translation, other_protocols, same_protocol
from dragoman.translate.caching.billing_line import drop_billing_line
from dragoman.translate.caching.client_marks import remove_cache_settings
from dragoman.translate.framing.known_secrets import Secrets
from dragoman.translate.hub.caching import CacheMode, CachePlan
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Protocol, ToolLimits, Upstream
from dragoman.translate.hub.profile import REPLAYS, Target
from dragoman.translate.hub.request import Hosted, Request
from dragoman.translate.passes.adapt_tools import ToolMap, adapt_tools
from dragoman.translate.passes.adapt_turns import find_links, inline_links
from dragoman.translate.passes.default_thinking import add_default_thinking
from dragoman.upstreams.provider import Attempt, Provider, UnsignedRequest, no_options, pass_body
from dragoman.upstreams.rejections.foreign_reasoning import leave_out_foreign
from dragoman.upstreams.rejections.repairs import apply_rules
from dragoman.upstreams.rejections.rules import Found
from dragoman.upstreams.rejections.sent import Sent
from dragoman.upstreams.routing import Route

OFF = CacheMode.OFF  # looked up once: on Python 3.11, each look-up of a member is slow


async def prepare(call: Call, ask: Ask, settings: TargetSettings, prompts: PromptMemory | None = None) -> Prepared:
    """Make the request for one target: of the client's own bytes if they can pass, else translated.

    Raises RequestError.
    """
    provider, model, own = ask.provider, ask.route.model, call.protocol.name
    endpoint, rules = provider.endpoint, provider.requests

    # The protocol of the request to the upstream.
    speaks = endpoint.protocols if endpoint.find_protocols is None else await endpoint.find_protocols(model)
    size = len(call.body)
    if size <= SCANNED_BYTES:
        choice = choose_protocol(call, speaks, settings)
    else:
        choice = await run_off_loop(size, partial(choose_protocol, call, speaks, settings))
    protocol, upstream = choice.protocol, choice.protocol.upstream
    assert upstream is not None
    options = None if rules.options is no_options else await rules.options(model)
    preparation = _Preparation(call, ask, provider, settings, protocol, upstream, options)

    # The client's bytes, unless something in them has to be changed.
    has_its_state = call.state is None or call.leaves_state_to(endpoint.stores_replies)
    passing = call.body if has_its_state and own in speaks else None
    if passing is not None and rules.passthrough_body is not pass_body:
        passing = await run_off_loop(len(passing), partial(rules.passthrough_body, own, passing))
    plan = settings.tool_plan
    own_tools = () if passing is None or plan is None else await find_server_tools(call, plan)
    is_altered = ask.changes or own_tools or call.is_from_other_protocol or call.continues or provider.replies.stages
    if passing is not None and not is_altered and protocol.name == own:
        passed = await (preparation.pass_unchanged if choice.unchanged else preparation.pass_without_foreign)(passing)
        if passed is not None:
            return passed

    if call.size > LARGE_BYTES:
        await call.read()
    return await preparation.translate(_explain(preparation, choice, speaks, own_tools), prompts)


async def prepare_once(call: Call, route: Route, provider: Provider) -> Prepared:
    """Make the request for a target to which no turn sends it: it is only counted, or checked. Raises RequestError."""
    settings = target_settings(call.runtime, route, call.tenant, strict=call.strict)
    return await prepare(call, Ask(route, provider, 1), settings)


class _Message(Struct, frozen=True):
    """What is sent, before it is addressed."""

    body: bytes
    headers: tuple[Header, ...]
    path: str
    query: str
    request: Request | None = None  # that was built; None: the client's own
    is_lasting: bool = True  # the headers contain no secret of a client


class _Preparation(Struct, frozen=True):
    """The request for one target while it is made, once its protocol is chosen."""

    call: Call
    ask: Ask
    provider: Provider
    settings: TargetSettings
    protocol: Protocol
    upstream: Upstream
    options: object  # the provider's, for the model

    async def pass_without_foreign(self, passing: bytes) -> Passthrough | None:
        """Return a request of the client's own bytes without other vendors' reasoning; None if that is not possible."""
        client, name = self.protocol.client, self.protocol.name
        if client is None or not REPLAYS.isdisjoint(self.provider.requests.quirks | self.settings.quirks):
            return None
        leave_out = partial(leave_out_foreign, Sent(name, passing), self.provider.issuer, client.envelope_start)
        found = await run_off_loop(len(passing), leave_out)
        if found is None:
            return None
        sent, ledger = found
        if self.call.strict:
            raise RequestError(strict_refusal(ledger))
        return await self.pass_unchanged(sent.body, ledger)

    async def pass_unchanged(self, passing: bytes, ledger: Ledger | None = None) -> Passthrough:
        """Return a request of the client's own bytes, with the upstream's name of the model."""
        call, model, upstream, provider = self.call, self.ask.route.model, self.upstream, self.provider
        recording, left_out = call.record.recording, self.ask.left_out
        rules = () if call.strict else self.settings.rules  # in full form, whatever it is refused
        body = passing
        if model != call.named_model:
            if len(passing) <= SCANNED_BYTES:
                body = upstream.put_model(passing, model)
            else:
                body = await run_off_loop(len(passing), partial(upstream.put_model, passing, model))
        if call.policy.max_output_tokens is not None:
            body = await limit_output(body, call, provider)
        path, query = upstream.locate(model, call.stream).path, client_query(call.query)
        headers = client_headers(call.headers, call.is_owner, provider, upstream)
        if rules or left_out is not None:
            ledger = Ledger() if ledger is None else ledger
            unchanged = Sent(self.protocol.name, body, headers)
            sent = await leave_out_rejected(unchanged, provider, rules, left_out, ledger)
            body, headers = sent.body, sent.headers
        ledger = ledger if ledger is not None and len(ledger) else None
        if recording is not None:
            recording.record_built(ledger)
        message = _Message(body, headers, path, query, None, call.headers.lasting is not None)
        unsigned, out, secrets = await self._address(message)
        return Passthrough(
            ledger=ledger,
            route=self.ask.route,
            provider=provider,
            protocol=self.protocol,
            upstream=upstream,
            unsigned=unsigned,
            out=out,
            options=self.options,
            secrets=secrets,
            owner=call.is_owner,
            why=same_protocol(self.protocol.name),
        )

    async def translate(self, why: Why, prompts: PromptMemory | None) -> Translated:
        """Return a request that is built for its upstream."""
        call, ask, settings, provider = self.call, self.ask, self.settings, self.provider
        mixes_tools, ledger = provider.requests.mixes_tools, call.ledger()
        plan = settings.tool_plan
        if plan is not None and mixes_tools is not None and not mixes_tools(settings.profile):
            plan = choose_unmixed(call.request(), plan)
        request, offered = await offer_tools(call, plan, ask.rounds, self.protocol, ledger)
        request = self._fit_to_provider(request, ledger)
        cache = await plan_cache(call, request, ask, self.protocol, prompts)
        if provider.requests.cache is OFF and request.protocol != self.protocol.name:
            request = remove_cache_settings(request, ledger)
        caches, quirks = CachePlan() if cache is None else cache.plan, provider.requests.quirks
        if settings.quirks:
            quirks |= settings.quirks
        model, profile, budgets = ask.route.model, settings.profile, settings.budgets
        target = Target(model, provider.issuer, profile, budgets, quirks, self.options, caches)
        if settings.fetcher is None and call.size <= LARGE_BYTES:
            request, tools, body = self._build_at_once(request, target, ledger, cache)
        else:
            request, tools, body = await self._build_off_loop(request, target, ledger, cache)
        message = self._write_message(request, body, target)
        rejected = settings.rules + settings.configured
        if rejected:
            message = await self._leave_out_rejected(message, request, rejected, ledger)
            if cache is not None and message.body is not body:
                describe = partial(cache.describe_changed, self.upstream.prompts, message.body, profile)
                await run_off_loop(len(message.body), describe)
        if call.strict and len(ledger):
            raise RequestError(strict_refusal(ledger))
        unsigned, out, secrets = await self._address(message, None if cache is None else cache.session_key)
        return Translated(  # the first nine by position: from 16 keywords on a call is slow
            ask.route,
            provider,
            self.protocol,
            self.upstream,
            unsigned,
            out,
            self.options,
            secrets,
            call.is_owner,
            why=why,
            request=request,
            target=target,
            tools=tools,
            ledger=ledger,
            losses=len(ledger),
            offered=offered,
            may_pause=not call.client.knows_pause and Hosted in map(type, request.tools),
            cache=cache,
        )

    def _fit_to_provider(self, request: Request, ledger: Ledger) -> Request:
        """Leave out what only the client's vendor reads; add the thinking that is set for the key or the provider."""
        request = drop_billing_line(request, self.provider.issuer, ledger)
        of_key, of_provider = self.call.default_thinking, self.provider.requests.default_thinking
        default = of_provider if of_key is None else of_key
        most = self.call.policy.max_output_tokens
        if most is not None and (request.max_tokens is None or request.max_tokens > most):
            request = replace(request, max_tokens=most)
        return request if default is None else add_default_thinking(request, default, self.settings.profile, ledger)

    def _build_at_once(
        self, request: Request, target: Target, ledger: Ledger, cache: PlannedCache | None
    ) -> tuple[Request, ToolMap, bytes]:
        """Change the request to what its upstream accepts, build it, and describe it for the cache."""
        request, tools = adapt_tools(request, self._find_tool_limits(target), ledger)
        changes, passes = self._list_changes(), self.provider.requests.passes
        if changes or passes:
            request = _apply_changes(request, (*changes, *passes), ledger)
        body = self.upstream.build(request, target, ledger)
        if cache is not None:
            cache.describe(self.upstream.prompts, body, target.profile)
        return request, tools, body

    async def _build_off_loop(
        self, request: Request, target: Target, ledger: Ledger, cache: PlannedCache | None
    ) -> tuple[Request, ToolMap, bytes]:
        """Do the same with a large request, or one whose linked media are to be sent in it."""
        upstream, fetcher, size = self.upstream, self.settings.fetcher, self.call.size
        if fetcher is None and size <= JOINED_BYTES:
            return await run_off_loop(size, partial(self._build_at_once, request, target, ledger, cache))
        limits, passes = self._find_tool_limits(target), self.provider.requests.passes
        request, tools = await run_off_loop(size, partial(adapt_tools, request, limits, ledger))
        request = await run_off_loop(size, partial(_apply_changes, request, self._list_changes(), ledger))
        if fetcher is not None:
            request = await _with_media(request, upstream, fetcher)
        request = await run_off_loop(size, partial(_apply_changes, request, passes, ledger))
        body = await run_off_loop(size, partial(upstream.build, request, target, ledger))
        if cache is not None:
            await run_off_loop(size, partial(cache.describe, upstream.prompts, body, target.profile))
        return request, tools, body

    def _find_tool_limits(self, target: Target) -> ToolLimits:
        limits = self.upstream.tool_limits
        return replace(limits, custom=False) if "no_custom_tools" in target.quirks else limits

    def _list_changes(self) -> tuple[Change, ...]:
        """Return the changes that refusals have made necessary."""
        changes, left_out = self.ask.changes, self.ask.left_out
        return changes if left_out is None else (*changes, left_out.change)

    def _write_message(self, request: Request, body: bytes, target: Target) -> _Message:
        """Add headers and path to a body."""
        call, provider, protocol, upstream = self.call, self.provider, self.protocol, self.upstream
        headers = protocol_headers(request, upstream)
        if provider.requests.cache_key_headers:
            headers += put_key_in_header(request, target.cache, provider.requests, protocol)
        location = upstream.locate(target.model, request.stream or upstream.always_streams)
        query, is_lasting = location.query, True
        if request.protocol == protocol.name == call.protocol.name:  # headers such as betas belong to the body
            headers = client_headers(call.headers, call.is_owner, provider, upstream)
            is_lasting = call.headers.lasting is not None
            query = merge_queries(query, client_query(call.query))
        return _Message(body, headers, location.path, query, request, is_lasting)

    async def _leave_out_rejected(
        self, message: _Message, request: Request, rules: tuple[Found, ...], ledger: Ledger
    ) -> _Message:
        """Return the message without what the upstream is known to reject."""
        name, body = self.protocol.name, message.body
        source = None if request.protocol == name else request
        work = partial(apply_rules, Sent(name, body, message.headers), rules, ledger, source)
        sent = await run_off_loop(len(body), work)
        return replace(message, body=sent.body, headers=sent.headers)

    async def _address(
        self, message: _Message, session: str | None = None
    ) -> tuple[UnsignedRequest, OutgoingRequest, Secrets]:
        """Add address, the provider's own headers and the credential; return what is sent, and the secrets in it."""
        call, provider, name, others = self.call, self.provider, self.protocol.name, message.headers
        endpoint, auth = provider.endpoint, provider.auth
        path = endpoint.paths.get(name, message.path)
        if endpoint.find_address is None:
            url, own = endpoint.urls.get(name, endpoint.url) + path, JSON_IDENTITY + endpoint.headers
        else:
            address = await endpoint.find_address(path)
            url, own = address.url, (*address.headers, IDENTITY, *endpoint.headers)
        if provider.requests.headers is not None:
            attempt = Attempt(call.uuid, self.ask.number, call.tenant, session, others)
            # A request that passes is parsed only where these headers depend on it.
            request = call.request if message.request is None else partial(_return, message.request)
            own += provider.requests.headers(request, call.headers, attempt)
        if message.query:
            url = f"{url}?{message.query}"
        unsigned = UnsignedRequest(name, "POST", url, own, others, message.body)
        try:
            credentials = await auth.authorize(unsigned)
        except ConfigError as error:
            raise RequestError(missing_credential(provider, error)) from error
        join = auth.latest_fields.join if message.is_lasting else join_fields
        out = OutgoingRequest("POST", url, join(own + credentials, others), message.body)
        return unsigned, out, auth.secret_forms.find(credentials, auth.secrets)


def _explain(preparation: _Preparation, choice: ProtocolChoice, speaks: tuple[str, ...], tools: tuple[str, ...]) -> Why:
    """Return why a request is translated."""
    call, chosen = preparation.call, choice.protocol.name
    own = call.protocol.name
    if own not in speaks:
        return other_protocols(speaks)
    found = Obstacles(
        client=own,
        chosen=chosen,
        continues_stored=call.state is not None and call.state.is_rebuilt,
        is_stored=not call.leaves_state_to(preparation.provider.endpoint.stores_replies),
        is_converted=call.is_from_other_protocol,
        has_envelope=chosen == own and not choice.unchanged,
        tools=tools,
        is_changed=bool(preparation.ask.changes),
        may_continue=call.continues,
    )
    return explain_translation(found)


def _return(request: Request) -> Request:
    return request


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
