"""The gateway's providers: models and routes, accounts and how to sign in to them, and what doctor finds."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dragoman.accounts.credential import CredentialError
from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin import AdminError
from dragoman.admin.provider_state import describe_models, read_quotas
from dragoman.flow.gateway import Gateway
from dragoman.framing.redaction import redact
from dragoman.http.api.operations import AuditLog, EveryWorker
from dragoman.http.api.wire import Parameters, convert_errors, read_body, respond, response_headers
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.net.tasks import spawn

if TYPE_CHECKING:
    from dragoman.admin.sign_in import Prompt, SignInOptions

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
        Parameters(request.http.query, ())
        pricing = None if self._writer is None else self._writer.pricing
        respond(request, describe_models(self._gateway.runtime, pricing, time.time()))

    async def list_accounts(self, request: RoutedRequest) -> None:
        Parameters(request.http.query, ())
        respond(request, {"accounts": await self._workers.list_accounts()})

    async def read_quotas(self, request: RoutedRequest) -> None:
        Parameters(request.http.query, ())
        respond(request, await read_quotas(self._gateway.runtime.providers))

    async def examine(self, request: RoutedRequest) -> None:
        """Stream findings, one JSON object on each line, as soon as they are made."""
        Parameters(request.http.query, ())
        if self._is_examining:
            message = "The check runs already. Wait until it has ended."
            raise RequestError(Failure(Kind.CONFLICT, message, code="already_running"))
        from dragoman.admin.diagnosis import examine

        self._is_examining = True
        try:
            request.sink.begin(200, [LINES, *response_headers(request)])
            async with aclosing(examine(self._gateway.runtime.config, self._environ)) as findings:
                async for finding in findings:
                    await request.sink.send(msgspec.json.encode(finding) + b"\n")
            request.sink.end()
        finally:
            self._is_examining = False


class Progress(Struct, frozen=True, tag_field="event", omit_defaults=True):
    """One line of the response: what to do, how long it may still take, and how it ended."""


class Waiting(Progress, frozen=True, tag="prompt"):
    link: str
    code: str = ""


class Remaining(Progress, frozen=True, tag="waiting"):
    seconds: float


class Done(Progress, frozen=True, tag="signed_in"):
    provider: str
    use: str
    overridden_by: str = ""


class Failed(Progress, frozen=True, tag="failed"):
    message: str


class SignInApi:
    """Changes accounts. A sign-in belongs to the response that reports it: closing that cancels the sign-in."""

    def __init__(self, gateway: Gateway, workers: EveryWorker, audit: AuditLog) -> None:
        self._gateway = gateway
        self._workers = workers
        self._audit = audit

    async def sign_in(self, request: RoutedRequest) -> None:
        from dragoman.admin.sign_in import SignInOptions, check_options  # seldom used, so not loaded at the start

        options = await read_body(request, SignInOptions)
        check_options(options)
        await self._audit.record(request, "accounts.sign_in", options.kind, {"method": options.method})
        request.sink.begin(200, [LINES, *response_headers(request)])
        async with aclosing(self._run(options)) as lines:
            async for line in lines:
                await request.sink.send(msgspec.json.encode(line) + b"\n")
        request.sink.end()

    async def end_cooldowns(self, request: RoutedRequest) -> None:
        """End the cooldowns of a provider, so that its credentials are used from the next request on."""
        Parameters(request.http.query, ())
        async with self._audit.recording(request, "accounts.end_cooldowns", request.rest):
            with convert_errors("id"):
                ended = await self._workers.end_cooldowns(request.rest)
        respond(request, {"ended": ended})

    async def _run(self, options: "SignInOptions") -> AsyncGenerator[Progress]:
        from dragoman.admin.sign_in import sign_in

        conversation = _Conversation()
        running = spawn(
            sign_in(self._gateway.runtime.config, options, conversation), name=f"sign-in with {options.kind}"
        )
        running.add_done_callback(lambda _: conversation.lines.put_nowait(None))
        try:
            while (line := await conversation.lines.get()) is not None:
                yield line
            signed_in = running.result()
            await self._workers.use_account(signed_in.provider)
            yield Done(signed_in.provider, signed_in.use.value, signed_in.overridden_by)
        except (AdminError, CredentialError, ConnectionLost, UpstreamTimeout) as error:
            yield Failed(redact(str(error)))
        finally:
            running.cancel()


class _Conversation:
    """Passes on what the user must be shown."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[Progress | None] = asyncio.Queue()

    def show_prompt(self, prompt: "Prompt") -> None:
        self.lines.put_nowait(Waiting(prompt.link, prompt.code))

    def show_remaining(self, seconds: float) -> None:
        self.lines.put_nowait(Remaining(seconds))
