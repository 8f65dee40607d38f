"""A Copilot account: how much of its plan is used, as GitHub and the response headers report it."""

from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from dragoman.accounts.service_client import ServiceResponse
from dragoman.accounts.timestamps import parse_timestamp
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.headers import Headers
from dragoman.protocols.chat.errors import read_failure as read_failure
from dragoman.providers.account_state import Limits, Quota, Window
from dragoman.providers.copilot.credential import Session

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
    try:
        user = msgspec.json.decode(response.body, type=_User)
    except msgspec.MsgspecError as error:
        raise RequestError(Failure(Kind.UPSTREAM, f"cannot parse GitHub's response: {error}")) from error
    plan, resets_on = user.copilot_plan or "unknown", user.quota_reset_date
    return [
        Quota(name, plan, what.replace("_", " "), *_used(snapshot), resets_on)
        for what, snapshot in (user.quota_snapshots or {}).items()
        if snapshot is not None
    ]


def _used(snapshot: _Snapshot) -> tuple[float, float | None]:
    """Return how much is used, and of how much; None if it is unlimited."""
    if snapshot.unlimited or snapshot.entitlement is None:
        return 0.0, None
    left = snapshot.entitlement if snapshot.remaining is None else snapshot.remaining
    return snapshot.entitlement - left, snapshot.entitlement


SNAPSHOT = b"x-quota-snapshot-"
UNLIMITED = "-1"


def read_limits(headers: Headers) -> Limits | None:
    """Return the limits in the headers, or None."""
    windows: dict[str, Window] = {}
    for name, value in headers:
        if name.startswith(SNAPSHOT):
            fields = {key: values[-1] for key, values in parse_qs(value.decode("latin-1")).items()}
            windows[name.removeprefix(SNAPSHOT).decode("latin-1")] = _read_window(fields)
    return Limits(windows) if windows else None


def _read_window(fields: dict[str, str]) -> Window:
    try:
        left = float(fields.get("rem", "100"))
    except ValueError:
        left = 100.0
    reset = fields.get("rst", "")
    resets_at = parse_timestamp(reset if "T" in reset else f"{reset}T00:00:00Z")
    return Window(100.0 - left, resets_at=resets_at, unlimited=fields.get("ent") == UNLIMITED)
