"""Signing in to Kiro: by a device code, or with Google or GitHub in a browser."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from dragoman.accounts.credential import CredentialError, Table, TokenRejected, format_timestamp
from dragoman.accounts.login import (
    BROWSER_TIMEOUT_S,
    DEVICE_CODE,
    SLOW_DOWN_S,
    BrowserCallback,
    LoginFailed,
    PollPace,
    Sleep,
    Tick,
    make_proof,
    poll,
    wait_for_browser_code,
)
from dragoman.accounts.service_client import ServiceClient, ServiceResponse
from dragoman.framing.jsonread import JSON_ERRORS
from dragoman.hub.failure import Kind
from dragoman.providers.kiro.credential import BUILDER_ID_START, DEFAULT_LIFE_S, Method, read_error_code, read_tokens

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
        client = _parse_response(await self._post("/client/register", registration), Registration)
        authorization = {
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "startUrl": self._start_url,
        }
        return client, _parse_response(await self._post("/device_authorization", authorization), Prompt)

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

    async def _post(self, path: str, body: object) -> ServiceResponse:
        try:
            return await self._service.post(self._root + path, body)
        except CredentialError as lost:
            raise LoginFailed(str(lost)) from lost

    def _credential(self, client: Registration, response: ServiceResponse) -> Table:
        if response.status >= 500:  # a server error while the person decides is temporary
            raise CredentialError(f"the token service responded with HTTP {response.status}", Kind.OVERLOADED)
        tokens = read_tokens(response)
        return {
            "accessToken": tokens.accessToken,
            "refreshToken": tokens.refreshToken or "",
            "expiresAt": format_timestamp(self._service.clock.now() + (tokens.expiresIn or DEFAULT_LIFE_S)),
            "authMethod": Method.OIDC.value,
            "provider": "BuilderId" if self._start_url == BUILDER_ID_START else "Enterprise",
            "startUrl": self._start_url,
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "clientSecretExpiresAt": client.client_secret_expires_at or None,
        }


def _parse_response(response: ServiceResponse, kind: type[T]) -> T:
    if response.status != 200:
        raise LoginFailed(
            f"the sign-in service rejected the request ({read_error_code(response)}): check --start-url and --region"
        )
    try:
        return msgspec.json.decode(response.body, type=kind)
    except JSON_ERRORS as error:
        raise LoginFailed("the sign-in service's response cannot be parsed") from error


PROVIDERS = {"google": "Google", "github": "Github"}
CALLBACK = "/oauth/callback"


class SocialLogin:
    """PKCE with a listener on the loopback interface, to which the browser brings the code."""

    def __init__(self, service: ServiceClient, root: str, provider: str, timeout_s: float = BROWSER_TIMEOUT_S) -> None:
        self._service = service
        self._root = root
        self._provider = PROVIDERS[provider]
        self._callback = BrowserCallback(CALLBACK, timeout_s=timeout_s)
        self._proof = make_proof()

    async def run(self, show: Callable[[str], None]) -> Table:
        """Sign in; `show` is called with the link to open."""
        code, back = await wait_for_browser_code(self._callback, self._proof, show, self._link)
        return await self._exchange_code(code, back)

    def _link(self, back: str) -> str:
        query = {
            "idp": self._provider,
            "redirect_uri": back,
            "code_challenge": self._proof.challenge,
            "code_challenge_method": "S256",
            "state": self._proof.state,
        }
        return f"{self._root}/login?{urlencode(query)}"

    async def _exchange_code(self, code: str, back: str) -> Table:
        body = {"code": code, "code_verifier": self._proof.verifier, "redirect_uri": back}
        try:
            tokens = read_tokens(await self._service.post(f"{self._root}/oauth/token", body))
        except TokenRejected as rejected:
            raise LoginFailed(f"the sign-in was rejected ({rejected.code})") from rejected
        except CredentialError as error:
            raise LoginFailed(str(error)) from error
        table: Table = {
            "accessToken": tokens.accessToken,
            "refreshToken": tokens.refreshToken or "",
            "expiresAt": format_timestamp(self._service.clock.now() + (tokens.expiresIn or DEFAULT_LIFE_S)),
            "authMethod": Method.DESKTOP.value,
            "provider": self._provider,
        }
        return {**table, "profileArn": tokens.profileArn} if tokens.profileArn else table
