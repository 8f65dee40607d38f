"""Sign in to a provider's account, with the progress as it is made, and end cooldowns."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.net.tasks import spawn
from dragoman.operate import AdminError
from dragoman.operate.sign_in import Prompt, SignInOptions, check_options, sign_in
from dragoman.proxy.gateway import Gateway
from dragoman.server.api.operations import AdminAudit, EveryWorker
from dragoman.server.api.wire import JSON_LINES, JSON_LINES_TYPE, Operation, Write, convert_errors, response_headers
from dragoman.server.routes import RoutedRequest
from dragoman.translate.framing.redaction import redact
from dragoman.upstreams.credentials.credential import CredentialError


class SignInProgress(Struct, frozen=True, tag_field="event", omit_defaults=True):
    """One line of the response: what to do, how long it may still take, and how it ended."""


class Waiting(SignInProgress, frozen=True, tag="prompt"):
    link: str
    code: str = ""


class Remaining(SignInProgress, frozen=True, tag="waiting"):
    seconds: float


class Done(SignInProgress, frozen=True, tag="signed_in"):
    provider: str
    use: str
    overridden_by: str = ""


class SignInFailed(SignInProgress, frozen=True, tag="failed"):
    message: str


class EndedCooldowns(Struct, frozen=True):
    ended: int


SIGN_IN = Write(
    "Sign in to an account. Closing the response cancels the sign-in.",
    (Waiting, Remaining, Done, SignInFailed),
    media_types=(JSON_LINES,),
    body=SignInOptions,
)
END_COOLDOWNS = Operation("End the cooldowns of a provider, so that the next request asks it again.", (EndedCooldowns,))


class SignInApi:
    """Changes accounts. A sign-in belongs to the response that reports it: closing that cancels the sign-in."""

    def __init__(self, gateway: Gateway, workers: EveryWorker, audit: AdminAudit) -> None:
        self._gateway = gateway
        self._workers = workers
        self._audit = audit

    @SIGN_IN.handled_by
    async def sign_in(self, request: RoutedRequest) -> None:
        options = await SIGN_IN.read_body(request)
        check_options(options)
        await self._audit.record(request, "accounts.sign_in", options.kind, {"method": options.method})
        request.sink.begin(200, [JSON_LINES_TYPE, *response_headers(request)])
        async with aclosing(self._run(options)) as lines:
            async for line in lines:
                await request.sink.send(SIGN_IN.encode(line) + b"\n")
        request.sink.end()

    @END_COOLDOWNS.handled_by
    async def end_cooldowns(self, request: RoutedRequest) -> None:
        END_COOLDOWNS.read_query(request)
        async with self._audit.recording(request, "accounts.end_cooldowns", request.rest):
            with convert_errors("id"):
                ended = await self._workers.end_cooldowns(request.rest)
        END_COOLDOWNS.respond(request, EndedCooldowns(ended))

    async def _run(self, options: SignInOptions) -> AsyncGenerator[SignInProgress]:
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
            yield SignInFailed(redact(str(error)))
        finally:
            running.cancel()


class _Conversation:
    """Passes on what the user must be shown."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[SignInProgress | None] = asyncio.Queue()

    def show_prompt(self, prompt: Prompt) -> None:
        self.lines.put_nowait(Waiting(prompt.link, prompt.code))

    def show_remaining(self, seconds: float) -> None:
        self.lines.put_nowait(Remaining(seconds))
