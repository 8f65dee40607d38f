"""Signing in with ChatGPT: in a browser on this machine, or by a code on any device."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlencode

from msgspec import Struct

from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.codex.credential import Credential, merge_tokens, read_tokens, token_fields
from dragoman.upstreams.credentials.credential import CredentialError, Table, TokenRejected, format_timestamp
from dragoman.upstreams.credentials.login import (
    BROWSER_TIMEOUT_S,
    DENIED,
    AuthorizationPending,
    BrowserCallback,
    CodeLogin,
    LoginFailed,
    PollPace,
    Sleep,
    Tick,
    login_failures,
    poll,
)
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse

CALLBACK = "/auth/callback"
PORTS = (1455, 1457)  # the only ones registered
SCOPES = "openid profile email offline_access"
DEVICE_LIFE_S = 900.0
NOT_ENTITLED = "missing_codex_entitlement"


class App(Struct, frozen=True):
    """The sign-in service, and the app that is signed in to."""

    root: str
    client_id: str
    originator: str


class Prompt(Struct):
    """What the person is shown; the service sends `interval` as a string."""

    device_auth_id: str
    user_code: str = ""
    usercode: str = ""
    interval: str | float = "5"

    @property
    def code(self) -> str:
        return self.user_code or self.usercode

    @property
    def interval_s(self) -> float:
        try:
            return float(self.interval)
        except ValueError:
            return 5.0


class _Confirmed(Struct):
    authorization_code: str
    code_verifier: str


class AuthorizationCode(Struct, frozen=True):
    """What a sign-in ends with, to be exchanged for tokens."""

    code: str
    verifier: str  # of PKCE
    redirect_uri: str


class BrowserLogin(CodeLogin):
    def __init__(
        self, service: ServiceClient, app: App, ports: Sequence[int] = PORTS, timeout_s: float = BROWSER_TIMEOUT_S
    ) -> None:
        super().__init__(BrowserCallback(CALLBACK, ports, timeout_s, _reason))
        self._service = service
        self._app = app

    async def exchange(self, code: str, back: str) -> Table:
        return await exchange_code(self._service, self._app, AuthorizationCode(code, self.proof.verifier, back))

    def link(self, back: str) -> str:
        query = {
            "response_type": "code",
            "client_id": self._app.client_id,
            "redirect_uri": back,
            "scope": SCOPES,
            "code_challenge": self.proof.challenge,
            "code_challenge_method": "S256",
            "id_token_add_organizations": "true",
            "codex_cli_simplified_flow": "true",
            "state": self.proof.state,
            "originator": self._app.originator,
        }
        return f"{self._app.root}/oauth/authorize?{urlencode(query)}"


class DeviceLogin:
    """Sign-in by a code that is confirmed on another device; the service makes the PKCE pair itself."""

    def __init__(self, service: ServiceClient, app: App, sleep: Sleep = asyncio.sleep) -> None:
        self._service = service
        self._app = app
        self._sleep = sleep
        self.link = f"{app.root}/codex/device"

    async def begin(self) -> Prompt:
        with login_failures():
            response = await self._service.post(self._url("usercode"), {"client_id": self._app.client_id})
        if response.status == 404:
            raise LoginFailed("signing in by code is not enabled for this account: leave --device out")
        if response.status != 200:
            raise LoginFailed(f"the sign-in service rejected the request ({response.error_code})")
        prompt = response.parse(Prompt)
        if prompt is None:
            raise LoginFailed("the sign-in service's response cannot be parsed")
        return prompt

    async def wait(self, prompt: Prompt, tick: Tick) -> Table:
        question = {"device_auth_id": prompt.device_auth_id, "user_code": prompt.code}

        async def ask() -> _Confirmed:
            return _read_confirmation(await self._service.post(self._url("token"), question))

        found = await poll(ask, PollPace(prompt.interval_s, DEVICE_LIFE_S, self._sleep), tick)
        back = f"{self._app.root}/deviceauth/callback"
        granted = AuthorizationCode(found.authorization_code, found.code_verifier, back)
        with login_failures():
            return await exchange_code(self._service, self._app, granted)

    def _url(self, name: str) -> str:
        return f"{self._app.root}/api/accounts/deviceauth/{name}"


async def exchange_code(service: ServiceClient, app: App, granted: AuthorizationCode) -> Table:
    """Exchange the code for tokens; return them as our file stores them."""
    form = {
        "grant_type": "authorization_code",
        "code": granted.code,
        "redirect_uri": granted.redirect_uri,
        "client_id": app.client_id,
        "code_verifier": granted.verifier,
    }
    tokens = read_tokens(await service.post_form(f"{app.root}/oauth/token", form))
    credential = merge_tokens(Credential(), tokens, service.clock.now())
    return {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": {**token_fields(credential), "account_id": credential.account or None},
        "last_refresh": format_timestamp(service.clock.now()),
    }


def _read_confirmation(response: ServiceResponse) -> _Confirmed:
    if response.status == 200:
        confirmed = response.parse(_Confirmed)
        if confirmed is None:
            raise CredentialError("the sign-in service's response cannot be parsed", Kind.UPSTREAM)
        return confirmed
    code = response.error_code
    if response.status == 429:
        raise AuthorizationPending(slower=True)
    if response.status in (403, 404) and code not in ("access_denied", "expired_token"):
        raise AuthorizationPending
    if response.status >= 500:
        raise CredentialError(f"the sign-in service answered {code}", Kind.OVERLOADED)
    raise TokenRejected(code)


def _reason(fields: dict[str, str]) -> str:
    if NOT_ENTITLED in fields.get("error_description", ""):
        return "the account's plan does not include Codex"
    return DENIED
