"""The gateway's present state: models and routes, accounts, and what doctor finds."""

import time
from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin.provider_state import describe_models, read_quotas
from dragoman.flow.gateway import Gateway
from dragoman.http.api.every_worker import EveryWorker
from dragoman.http.api.parameters import Parameters
from dragoman.http.api.responses import respond, response_headers
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import Failure, Kind, RequestError

LINES = (b"content-type", b"application/x-ndjson")


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

    async def list_models(self, request: RoutedRequest) -> None:
        Parameters(request.exchange.query, ())
        pricing = None if self._writer is None else self._writer.pricing
        respond(request, describe_models(self._gateway.runtime, pricing, time.time()))

    async def list_accounts(self, request: RoutedRequest) -> None:
        Parameters(request.exchange.query, ())
        respond(request, {"accounts": await self._workers.list_accounts()})

    async def read_quotas(self, request: RoutedRequest) -> None:
        Parameters(request.exchange.query, ())
        respond(request, await read_quotas(self._gateway.runtime.providers))

    async def examine(self, request: RoutedRequest) -> None:
        """Stream findings, one JSON object on each line, as soon as they are made."""
        Parameters(request.exchange.query, ())
        if self._is_examining:
            message = "The check runs already. Wait until it has ended."
            raise RequestError(Failure(Kind.CONFLICT, message, code="already_running"))
        from dragoman.admin.diagnosis import examine

        self._is_examining = True
        try:
            request.exchange.start(200, [LINES, *response_headers(request)])
            async with aclosing(examine(self._gateway.runtime.config, self._environ)) as findings:
                async for finding in findings:
                    await request.exchange.send(msgspec.json.encode(finding) + b"\n")
            request.exchange.finish()
        finally:
            self._is_examining = False
