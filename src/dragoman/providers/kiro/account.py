"""A Kiro account: its profile, its models, its plan, and what `dragoman doctor` reports of it."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from dragoman.accounts.refresher import CredentialRefresher
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.tasks import spawn
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding, Quota
from dragoman.providers.kiro.control import Breakdown, ControlClient, ListedModel, UsageLimits
from dragoman.providers.kiro.credential import Credential, describe_truncation
from dragoman.providers.kiro.hosts import AccountHosts, read_region

log = logging.getLogger(__name__)

RETRY_S = 300.0


class AccountProfile:
    """One account's profile. Asking is the last resort, and is done once for all who wait."""

    def __init__(
        self, name: str, configured: str | None, place: AccountHosts, control: ControlClient, clock: Callable[[], float]
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
        region, addresses = read_region(arn), self._place.now
        if region is None:
            message = "its profile ARN is none: arn:aws:codewhisperer:REGION:ACCOUNT:profile/ID is expected."
            raise RequestError(self._failure(message))
        if addresses.generation.is_regional and f".{region}." not in addresses.chat:
            message = f"its profile lives in {region}, its endpoint does not: take `endpoint` out, or mend it."
            raise RequestError(self._failure(message))
        return arn

    async def _ask(self) -> None:
        if self._asked_at is not None and self._clock() - self._asked_at < RETRY_S:
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
        return next((profile.arn for profile in listed if read_region(profile.arn)), None)

    def _missing(self) -> Failure:
        now = self._place.now
        message = (
            f"the account has no profile, and {now.chat} answers nobody without one. Set `profile_arn`, or, "
            'for a Builder ID, endpoint = "https://q.us-east-1.amazonaws.com".'
        )
        return self._failure(message)

    def _failure(self, message: str) -> Failure:
        return Failure(Kind.FORBIDDEN, f"Provider {self._name!r}: {message}")


NEARLY_USED_SHARE = 0.9
REMEDIES = {
    Kind.CREDENTIAL: "`dragoman login kiro`",
    Kind.FORBIDDEN: "see the account's page at Kiro",
    Kind.LOST: "is the network up, and `endpoint` right? A proxy goes into `proxy`",
    Kind.TIMEOUT: "is the network up, and `endpoint` right? A proxy goes into `proxy`",
}


class KiroAccount:
    """One account, looked at from all sides."""

    def __init__(
        self,
        name: str,
        place: AccountHosts,
        refresher: CredentialRefresher[Credential],
        profile: AccountProfile,
        control: ControlClient,
    ) -> None:
        self._name = name
        self._what = f"provider {name}"
        self.place = place
        self.refresher = refresher
        self.profile = profile
        self._control = control

    async def profile_arn(self) -> str | None:
        """The profile that requests name; whether they must is for the host to say."""
        return await self.profile.arn(await self.refresher.get())

    async def models(self) -> list[ListedModel]:
        return await self._control.models(await self.profile_arn())

    async def usage(self) -> UsageLimits:
        """Plan, use and limits, asked now; RequestError where they are not to be had."""
        return await self._control.usage(await self.profile_arn())

    async def quota(self) -> list[Quota]:
        """What `dragoman usage --plans` shows; RequestError where it is not to be had."""
        limits = await self.usage()
        return [
            Quota(self._name, plan_name(limits), _resource_name(part), part.used, part.limit, _reset_date(limits, part))
            for part in limits.usage_breakdown_list or ()
        ]

    async def inspect(self) -> list[Finding]:
        try:
            credential = await self.refresher.get()
            arn = await self.profile.arn(credential)
            models = await self._control.models(arn)
        except RequestError as refused:
            failure = refused.failure
            return [Finding(self._what, BROKEN, failure.message, REMEDIES.get(failure.kind, "try again later"))]
        profile = "with its own profile" if arn else "without a profile"
        found = f"takes the credential ({credential.method.value}), {profile}, and lists {len(models)} models"
        return [Finding(self._what, OK, found), *self._refreshing(credential), *await self._usage()]

    def _refreshing(self, credential: Credential) -> list[Finding]:
        """A token that serves now, and whose looks tell that it cannot be renewed."""
        why = describe_truncation(credential)
        return [Finding(f"{self._what} renewal", WARNING, why, REMEDIES[Kind.CREDENTIAL])] if why else []

    async def _usage(self) -> list[Finding]:
        what = f"{self._what} usage"
        try:
            limits = await self.usage()
        except RequestError as refused:
            return [Finding(what, WARNING, f"not to be had: {refused.failure.message}", "try again later")]
        return [_make_finding(what, limits, breakdown) for breakdown in limits.usage_breakdown_list or ()] or [
            Finding(what, OK, plan_name(limits))
        ]


def plan_name(limits: UsageLimits) -> str:
    info = limits.subscription_info
    return (info.subscription_title or info.type or "no plan") if info else "no plan"


def _make_finding(what: str, limits: UsageLimits, breakdown: Breakdown) -> Finding:
    limit = breakdown.limit
    share = (
        f"{_format_number(breakdown.used)} of {_format_number(limit)}"
        if limit is not None
        else _format_number(breakdown.used)
    )
    resets_on = _reset_date(limits, breakdown)
    reset = f", reset on {resets_on}" if resets_on else ""
    found = f"{plan_name(limits)}: {share} {_resource_name(breakdown)} used{reset}"
    if limit is not None and breakdown.used >= limit:
        return Finding(what, WARNING, found, "requests may be refused until the reset: another account, or overage")
    if limit is not None and breakdown.used >= limit * NEARLY_USED_SHARE:
        return Finding(what, WARNING, found, "nearly all is used")
    return Finding(what, OK, found)


def _resource_name(breakdown: Breakdown) -> str:
    return breakdown.display_name or (breakdown.resource_type or "requests").replace("_", " ").lower()


def _reset_date(limits: UsageLimits, breakdown: Breakdown) -> str | None:
    """Told in seconds since the epoch; some answers have milliseconds."""
    moment = breakdown.next_date_reset or limits.next_date_reset
    if not moment or not 0 < moment < 1e14:
        return None
    seconds = moment / 1000 if moment > 1e11 else moment
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def _format_number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
