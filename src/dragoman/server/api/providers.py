"""The gateway's providers: models and routes, accounts, and what doctor finds."""

import time
from collections.abc import Mapping
from contextlib import aclosing

from msgspec import Struct

from dragoman.operate.provider_state import ModelOverview, ProviderAccount, Quotas, describe_models, read_quotas
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.gateway import Gateway
from dragoman.server.api.operations import EveryWorker
from dragoman.server.api.wire import JSON_LINES, JSON_LINES_TYPE, Operation, response_headers
from dragoman.server.routes import RoutedRequest
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.account_state import Finding


class AccountList(Struct, frozen=True):
    accounts: list[ProviderAccount]


LIST_MODELS = Operation("List the routes in the order in which they are tried, and all models.", (ModelOverview,))
LIST_ACCOUNTS = Operation("List the credentials of every provider, and their cooldowns.", (AccountList,))
READ_QUOTAS = Operation("Ask the providers how much of each plan is used up.", (Quotas,))
EXAMINE = Operation("Run doctor: one finding on each line.", (Finding,), media_types=(JSON_LINES,))


class StateApi:
    """Describes the runtime that is in force."""

    def __init__(
        self, gateway: Gateway, environ: Mapping[str, str], writer: UsageWriter | None, workers: EveryWorker
    ) -> None:
        self._gateway = gateway
        self._workers = workers
        self._environ = environ
        self._writer = writer
        self._is_examining = False

    @LIST_MODELS.handled_by
    async def list_models(self, request: RoutedRequest) -> None:
        LIST_MODELS.read_query(request)
        pricing = None if self._writer is None else self._writer.pricing
        LIST_MODELS.respond(request, describe_models(self._gateway.runtime, pricing, time.time()))

    @LIST_ACCOUNTS.handled_by
    async def list_accounts(self, request: RoutedRequest) -> None:
        LIST_ACCOUNTS.read_query(request)
        LIST_ACCOUNTS.respond(request, AccountList(await self._workers.list_accounts()))

    @READ_QUOTAS.handled_by
    async def read_quotas(self, request: RoutedRequest) -> None:
        READ_QUOTAS.read_query(request)
        READ_QUOTAS.respond(request, await read_quotas(self._gateway.runtime.providers))

    @EXAMINE.handled_by
    async def examine(self, request: RoutedRequest) -> None:
        EXAMINE.read_query(request)
        if self._is_examining:
            message = "The check is already running. Wait until it has ended."
            raise RequestError(Failure(Kind.CONFLICT, message, code="already_running"))
        from dragoman.operate.diagnosis.diagnosis import examine

        self._is_examining = True
        try:
            request.sink.begin(200, [JSON_LINES_TYPE, *response_headers(request)])
            async with aclosing(examine(self._gateway.runtime.config, self._environ)) as findings:
                async for finding in findings:
                    await request.sink.send(EXAMINE.encode(finding) + b"\n")
            request.sink.end()
        finally:
            self._is_examining = False
