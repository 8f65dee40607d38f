"""Signing in to Kiro: by a device code, or with Google or GitHub in a browser."""

import asyncio
from typing import TypeVar
from urllib.parse import urlencode

from msgspec import Struct

from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.credentials.credential import CredentialError, Table, format_timestamp
from dragoman.upstreams.credentials.login import (
    BROWSER_TIMEOUT_S,
    DEVICE_CODE,
    SLOW_DOWN_S,
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
from dragoman.upstreams.kiro.credential import BUILDER_ID_START, DEFAULT_LIFE_S, Method, TokenResponse, read_tokens

T = TypeVar("T")

CLIENT_NAME = "dragoman"
SCOPES = ("completions", "analysis", "conversations", "transformations", "taskassist")


class Registration(Struct, rename="camel"):
    client_id: str
    client_secret: str
    client_secret_expires_at: float = 0.0


class Prompt(Struct, rename="camel"):
    """What the person is shown, and how long it is valid."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = 600.0
    interval: float = SLOW_DOWN_S

    @property
    def link(self) -> str:
        return self.verification_uri_complete or self.verification_uri


class DeviceLogin:
    """The device flow of SSO OIDC, for a Builder ID or an organisation's identity centre."""

    def __init__(
        self,
        service: ServiceClient,
        root: str,
        start_url: str = BUILDER_ID_START,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._service = service
        self._root = root
        self._start_url = start_url
        self._sleep = sleep

    async def begin(self) -> tuple[Registration, Prompt]:
        registration = {
            "clientName": CLIENT_NAME,
            "clientType": "public",
            "scopes": [f"codewhisperer:{scope}" for scope in SCOPES],
            "grantTypes": [DEVICE_CODE, "refresh_token"],
            "issuerUrl": self._start_url,
        }
        client = await self._post("/client/register", registration, Registration)
        authorization = {
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "startUrl": self._start_url,
        }
        return client, await self._post("/device_authorization", authorization, Prompt)

    async def wait(self, client: Registration, prompt: Prompt, tick: Tick) -> Table:
        """Poll until the person has decided; `tick` is called with the seconds that are left."""
        body = {
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "grantType": DEVICE_CODE,
            "deviceCode": prompt.device_code,
        }

        async def ask() -> Table:
            return self._credential(client, await self._service.post(f"{self._root}/token", body))

        return await poll(ask, PollPace(prompt.interval, prompt.expires_in, self._sleep), tick)

    async def _post(self, path: str, body: object, kind: type[T]) -> T:
        with login_failures():
            response = await self._service.post(self._root + path, body)
        if response.status != 200:
            raise LoginFailed(
                f"the sign-in service rejected the request ({response.error_code}): check --start-url and --region"
            )
        answer = response.parse(kind)
        if answer is None:
            raise LoginFailed("the sign-in service's response cannot be parsed")
        return answer

    def _credential(self, client: Registration, response: ServiceResponse) -> Table:
        if response.status >= 500:  # a server error while the person decides is temporary
            raise CredentialError(f"the token service responded with HTTP {response.status}", Kind.OVERLOADED)
        return {
            **_token_fields(read_tokens(response), self._service.clock.now()),
            "authMethod": Method.OIDC.value,
            "provider": "BuilderId" if self._start_url == BUILDER_ID_START else "Enterprise",
            "startUrl": self._start_url,
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "clientSecretExpiresAt": client.client_secret_expires_at or None,
        }


def _token_fields(tokens: TokenResponse, now: float) -> Table:
    return {
        "accessToken": tokens.accessToken,
        "refreshToken": tokens.refreshToken or "",
        "expiresAt": format_timestamp(now + (tokens.expiresIn or DEFAULT_LIFE_S)),
    }


PROVIDERS = {"google": "Google", "github": "Github"}
CALLBACK = "/oauth/callback"


class SocialLogin(CodeLogin):
    """A sign-in with Google or GitHub."""

    def __init__(self, service: ServiceClient, root: str, provider: str, timeout_s: float = BROWSER_TIMEOUT_S) -> None:
        super().__init__(BrowserCallback(CALLBACK, timeout_s=timeout_s))
        self._service = service
        self._root = root
        self._provider = PROVIDERS[provider]

    def link(self, back: str) -> str:
        query = {
            "idp": self._provider,
            "redirect_uri": back,
            "code_challenge": self.proof.challenge,
            "code_challenge_method": "S256",
            "state": self.proof.state,
        }
        return f"{self._root}/login?{urlencode(query)}"

    async def exchange(self, code: str, back: str) -> Table:
        body = {"code": code, "code_verifier": self.proof.verifier, "redirect_uri": back}
        tokens = read_tokens(await self._service.post(f"{self._root}/oauth/token", body))
        named = {"authMethod": Method.DESKTOP.value, "provider": self._provider}
        table = {**_token_fields(tokens, self._service.clock.now()), **named}
        return {**table, "profileArn": tokens.profileArn} if tokens.profileArn else table
