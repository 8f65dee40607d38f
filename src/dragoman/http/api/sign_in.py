"""Sign in to an account of a provider from a browser: by a code, or by a link that leads back to this machine."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from dragoman.accounts.credential import CredentialError
from dragoman.admin.accounts import end_cooldowns
from dragoman.admin.errors import AdminError
from dragoman.flow.gateway import Gateway
from dragoman.framing.redaction import redact
from dragoman.http.api.audit import AuditLog
from dragoman.http.api.bodies import read_body
from dragoman.http.api.responses import convert_errors, respond, response_headers
from dragoman.http.api.state import LINES
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest
from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.net.tasks import spawn

if TYPE_CHECKING:
    from dragoman.admin.sign_in import Prompt, SignedIn

Method = Literal["code", "browser"]


class SignInRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`social`, `start_url` and `region` are for Kiro."""

    kind: Literal["kiro", "codex", "copilot"]
    method: Method = "code"
    social: Literal["google", "github"] | None = None
    start_url: str | None = None
    region: str | None = None


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

    def __init__(self, gateway: Gateway, audit: AuditLog) -> None:
        self._gateway = gateway
        self._audit = audit

    async def sign_in(self, request: RoutedRequest) -> None:
        options = await read_body(request, SignInRequest)
        _check(options)
        await self._audit.record(request, "accounts.sign_in", options.kind, {"method": options.method})
        request.exchange.start(200, [LINES, *response_headers(request)])
        async with aclosing(self._run(options)) as lines:
            async for line in lines:
                await request.exchange.send(msgspec.json.encode(line) + b"\n")
        request.exchange.finish()

    async def end_cooldowns(self, request: RoutedRequest) -> None:
        """Ask a provider again with the next request, whatever its credentials are cooling down for."""
        providers = self._gateway.runtime.providers
        await self._audit.record(request, "accounts.end_cooldowns", request.rest)
        with convert_errors("id"):
            respond(request, {"ended": end_cooldowns(providers, request.rest)})

    async def _run(self, options: SignInRequest) -> AsyncGenerator[Progress]:
        conversation = _Conversation()
        running = spawn(self._sign_in(options, conversation), name=f"sign-in with {options.kind}")
        running.add_done_callback(lambda _: conversation.lines.put_nowait(None))
        try:
            while (line := await conversation.lines.get()) is not None:
                yield line
            signed_in = running.result()
            yield Done(signed_in.provider, signed_in.use.value, signed_in.overridden_by)
        except (AdminError, CredentialError, ConnectionLost, UpstreamTimeout) as error:
            yield Failed(redact(str(error)))
        finally:
            running.cancel()

    async def _sign_in(self, options: SignInRequest, user: "_Conversation") -> "SignedIn":
        from dragoman.admin.sign_in import KiroOptions, sign_in_codex, sign_in_copilot, sign_in_kiro

        config = self._gateway.runtime.config
        match options.kind:
            case "kiro":
                kiro = KiroOptions(options.start_url, options.region, options.social)
                return await sign_in_kiro(config, kiro, None, user)
            case "codex":
                return await sign_in_codex(config, device=options.method == "code", file=None, user=user)
            case "copilot":
                return await sign_in_copilot(config, None, None, user)


class _Conversation:
    """Passes on what the user must be shown."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[Progress | None] = asyncio.Queue()

    def show_prompt(self, prompt: "Prompt") -> None:
        self.lines.put_nowait(Waiting(prompt.link, prompt.code))

    def show_remaining(self, seconds: float) -> None:
        self.lines.put_nowait(Remaining(seconds))


def _check(options: SignInRequest) -> None:
    if options.kind != "kiro":
        for name in ("social", "start_url", "region"):
            if getattr(options, name) is not None:
                raise BadRequest(f"/{name}", f"{name} is for kiro only, not for {options.kind}.")
    if options.kind == "copilot" and options.method != "code":
        raise BadRequest("/method", "GitHub signs in by a code only: leave method out.")
    if options.kind == "kiro" and (options.method == "browser") != (options.social is not None):
        raise BadRequest("/social", "Kiro needs social (google or github) with method browser, and only then.")
    if options.social is not None and options.start_url is not None:
        raise BadRequest("/start_url", "start_url cannot be used with social.")
