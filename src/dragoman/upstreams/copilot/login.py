"""Signing in with GitHub by a device code."""

import asyncio

from msgspec import Struct

from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.copilot.credential import TokenResponse, renewable_fields
from dragoman.upstreams.credentials.credential import CredentialError, Table, TokenRejected
from dragoman.upstreams.credentials.login import (
    DEVICE_CODE,
    AuthorizationPending,
    LoginFailed,
    PollPace,
    Sleep,
    Tick,
    login_failures,
    poll,
)
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse

SCOPE = "read:user"


class Prompt(Struct):
    """What the person is shown, and how long it is valid."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float = 900.0
    interval: float = 5.0


class DeviceLogin:
    def __init__(self, service: ServiceClient, root: str, client_id: str, sleep: Sleep = asyncio.sleep) -> None:
        self._service = service
        self._root = root
        self._client_id = client_id
        self._sleep = sleep

    async def begin(self) -> Prompt:
        form = {"client_id": self._client_id, "scope": SCOPE}
        with login_failures():
            response = await self._service.post_form(f"{self._root}/login/device/code", form)
        prompt = response.parse(Prompt)
        if prompt is None:
            raise LoginFailed(
                f"GitHub rejected the request ({response.error_code}): is the client id right, and its device flow on?"
            )
        return prompt

    async def wait(self, prompt: Prompt, tick: Tick) -> Table:
        """Wait until the person has confirmed; return the entry for the credential file."""
        form = {"client_id": self._client_id, "device_code": prompt.device_code, "grant_type": DEVICE_CODE}

        async def ask() -> TokenResponse:
            return _read_token(await self._service.post_form(f"{self._root}/login/oauth/access_token", form))

        answer = await poll(ask, PollPace(prompt.interval, prompt.expires_in, self._sleep), tick)
        entry: Table = {"oauth_token": answer.access_token, "auth": "direct"}  # only editors' apps exchange tokens
        if not answer.refresh_token or answer.expires_in is None:
            return entry
        expires_at = self._service.clock.now() + answer.expires_in
        renews = renewable_fields(answer.access_token, answer.refresh_token, expires_at)
        return {**entry, **renews, "client_id": self._client_id}


def _read_token(response: ServiceResponse) -> TokenResponse:
    answer = response.parse(TokenResponse)
    if answer is None:
        raise CredentialError(f"GitHub responded with HTTP {response.status}", Kind.OVERLOADED)
    if answer.access_token:
        return answer
    if answer.error in ("authorization_pending", "slow_down"):
        raise AuthorizationPending(slower=answer.error == "slow_down", interval_s=answer.interval)
    if not answer.error and (response.status >= 500 or response.status == 429):
        raise CredentialError(f"GitHub responded with HTTP {response.status}", Kind.OVERLOADED)
    raise TokenRejected(answer.error or f"HTTP {response.status}")
