"""A ChatGPT account: its models, its plan, and its limits as the response headers report them."""

import re
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import CodexProviderConfig
from dragoman.net.headers import Header, Headers
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.profile import EFFORTS
from dragoman.translate.protocols.responses.errors import read_failure as read_failure
from dragoman.translate.protocols.responses.wire import ResponsesOptions
from dragoman.upstreams.account_state import (
    BROKEN,
    OK,
    WARNING,
    AccountLimits,
    AllowanceWindow,
    Credits,
    Finding,
    Quota,
)
from dragoman.upstreams.codex.credential import Credential
from dragoman.upstreams.codex.request_rules import ULTRA
from dragoman.upstreams.credentials.credential import format_timestamp
from dragoman.upstreams.credentials.refresher import CredentialRefresher
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse
from dragoman.upstreams.provider import ModelInfo

T = TypeVar("T")

HIDDEN = frozenset({"hide", "hidden", "none"})
NEARLY_USED_PERCENT = 90.0
END_OF_TIME = 1e11  # seconds; a larger number is not a time


class _Level(Struct):
    effort: str = ""


class _Model(Struct):
    slug: str = ""
    display_name: str | None = None
    visibility: str | None = None
    context_window: int | None = None
    supported_reasoning_levels: list[_Level | str] | None = None
    supports_reasoning_summary_parameter: bool | None = None


class _Models(Struct):
    models: list[_Model] = []


class _Window(Struct):
    used_percent: float | None = None
    limit_window_seconds: float | None = None
    reset_at: float | None = None


class _RateLimit(Struct):
    limit_reached: bool | None = None
    primary_window: _Window | None = None
    secondary_window: _Window | None = None


class _Usage(Struct):
    plan_type: str | None = None
    rate_limit: _RateLimit | None = None


def _read_options(model: _Model) -> ResponsesOptions:
    """Return what the model accepts; `ultra` is Codex's name for an effort that its backend calls `max`."""
    levels = [level if isinstance(level, str) else level.effort for level in model.supported_reasoning_levels or ()]
    named = {"max" if level == ULTRA else level for level in levels}
    known = tuple(effort for effort in EFFORTS if effort in named)
    return ResponsesOptions(known or EFFORTS, model.supports_reasoning_summary_parameter is not False)


class CodexAccount:
    """One account's services. After a rejected credential, a request is repeated once if it can be renewed."""

    def __init__(
        self, config: CodexProviderConfig, service: ServiceClient, refresher: CredentialRefresher[Credential]
    ) -> None:
        self._name = config.name
        self._service = service
        self.refresher = refresher
        self._endpoint = config.endpoint or ""
        self._version = config.client_version
        self._options: dict[str, ResponsesOptions] = {}  # of the models as last listed

    async def models(self) -> tuple[ModelInfo, ...]:
        page = await self._fetch(f"{self._endpoint}/models?client_version={self._version}", _Models)
        self._options = {model.slug: _read_options(model) for model in page.models}
        return tuple(
            ModelInfo(model.slug, model.display_name or "", owned_by="openai", max_input=model.context_window)
            for model in page.models
            if model.slug and model.visibility not in HIDDEN
        )

    async def request_options(self, model: str) -> ResponsesOptions | None:
        """Return what the list says about reasoning; None until it has been read."""
        return self._options.get(model)

    async def inspect(self) -> list[Finding]:
        what = f"provider {self._name}"
        try:
            credential = await self.refresher.get()
            models = await self.models()
        except RequestError as refused:
            failure = refused.failure
            to_do = (
                "`dragoman login codex`"
                if failure.kind is Kind.CREDENTIAL
                else "is the network up? A proxy goes into `proxy`"
            )
            return [Finding(what, BROKEN, failure.message, to_do)]
        found = f"takes the credential (plan {credential.plan or 'unknown'}) and lists {len(models)} models"
        return [Finding(what, OK, found), await self._allowance(f"{what} usage")]

    async def read_quotas(self) -> list[Quota]:
        """Return what `dragoman usage --plans` shows. Raises RequestError if it cannot be read."""
        usage = await self._usage()
        plan = usage.plan_type or "unknown"
        return [
            Quota(
                self._name,
                plan,
                f"% of {_window_hours(window):g} hours",
                window.used_percent or 0.0,
                100.0,
                _format_reset(window),
            )
            for window in _windows(usage)
        ]

    async def _usage(self) -> _Usage:
        root = self._endpoint.removesuffix("/codex")
        return await self._fetch(f"{root}/wham/usage", _Usage)

    async def _allowance(self, what: str) -> Finding:
        try:
            usage = await self._usage()
        except RequestError as refused:
            return Finding(what, WARNING, f"cannot be read: {refused.failure.message}", "try again later")
        limit = usage.rate_limit or _RateLimit()
        windows = _windows(usage)
        used = [f"{one.used_percent or 0:g} % of {_window_hours(one):g} hours used" for one in windows]
        summary = ", ".join(used) or "no windows"
        if limit.limit_reached or any((window.used_percent or 0.0) >= NEARLY_USED_PERCENT for window in windows):
            return Finding(what, WARNING, summary, "nearly all of it is used, or all")
        return Finding(what, OK, summary)

    async def _fetch(self, url: str, kind: type[T]) -> T:
        async def send(credential: Credential) -> ServiceResponse:
            return await self._service.request("GET", url, authorization_headers(credential))

        return (await self.refresher.fetch(send, read_failure)).parse_account(kind, "the ChatGPT backend's")


