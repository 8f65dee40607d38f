"""An account comes in; the name of its own profile goes out: configured, stored with its token, or asked for.

Profiles that circulate as defaults belong to others, and are never used.
"""

import asyncio
import logging
from collections.abc import Callable

from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.tasks import spawn
from dragoman.providers.kiro.control import Control
from dragoman.providers.kiro.credential import Credential
from dragoman.providers.kiro.hosts import Place, region_of

log = logging.getLogger(__name__)

ASK_AGAIN_S = 300.0


class Profile:
    """One account's profile. Asking is the last resort, and is done once for all who wait."""

    def __init__(
        self, name: str, configured: str | None, place: Place, control: Control, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._configured = configured
        self._place = place
        self._control = control
        self._clock = clock
        self._found: str | None = None
        self._asked_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._demanded = False  # the upstream has said that it wants one

    async def arn(self, credential: Credential) -> str | None:
        """None where there is none and none is needed; RequestError where one is needed, or is for another region."""
        addresses = self._place.follow(credential, self._found)
        told = self._configured or credential.profile_arn
        if told is None:
            needed = addresses.generation.needs_profile or self._demanded
            if self._found is None and (needed or not credential.builder_id):
                await self._ask()
            if self._found is None:
                if needed:
                    raise RequestError(self._missing())
                return None
            self._place.follow(credential, self._found)
        return self._fitting(told or self._found or "")

    def demand(self) -> None:
        """The upstream refused a request for want of a profile: the next one asks, whatever was found before."""
        self._demanded = True
        self._asked_at = None

    def _fitting(self, arn: str) -> str:
        region, addresses = region_of(arn), self._place.now
        if region is None:
            message = "its profile ARN is none: arn:aws:codewhisperer:REGION:ACCOUNT:profile/ID is expected."
            raise RequestError(self._failure(message))
        if addresses.generation.is_regional and f".{region}." not in addresses.chat:
            message = f"its profile lives in {region}, its endpoint does not: take `endpoint` out, or mend it."
            raise RequestError(self._failure(message))
        return arn

    async def _ask(self) -> None:
        if self._asked_at is not None and self._clock() - self._asked_at < ASK_AGAIN_S:
            return
        if self._asking is None:
            self._asking = spawn(self._list(), name=f"profiles of {self._name}")
        await asyncio.shield(self._asking)

    async def _list(self) -> None:
        try:
            for root in self._place.controls():
                self._found = await self._first(root)
                if self._found is not None:
                    return
        finally:
            self._asked_at = self._clock()
            self._asking = None

    async def _first(self, root: str) -> str | None:
        try:
            listed = await self._control.profiles(root)
        except RequestError as refused:  # a Builder ID has none, and is told so with a 403
            log.info("provider %s: profiles are not to be had: %s", self._name, refused.failure.kind.value)
            return None
        return next((profile.arn for profile in listed if region_of(profile.arn)), None)

    def _missing(self) -> Failure:
        now = self._place.now
        message = (
            f"the account has no profile, and {now.chat} answers nobody without one. Set `profile_arn`, or, "
            'for a Builder ID, endpoint = "https://q.us-east-1.amazonaws.com".'
        )
        return self._failure(message)

    def _failure(self, message: str) -> Failure:
        return Failure(Kind.FORBIDDEN, f"Provider {self._name!r}: {message}")
