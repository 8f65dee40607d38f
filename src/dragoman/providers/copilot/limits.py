"""Headers of Copilot come in; what the account has left goes out."""

from urllib.parse import parse_qs

from dragoman.accounts.timestamps import parse_timestamp
from dragoman.net.headers import Headers
from dragoman.providers.limits import Limits, Window

SNAPSHOT = b"x-quota-snapshot-"
UNLIMITED = "-1"


def read_limits(headers: Headers) -> Limits | None:
    """None where the answer says nothing of it."""
    windows: dict[str, Window] = {}
    for name, value in headers:
        if name.startswith(SNAPSHOT):
            fields = {key: values[-1] for key, values in parse_qs(value.decode("latin-1")).items()}
            windows[name.removeprefix(SNAPSHOT).decode("latin-1")] = _window(fields)
    return Limits(windows) if windows else None


def _window(fields: dict[str, str]) -> Window:
    try:
        left = float(fields.get("rem", "100"))
    except ValueError:
        left = 100.0
    reset = fields.get("rst", "")
    resets_at = parse_timestamp(reset if "T" in reset else f"{reset}T00:00:00Z")
    return Window(100.0 - left, resets_at=resets_at, unlimited=fields.get("ent") == UNLIMITED)