def authorization_headers(credential: Credential) -> tuple[Header, ...]:
    headers: list[Header] = [(b"authorization", b"Bearer " + credential.access_token.encode())]
    if credential.account:
        headers.append((b"chatgpt-account-id", credential.account.encode()))
    if credential.fedramp:
        headers.append((b"x-openai-fedramp", b"true"))
    if credential.residency:
        headers.append((b"x-openai-internal-codex-residency", credential.residency.encode()))
    return tuple(headers)


def _windows(usage: _Usage) -> list[_Window]:
    limit = usage.rate_limit or _RateLimit()
    return [window for window in (limit.primary_window, limit.secondary_window) if window is not None]


def _window_hours(window: _Window) -> float:
    return (window.limit_window_seconds or 0.0) / 3600


def _format_reset(window: _Window) -> str | None:
    """Format to the minute, since a window may last only hours."""
    moment = window.reset_at or 0.0
    return format_timestamp(moment)[:16].replace("T", " ") if 0 < moment < END_OF_TIME else None


_USED = re.compile(r"x-(?P<limit>.+)-(?P<which>primary|secondary)-used-percent")
_TRUE = frozenset({"true", "1"})


class LimitTracker:
    """The account's limits as of the last response."""

    def __init__(self) -> None:
        self.limits: AccountLimits | None = None

    def update(self, headers: Headers, now: float) -> None:
        response = read_limits(headers, now)
        if response is not None:
            until = self.limits.exhausted_until if self.limits else None
            self.limits = replace(response, exhausted_until=until if until is not None and until > now else None)

    def set_exhausted(self, until: float) -> None:
        """Note that the upstream rejects requests until then."""
        self.limits = replace(self.limits or AccountLimits(), exhausted_until=until)


def read_codex_exhausted_until(headers: Headers, now: float) -> float | None:
    """Return when the allowance resets if the headers say that it is used up and there are no credits; else None."""
    response = read_limits(headers, now)
    if response is None or (response.credits is not None and (response.credits.has or response.credits.unlimited)):
        return None
    own = (response.windows[name] for name in ("primary", "secondary") if name in response.windows)
    full = [window.resets_at for window in own if window.used_percent >= 100 and window.resets_at is not None]
    return max((moment for moment in full if moment > now), default=None)


def read_limits(headers: Headers, now: float) -> AccountLimits | None:
    """Return the limits in the headers, or None. Limits other than Codex's own have names like `spark/primary`."""
    fields = {name.decode("latin-1"): value.decode("latin-1").strip() for name, value in headers}
    windows: dict[str, AllowanceWindow] = {}
    for name in fields:
        found = _USED.fullmatch(name)
        if found is None:
            continue
        window = _read_window(fields, name.removesuffix("used-percent"), now)
        if window is not None:
            own = found["limit"] == "codex"
            windows[found["which"] if own else f"{found['limit']}/{found['which']}"] = window
    credits = _read_credits(fields)
    plan = fields.get("x-codex-plan-type") or None
    if not windows and credits is None and plan is None:
        return None
    return AccountLimits(windows, credits, plan)


def _read_window(fields: dict[str, str], prefix: str, now: float) -> AllowanceWindow | None:
    used = _parse_number(fields.get(f"{prefix}used-percent"))
    minutes = _parse_number(fields.get(f"{prefix}window-minutes"))
    resets_at = _parse_number(fields.get(f"{prefix}reset-at"))
    after = _parse_number(fields.get(f"{prefix}reset-after-seconds"))
    if resets_at is None and after:
        resets_at = now + after
    if not used and not minutes and resets_at is None:
        return None  # this is how the backend writes that there is none
    return AllowanceWindow(used or 0.0, resets_at)


def _read_credits(fields: dict[str, str]) -> Credits | None:
    if "x-codex-credits-has-credits" not in fields:
        return None
    return Credits(
        fields["x-codex-credits-has-credits"].lower() in _TRUE,
        fields.get("x-codex-credits-unlimited", "").lower() in _TRUE,
    )


def _parse_number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
