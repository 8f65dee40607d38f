"""A start address comes in; a code and a link for the person go out, and once they have agreed, a credential."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman.hub.failure import Kind
from dragoman.providers.kiro.asking import Line, Told
from dragoman.providers.kiro.credential import BUILDER_ID_START, Method, Unusable
from dragoman.providers.kiro.json_file import Table
from dragoman.providers.kiro.moments import format_moment
from dragoman.providers.kiro.refresh import LIFE_S, Declined, granted, objection
from dragoman.providers.kiro.signing_in import LoginFailed

T = TypeVar("T")

CLIENT_NAME = "dragoman"
SCOPES = ("completions", "analysis", "conversations", "transformations", "taskassist")
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
SLOW_DOWN_S = 5.0
LEAST_INTERVAL_S = 0.1
MAX_LIFE_S = 3600.0

ENDINGS = {
    "expired_token": "the code has expired before anyone confirmed it: start again",
    "access_denied": "the request was denied in the browser",
    "invalid_grant": "the code is not valid any more: start again",
}


class Registered(Struct, rename="camel"):
    client_id: str
    client_secret: str
    client_secret_expires_at: float = 0.0


class Prompt(Struct, rename="camel"):
    """What the person is shown, and how long it is good for."""

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
        line: Line,
        root: str,
        start_url: str = BUILDER_ID_START,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._line = line
        self._root = root
        self._start_url = start_url
        self._sleep = sleep

    async def begin(self) -> tuple[Registered, Prompt]:
        registration = {
            "clientName": CLIENT_NAME,
            "clientType": "public",
            "scopes": [f"codewhisperer:{scope}" for scope in SCOPES],
            "grantTypes": [DEVICE_CODE, "refresh_token"],
            "issuerUrl": self._start_url,
        }
        client = _read(await self._post("/client/register", registration), Registered)
        asked = {"clientId": client.client_id, "clientSecret": client.client_secret, "startUrl": self._start_url}
        return client, _read(await self._post("/device_authorization", asked), Prompt)

    async def wait(self, client: Registered, prompt: Prompt, tick: Callable[[float], None]) -> Table:
        """Polls until the person has decided; `tick` is told how many seconds are left."""
        question = {
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "grantType": DEVICE_CODE,
            "deviceCode": prompt.device_code,
        }
        interval = max(prompt.interval, LEAST_INTERVAL_S)
        left = min(prompt.expires_in, MAX_LIFE_S)
        while left > 0:
            tick(left)
            await self._sleep(interval)
            left -= interval
            try:
                return self._credential(client, await self._line.post(f"{self._root}/token", question))
            except Declined as declined:
                interval += _extra_wait(declined)
            except Unusable as unheard:
                if unheard.kind is Kind.UPSTREAM:
                    raise LoginFailed(str(unheard)) from unheard
        raise LoginFailed(ENDINGS["expired_token"])

    async def _post(self, path: str, question: object) -> Told:
        try:
            return await self._line.post(self._root + path, question)
        except Unusable as lost:
            raise LoginFailed(str(lost)) from lost

    def _credential(self, client: Registered, told: Told) -> Table:
        tokens = granted(told)
        return {
            "accessToken": tokens.accessToken,
            "refreshToken": tokens.refreshToken or "",
            "expiresAt": format_moment(self._line.clock.now() + (tokens.expiresIn or LIFE_S)),
            "authMethod": Method.OIDC.value,
            "provider": "BuilderId" if self._start_url == BUILDER_ID_START else "Enterprise",
            "startUrl": self._start_url,
            "clientId": client.client_id,
            "clientSecret": client.client_secret,
            "clientSecretExpiresAt": client.client_secret_expires_at or None,
        }


def _extra_wait(declined: Declined) -> float:
    """How much longer to wait between questions from now on; LoginFailed where more of them are no use."""
    match declined.code:
        case "authorization_pending" | "AuthorizationPendingException":
            return 0.0
        case "slow_down" | "SlowDownException":
            return SLOW_DOWN_S
        case code:
            raise LoginFailed(ENDINGS.get(code, f"the sign-in was refused ({code})"))


def _read(told: Told, kind: type[T]) -> T:
    if told.status != 200:
        raise LoginFailed(f"the sign-in service refused ({objection(told)}): are --start-url and --region right?")
    try:
        return msgspec.json.decode(told.body, type=kind)
    except msgspec.MsgspecError as error:
        raise LoginFailed("the sign-in service gave an answer that cannot be read") from error
