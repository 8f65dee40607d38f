"""One account comes in, with those who know its parts; its models, its plan and what `dragoman doctor` says go out."""

from datetime import UTC, datetime

from dragoman.accounts.refresher import CredentialRefresher
from dragoman.hub.failure import Kind, RequestError
from dragoman.providers.finding import BROKEN, OK, WARNING, Finding
from dragoman.providers.kiro.control import Breakdown, Control, ListedModel, UsageLimits
from dragoman.providers.kiro.credential import Credential, truncated
from dragoman.providers.kiro.hosts import Place
from dragoman.providers.kiro.profile import Profile
from dragoman.providers.quota import Quota

NEARLY_ALL = 0.9
REMEDIES = {
    Kind.CREDENTIAL: "`dragoman login kiro`",
    Kind.FORBIDDEN: "see the account's page at Kiro",
    Kind.LOST: "is the network up, and `endpoint` right? A proxy goes into `proxy`",
    Kind.TIMEOUT: "is the network up, and `endpoint` right? A proxy goes into `proxy`",
}


class KiroAccount:
    """One account, looked at from all sides."""

    def __init__(
        self, name: str, place: Place, keeper: CredentialRefresher[Credential], profile: Profile, control: Control
    ) -> None:
        self._name = name
        self._what = f"provider {name}"
        self.place = place
        self.keeper = keeper
        self.profile = profile
        self._control = control

    async def profile_arn(self) -> str | None:
        """The profile that requests name; whether they must is for the host to say."""
        return await self.profile.arn(await self.keeper.credential())

    async def models(self) -> list[ListedModel]:
        return await self._control.models(await self.profile_arn())

    async def usage(self) -> UsageLimits:
        """Plan, use and limits, asked now; RequestError where they are not to be had."""
        return await self._control.usage(await self.profile_arn())

    async def quota(self) -> list[Quota]:
        """What `dragoman usage --plans` shows; RequestError where it is not to be had."""
        limits = await self.usage()
        return [
            Quota(self._name, plan_of(limits), _resource(part), part.used, part.limit, _reset_date(limits, part))
            for part in limits.usage_breakdown_list or ()
        ]

    async def inspect(self) -> list[Finding]:
        try:
            credential = await self.keeper.credential()
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
        why = truncated(credential)
        return [Finding(f"{self._what} renewal", WARNING, why, REMEDIES[Kind.CREDENTIAL])] if why else []

    async def _usage(self) -> list[Finding]:
        what = f"{self._what} usage"
        try:
            limits = await self.usage()
        except RequestError as refused:
            return [Finding(what, WARNING, f"not to be had: {refused.failure.message}", "try again later")]
        return [_finding(what, limits, breakdown) for breakdown in limits.usage_breakdown_list or ()] or [
            Finding(what, OK, plan_of(limits))
        ]


def plan_of(limits: UsageLimits) -> str:
    info = limits.subscription_info
    return (info.subscription_title or info.type or "no plan") if info else "no plan"


def _finding(what: str, limits: UsageLimits, breakdown: Breakdown) -> Finding:
    limit = breakdown.limit
    share = f"{_number(breakdown.used)} of {_number(limit)}" if limit is not None else _number(breakdown.used)
    resets_on = _reset_date(limits, breakdown)
    reset = f", reset on {resets_on}" if resets_on else ""
    found = f"{plan_of(limits)}: {share} {_resource(breakdown)} used{reset}"
    if limit is not None and breakdown.used >= limit:
        return Finding(what, WARNING, found, "requests may be refused until the reset: another account, or overage")
    if limit is not None and breakdown.used >= limit * NEARLY_ALL:
        return Finding(what, WARNING, found, "nearly all is used")
    return Finding(what, OK, found)


def _resource(breakdown: Breakdown) -> str:
    return breakdown.display_name or (breakdown.resource_type or "requests").replace("_", " ").lower()


def _reset_date(limits: UsageLimits, breakdown: Breakdown) -> str | None:
    """Told in seconds since the epoch; some answers have milliseconds."""
    moment = breakdown.next_date_reset or limits.next_date_reset
    if not moment or not 0 < moment < 1e14:
        return None
    seconds = moment / 1000 if moment > 1e11 else moment
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
