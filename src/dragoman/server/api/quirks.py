"""What was learned from the rejections of upstreams, as it applies now: list it, and forget it."""

import asyncio

import msgspec
from msgspec import Struct

from dragoman.operate.quirks import LearnedRule, describe_rules
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.gateway import Gateway
from dragoman.server.api.operations import STORE_TIMEOUT_S, AdminAudit
from dragoman.server.api.wire import PAGE, Operation, convert_errors, invalid_cursor, make_cursor
from dragoman.server.routes import RoutedRequest
from dragoman.upstreams.learned_quirks import Learned


class LearnedPage(Struct, frozen=True):
    rules: list[LearnedRule]
    next: str | None


class ForgottenRules(Struct, frozen=True):
    forgotten: int


LIST_RULES = Operation(
    "List what is left out of requests because an upstream rejected it, oldest first.", (LearnedPage,), PAGE
)
FORGET_RULES = Operation(
    "Forget what was learned about all providers, so that the full form of requests is tried again.", (ForgottenRules,)
)
FORGET_RULES_OF_PROVIDER = Operation("Forget what was learned about a provider.", (ForgottenRules,))
_position = msgspec.json.Decoder(tuple[float, str, str, str, str, str])


class QuirksApi:
    """The rules of all keys. Other processes forget within a second what is forgotten here."""

    def __init__(self, gateway: Gateway, writer: UsageWriter, audit: AdminAudit) -> None:
        self._gateway = gateway
        self._writer = writer
        self._audit = audit

    @LIST_RULES.handled_by
    async def list_rules(self, request: RoutedRequest) -> None:
        query = LIST_RULES.read_query(request)
        limit, position = query.limit(), query.cursor()
        rules = sorted(self._gateway.runtime.learned_quirks.list_all(), key=_locate)
        if position is not None:
            after = _read_position(position)
            rules = [rule for rule in rules if _locate(rule) > after]
        page = rules[:limit]
        following = make_cursor(msgspec.json.encode(_locate(page[-1]))) if len(rules) > limit else None
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                described = await describe_rules(page, self._writer.store)
        LIST_RULES.respond(request, LearnedPage(described, following))

    @FORGET_RULES.handled_by
    async def forget_rules(self, request: RoutedRequest) -> None:
        FORGET_RULES.read_query(request)
        FORGET_RULES.respond(request, await self._forget(request, None))

    @FORGET_RULES_OF_PROVIDER.handled_by
    async def forget_rules_of_provider(self, request: RoutedRequest) -> None:
        FORGET_RULES_OF_PROVIDER.read_query(request)
        FORGET_RULES_OF_PROVIDER.respond(request, await self._forget(request, request.rest))

    async def _forget(self, request: RoutedRequest, provider: str | None) -> ForgottenRules:
        async with self._audit.recording(request, "quirks.forget", provider or "all providers"):
            with convert_errors():
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    forgotten = await self._writer.store.forget_rules(provider)
        self._gateway.runtime.learned_quirks.forget(provider)
        return ForgottenRules(forgotten)


def _locate(rule: Learned) -> tuple[float, str, str, str, str, str]:
    return rule.time, rule.tenant, rule.provider, rule.rule, rule.path, rule.model


def _read_position(position: bytes) -> tuple[float, str, str, str, str, str]:
    try:
        return _position.decode(position)
    except msgspec.DecodeError:
        raise invalid_cursor() from None
