"""A Kiro account: its profile, its models, its plan, and what `dragoman doctor` reports of it."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from dragoman.config.settings import KiroProviderConfig
from dragoman.net.tasks import spawn
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.account_state import BROKEN, OK, WARNING, Finding, Quota
from dragoman.upstreams.credentials.refresher import CredentialRefresher
from dragoman.upstreams.kiro.credential import Credential, describe_truncation
from dragoman.upstreams.kiro.services import (
    AccountHosts,
    Breakdown,
    ControlClient,
    ListedModel,
    UsageLimits,
    read_region,
)

log = logging.getLogger(__name__)

RETRY_S = 300.0
NO_PROFILES = (Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.BAD_REQUEST)  # the answers to accounts that have none


class AccountProfile:
    """One account's profile: configured, stored with its token, or else fetched, once for all waiting requests.

    Profiles that circulate as defaults belong to other people, and are never used.
    """

    def __init__(
        self, config: KiroProviderConfig, hosts: AccountHosts, control: ControlClient, clock: Callable[[], float]
    ) -> None:
        self._name = config.name
        self._configured = config.profile_arn
        self.hosts = hosts
        self._control = control
        self._clock = clock
        self._found: str | None = None
        self._fetched_at: float | None = None
        self._list_failure: Failure | None = None  # why the profiles could not be listed, if that may change
        self._fetching: asyncio.Task[None] | None = None
        self._is_required = False  # the upstream has rejected a request without one

    async def arn(self, credential: Credential) -> str | None:
        """Return the profile's ARN; None if none is needed. Raises RequestError if it is missing or misplaced."""
        addresses = self.hosts.update(credential, self._found)
        known = self._configured or credential.profile_arn
        if known is None:
            needed = addresses.generation.needs_profile or self._is_required
            if self._found is None and (needed or not credential.builder_id):
                await self._fetch()
            if self._found is None:
                if needed:
                    raise RequestError(self._list_failure or self._missing_profile())
                return None
            self.hosts.update(credential, self._found)
        return self._check_region(known or self._found or "")

    def require(self) -> None:
        """Fetch the profile again for the next request: the upstream has rejected one without it."""
        self._is_required = True
        self._fetched_at = None

    def _check_region(self, arn: str) -> str:
        region, addresses = read_region(arn), self.hosts.current
        if region is None:
            message = "its profile ARN is not valid: arn:aws:codewhisperer:REGION:ACCOUNT:profile/ID is expected."
            raise RequestError(self._failure(message))
        if addresses.generation.is_regional and f".{region}." not in addresses.chat:
            message = f"its profile is in {region}, its endpoint is not: remove or correct `endpoint`."
            raise RequestError(self._failure(message))
        return arn

    async def _fetch(self) -> None:
        is_recent = self._fetched_at is not None and self._clock() - self._fetched_at < RETRY_S
        if is_recent and self._list_failure is None:
            return
        if self._fetching is None:
            self._fetching = spawn(self._fetch_all(), name=f"profiles of {self._name}")
        await asyncio.shield(self._fetching)

    async def _fetch_all(self) -> None:
        self._list_failure = None
        try:
            for root in self.hosts.control_urls():
                self._found = await self._first_at(root)
                if self._found is not None:
                    return
        finally:
            self._fetched_at = self._clock()
            self._fetching = None

    async def _first_at(self, root: str) -> str | None:
        try:
            listed = await self._control.list_profiles(root)
        except RequestError as refused:
            failure = refused.failure
            log.info("provider %s: cannot list profiles: %s", self._name, failure.kind.value)
            if failure.kind not in NO_PROFILES:
                self._list_failure = failure
            return None
        return next((profile.arn for profile in listed if read_region(profile.arn)), None)

    def _missing_profile(self) -> Failure:
        now = self.hosts.current
        message = (
            f"the account has no profile, and {now.chat} rejects requests without one. Set `profile_arn`, or, "
            'for a Builder ID, endpoint = "https://q.us-east-1.amazonaws.com".'
        )
        return self._failure(message)

    def _failure(self, message: str) -> Failure:
        return Failure(Kind.FORBIDDEN, f"Provider {self._name!r}: {message}")


NEARLY_USED_SHARE = 0.9
REMEDIES = {
    Kind.CREDENTIAL: "`dragoman login kiro`",
    Kind.FORBIDDEN: "see the account's page at Kiro",
    Kind.LOST: "check the network and `endpoint`; set `proxy` if there is one",
    Kind.TIMEOUT: "check the network and `endpoint`; set `proxy` if there is one",
}


class KiroAccount:
    """One account: its hosts, credential, profile and control service."""

    def __init__(
        self,
        name: str,
        refresher: CredentialRefresher[Credential],
        profile: AccountProfile,
        control: ControlClient,
    ) -> None:
        self._name = name
        self._what = f"provider {name}"
        self.hosts = profile.hosts
        self.refresher = refresher
        self.profile = profile
        self._control = control

    async def profile_arn(self) -> str | None:
        """Return the profile that requests name, if any."""
        return await self.profile.arn(await self.refresher.get())

    async def models(self) -> list[ListedModel]:
        return await self._control.list_models(await self.profile_arn())

    async def usage(self) -> UsageLimits:
        """Fetch plan, usage and limits. Raises RequestError if that fails."""
        return await self._control.read_usage(await self.profile_arn())

    async def read_quotas(self) -> list[Quota]:
        """Return what `dragoman usage --plans` shows. Raises RequestError if it cannot be read."""
        limits = await self.usage()
        return [
            Quota(self._name, plan_name(limits), _resource_name(part), part.used, part.limit, _reset_date(limits, part))
            for part in limits.usage_breakdown_list or ()
        ]

    async def inspect(self) -> list[Finding]:
        try:
            credential = await self.refresher.get()
            arn = await self.profile.arn(credential)
            models = await self._control.list_models(arn)
        except RequestError as refused:
            failure = refused.failure
            return [Finding(self._what, BROKEN, failure.message, REMEDIES.get(failure.kind, "try again later"))]
        profile = "with its own profile" if arn else "without a profile"
        found = f"accepts the credential ({credential.method.value}), {profile}, and lists {len(models)} models"
        return [Finding(self._what, OK, found), *self._check_renewal(credential), *await self._check_usage()]

    def _check_renewal(self, credential: Credential) -> list[Finding]:
        """Warn of a token that works now but cannot be renewed."""
        why = describe_truncation(credential)
        return [Finding(f"{self._what} renewal", WARNING, why, REMEDIES[Kind.CREDENTIAL])] if why else []

    async def _check_usage(self) -> list[Finding]:
        what = f"{self._what} usage"
        try:
            limits = await self.usage()
        except RequestError as refused:
            return [Finding(what, WARNING, f"cannot be read: {refused.failure.message}", "try again later")]
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
        return Finding(
            what, WARNING, found, "requests may be rejected until the reset: use another account, or overage"
        )
    if limit is not None and breakdown.used >= limit * NEARLY_USED_SHARE:
        return Finding(what, WARNING, found, "nearly all of it is used")
    return Finding(what, OK, found)


def _resource_name(breakdown: Breakdown) -> str:
    return breakdown.display_name or (breakdown.resource_type or "requests").replace("_", " ").lower()


def _reset_date(limits: UsageLimits, breakdown: Breakdown) -> str | None:
    """Format the reset date, which comes in seconds or in milliseconds since the epoch."""
    moment = breakdown.next_date_reset or limits.next_date_reset
    if not moment or not 0 < moment < 1e14:
        return None
    seconds = moment / 1000 if moment > 1e11 else moment
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def _format_number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
