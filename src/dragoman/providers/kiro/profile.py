"""An account comes in; the name of its own profile goes out: configured, stored with its token, or asked for.

Profiles that circulate as defaults belong to others, and are never used.
"""

import asyncio
import logging
from collections.abc import Callable

from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.net.tasks import spawn
from dragoman.providers.kiro.control import Control
from dragoman.providers.kiro.credential import Credential
from dragoman.providers.kiro.hosts import Addresses, region_of

log = logging.getLogger(__name__)

ASK_AGAIN_S = 300.0

CANNOT_BE = "the profile ARN {where} is none: arn:aws:codewhisperer:REGION:ACCOUNT:profile/ID is expected."


class Profile:
    """One account's profile. Asking is the last resort, and is done once for all who wait."""

    def __init__(
        self, name: str, configured: str | None, addresses: Addresses, control: Control, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._configured = configured
        self._addresses = addresses
        self._control = control
        self._clock = clock
        self._found: str | None = None
        self._asked_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._demanded = False  # the upstream has said that it wants one

    async def arn(self, credential: Credential) -> str | None:
        """None where there is none and none is needed; Refused where one is needed, or is for another region."""
        known = self.known(credential)
        if known is not None:
            return known
        needed = self._addresses.generation.needs_profile or self._demanded
        if needed or not credential.builder_id:
            await self._ask()
        if self._found is None and needed:
            raise Refused(self._missing())
        return self._found

    def known(self, credential: Credential) -> str | None:
        """What is known without asking, checked."""
        for arn, where in ((self._configured, "in profile_arn"), (credential.profile_arn, "beside its token")):
            if arn:
                return self._fitting(arn, where)
        return self._found

    def demand(self) -> None:
        """The upstream refused a request for want of a profile: the next one asks, whatever was found before."""
        self._demanded = True
        self._asked_at = None

    def _fitting(self, arn: str, where: str) -> str:
        region = region_of(arn)
        if region is None:
            raise Refused(self._failure(CANNOT_BE.format(where=where)))
        if self._addresses.generation.name != "elsewhere" and f".{region}." not in self._addresses.chat:
            message = f"its profile lives in {region}, its endpoint does not: set `region`, or mend `endpoint`."
            raise Refused(self._failure(message))
        return arn

    async def _ask(self) -> None:
        if self._asked_at is not None and self._clock() - self._asked_at < ASK_AGAIN_S:
            return
        if self._asking is None:
            self._asking = spawn(self._list(), name=f"profiles of {self._name}")
        await asyncio.shield(self._asking)

    async def _list(self) -> None:
        try:
            listed = [profile.arn for profile in await self._control.profiles()]
        except Refused as refused:  # a Builder ID has none, and is told so with a 403
            log.info("provider %s: profiles are not to be had: %s", self._name, refused.failure.kind.value)
            listed = []
        finally:
            self._asked_at = self._clock()
            self._asking = None
        usable = [arn for arn in listed if region_of(arn)]
        near = [arn for arn in usable if region_of(arn) == self._addresses.region]
        self._found = next(iter(near or usable), None)

    def _missing(self) -> Failure:
        message = (
            f"the account has no profile in {self._addresses.region}, and {self._addresses.generation.name} hosts "
            "answer nobody without one. Set `profile_arn` or another `region`; a Builder ID can use "
            'endpoint = "https://q.us-east-1.amazonaws.com" instead.'
        )
        return self._failure(message)

    def _failure(self, message: str) -> Failure:
        return Failure(Kind.FORBIDDEN, f"Provider {self._name!r}: {message}")
