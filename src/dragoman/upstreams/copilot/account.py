"""A Copilot account: its models as last listed, and how much of its plan is used."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw, Struct

from dragoman.net.headers import Headers
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.profiles.model_table import normalise_name
from dragoman.translate.protocols.chat.errors import read_failure as read_failure
from dragoman.upstreams.account_state import AccountLimits, AllowanceWindow, Quota
from dragoman.upstreams.copilot.credential import Session
from dragoman.upstreams.credentials.credential import parse_timestamp
from dragoman.upstreams.credentials.service_client import ServiceResponse
from dragoman.upstreams.provider import ModelInfo

FIRST_LIST_TIMEOUT_S = 5.0  # how long a first request waits for the list, which says which protocols a model has
PATHS = {"/v1/messages": "messages", "/responses": "responses", "/chat/completions": "chat"}  # preferred first
UNLISTED = ("chat",)
SETTINGS = "https://github.com/settings/copilot/features"


class _Limits(Struct):
    max_context_window_tokens: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None


class _Capabilities(Struct):
    type: str | None = None
    limits: _Limits | None = None


class _Policy(Struct):
    state: str | None = None


class _Model(Struct):
    id: str
    name: str = ""
    vendor: str = ""
    policy: _Policy | None = None
    supported_endpoints: list[str] | None = None
    capabilities: _Capabilities | None = None


class _Page(Struct):
    data: list[Raw] = []


class _Known(Struct, frozen=True):
    protocols: tuple[str, ...]
    window: int | None


class ModelCache:
    """The models as last listed."""

    def __init__(self, fetch_list: Callable[[], Awaitable[bytes]]) -> None:
        self._fetch_list = fetch_list
        self._known: dict[str, _Known] = {}
        self.locked: tuple[str, ...] = ()  # ids of models whose terms the account's owner must accept first
        self._has_tried = False
        self._fetching = asyncio.Lock()

    async def fetch(self) -> tuple[ModelInfo, ...]:
        """Fetch the list. Raises RequestError if that fails; the old list then stays."""
        try:
            listed, self.locked = _parse_list(await self._fetch_list())
        finally:
            self._has_tried = True
        self._known = {
            model.id: _Known(_protocols(model), _limits(model).max_context_window_tokens) for model in listed
        }
        return tuple(_info(model) for model in listed)

    async def find_protocols(self, model: str) -> tuple[str, ...]:
        """Return a model's protocols; only Messages if it is one: others omit cached tokens and thinking.

        Raises RequestError for a model whose terms are not accepted.
        """
        if not self._has_tried:
            with contextlib.suppress(TimeoutError, RequestError):
                async with asyncio.timeout(FIRST_LIST_TIMEOUT_S), self._fetching:
                    if not self._has_tried:
                        await self.fetch()
        known = self._known.get(model)
        if known is None and model in self.locked:
            message = f"The terms of {model!r} are not accepted. The account's owner can accept them at {SETTINGS}"
            raise RequestError(Failure(Kind.NOT_FOUND, message, code="model_not_found", at="/model"))
        return known.protocols if known else UNLISTED

    def rename(self, name: str) -> str:
        """Return the listed id that a name means: `claude-sonnet-4-5-20250929` is Copilot's `claude-sonnet-4.5`."""
        if name in self._known:
            return name
        normal = normalise_name(name)
        return next((id for id in self._known if normalise_name(id) == normal), name)

    def context_window(self, model: str) -> int | None:
        known = self._known.get(model)
        return known.window if known else None


def _parse_list(body: bytes) -> tuple[list[_Model], tuple[str, ...]]:
    """Return the usable models, and the ids of those whose terms are not accepted.

    Entries that cannot be parsed or are not for chat are skipped.
    """
    listed: list[_Model] = []
    locked: list[str] = []
    for raw in msgspec.json.decode(body, type=_Page).data:
        try:
            model = msgspec.json.decode(raw, type=_Model)
        except JSON_ERRORS:
            continue
        kind = model.capabilities.type if model.capabilities else None
        if not model.id or kind not in (None, "chat"):
            continue
        if model.policy is not None and model.policy.state != "enabled":
            locked.append(model.id)
        else:
            listed.append(model)
    return listed, tuple(locked)


def _protocols(model: _Model) -> tuple[str, ...]:
    if model.supported_endpoints is None:
        return UNLISTED
    protocols = tuple(name for path, name in PATHS.items() if path in model.supported_endpoints)
    if "messages" in protocols:
        return ("messages",)
    return protocols or UNLISTED


def _limits(model: _Model) -> _Limits:
    return (model.capabilities.limits if model.capabilities else None) or _Limits()


def _info(model: _Model) -> ModelInfo:
    limits = _limits(model)
    return ModelInfo(
        id=model.id,
        name=model.name,
        owned_by=model.vendor or "copilot",
        max_input=limits.max_prompt_tokens or limits.max_context_window_tokens,
        max_output=limits.max_output_tokens,
    )


PLAN_PATH = "/copilot_internal/user"


class _Snapshot(Struct):
    entitlement: float | None = None
    remaining: float | None = None  # negative if more was used, and is paid for
    unlimited: bool | None = None


class _User(Struct):
    copilot_plan: str | None = None
    quota_reset_date: str | None = None
    quota_snapshots: dict[str, _Snapshot | None] | None = None


def find_github_token(session: Session) -> str:
    """Return the GitHub token of a session, also where a Copilot token was exchanged for it."""
    exchanged = session.refresh_token and not session.client_id
    return session.refresh_token if exchanged else session.access_token


def read_quotas(name: str, response: ServiceResponse) -> list[Quota]:
    """Return what `dragoman usage --plans` shows. Raises RequestError if GitHub's response cannot be used."""
    if response.status != 200:
        raise RequestError(read_failure(response.status, {}, response.body))
    user = response.parse_account(_User, "GitHub's")
    plan, resets_on = user.copilot_plan or "unknown", user.quota_reset_date
    return [
        Quota(name, plan, what.replace("_", " "), *_read_used(snapshot), resets_on)
        for what, snapshot in (user.quota_snapshots or {}).items()
        if snapshot is not None
    ]


def _read_used(snapshot: _Snapshot) -> tuple[float, float | None]:
    """Return how much is used, and of how much; None if it is unlimited."""
    if snapshot.unlimited or snapshot.entitlement is None:
        return 0.0, None
    left = snapshot.entitlement if snapshot.remaining is None else snapshot.remaining
    return snapshot.entitlement - left, snapshot.entitlement


SNAPSHOT = b"x-quota-snapshot-"
UNLIMITED = "-1"


def read_limits(headers: Headers) -> AccountLimits | None:
    """Return the limits in the headers, or None."""
    windows: dict[str, AllowanceWindow] = {}
    for name, value in headers:
        if name.startswith(SNAPSHOT):
            fields = {key: values[-1] for key, values in parse_qs(value.decode("latin-1")).items()}
            windows[name.removeprefix(SNAPSHOT).decode("latin-1")] = _read_window(fields)
    return AccountLimits(windows) if windows else None


def _read_window(fields: dict[str, str]) -> AllowanceWindow:
    try:
        left = float(fields.get("rem", "100"))
    except ValueError:
        left = 100.0
    reset = fields.get("rst", "")
    resets_at = parse_timestamp(reset if "T" in reset else f"{reset}T00:00:00Z")
    return AllowanceWindow(100.0 - left, resets_at=resets_at, unlimited=fields.get("ent") == UNLIMITED)
