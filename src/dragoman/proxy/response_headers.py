"""The gateway's own headers on every reply, and the upstream's headers that are passed on."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter

import msgspec

from dragoman.net.headers import Header, Headers, names_in_connection
from dragoman.tenancy.limiter import RateLevel
from dragoman.translate.framing.known_secrets import Secrets, redact_known_in_fields
from dragoman.translate.hub.loss import Loss
from dragoman.translate.hub.ports import Client
from dragoman.translate.protocols import ACCOUNT_NAMES

CLIENT_ID = b"x-request-id"  # the id that the client has given to its request, or ours
OWN_ID = b"x-dragoman-request-id"  # always ours, by which rows, captures and log lines are found
MAX_DETAIL_BYTES = 8 * 1024  # some clients refuse a reply whose headers exceed 16 KiB in all
_name_of = itemgetter(0)  # of a field
NOT_ASCII = re.compile(r"[^\x20-\x7e]")

HOP_BY_HOP = frozenset(
    (
        b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade "
        b"content-length content-encoding set-cookie set-cookie2 alt-svc strict-transport-security date server "
        b"x-request-id x-dragoman-request-id"
    ).split()
)


# Headers about the upstream account, besides its name: its limits, and what is left of them.
ACCOUNT_MARKS = (b"ratelimit", b"rate-limit", b"quota")
ACCOUNT_PREFIXES = (b"x-codex-", b"retry-after-")
ACCOUNT_ENDS = (b"-used-percent", b"-window-minutes", b"-reset-at", b"-reset-after-seconds")
# They look like one of the above, and belong to the request: when to retry, and what Codex must echo within a turn.
NOT_OF_ACCOUNT = frozenset((b"retry-after-ms", b"x-codex-turn-state"))


def headers_to_forward(headers: Headers, secrets: Secrets = (), *, shows_account: bool = True) -> list[Header]:
    """Return the upstream's headers that concern the client; `shows_account`: those about the account, too."""
    fields = headers.fields
    places = _find_forwarded(tuple(map(_name_of, fields)), names_in_connection(headers), shows_account)
    return redact_known_in_fields(list(map(fields.__getitem__, places)), secrets)


@lru_cache(maxsize=64)
def _find_forwarded(names: tuple[bytes, ...], dropped: frozenset[bytes], shows_account: bool) -> tuple[int, ...]:
    """Return which of these headers are forwarded: the replies of an upstream have the same ones again and again."""
    return tuple(
        place
        for place, name in enumerate(names)
        if not _is_withheld(name) and name not in dropped and (shows_account or not _describes_account(name))
    )


def drop_account_headers(headers: Headers) -> Headers:
    """Return an upstream's headers without those about the gateway's account."""
    return Headers([field for field in headers if not _describes_account(field[0])])


@lru_cache(maxsize=1024)
def _describes_account(name: bytes) -> bool:
    if name in NOT_OF_ACCOUNT:
        return False
    marked = any(mark in name for mark in ACCOUNT_MARKS)
    return marked or name in ACCOUNT_NAMES or name.startswith(ACCOUNT_PREFIXES) or name.endswith(ACCOUNT_ENDS)


def _is_withheld(name: bytes) -> bool:
    return name in HOP_BY_HOP or name.startswith(b"access-control-")


def request_id_headers(request_id: str) -> list[Header]:
    """Return the gateway's id of a request in both headers. The sink puts the client's own into the first."""
    id = request_id.encode()
    return [(CLIENT_ID, id), (OWN_ID, id)]


def id_headers(client: Client, request_id: str, given: list[Header]) -> list[Header]:
    """Return the request id in the gateway's headers, and in the vendor's unless the upstream has set it."""
    id = request_id.encode()
    ours: list[Header] = [(CLIENT_ID, id), (OWN_ID, id)]  # an upstream's own is never forwarded
    if client.id_header != CLIENT_ID and client.id_header not in dict(given):
        ours.append((client.id_header, id))
    return ours


def format_rates(client: Client, rates: Mapping[str, RateLevel], given: Sequence[Header]) -> list[Header]:
    """Return what is left of the limits of requests and tokens, as the protocol's vendor says it.

    What the upstream says of its own, to the environment's key alone, stays as it is.
    """
    if client.rate_header is None:
        return []
    known, fields = dict(given), list[Header]()
    for unit, level in rates.items():
        values = {"limit": str(level.limit), "remaining": str(level.remaining)}
        if level.reset_s is not None:
            values["reset"] = format_instant(level.reset_s) if client.rates_reset_at else format_duration(level.reset_s)
        fields += [(client.rate_header(unit, field).encode(), value.encode()) for field, value in values.items()]
    return [field for field in fields if field[0] not in known]


def format_instant(seconds: float) -> str:
    """Return the time in this number of seconds, as RFC 3339 writes it."""
    moment = datetime.fromtimestamp(time.time() + math.ceil(seconds), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def format_duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: `6m0s`, `1h0m0s`, `1s`, `120ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def format_loss_headers(losses: Sequence[Loss], count: int) -> list[Header]:
    """Return the loss headers. `count` is the number of all losses; only the first ones are listed."""
    return [format_loss_count(count), (b"x-dragoman-loss-detail", detail(losses, count))]


def format_loss_count(count: int) -> Header:
    return (b"x-dragoman-loss", b"%d" % count)


def detail(losses: Sequence[Loss], count: int) -> bytes:
    """Return the losses as ASCII JSON; those that do not fit are counted in a last entry."""
    entries: list[bytes] = []
    size = 0
    for loss in losses:
        entry = encode_ascii_json({"path": loss.path, "how": loss.how.value, "why": loss.why})
        size += len(entry) + 1
        if size > MAX_DETAIL_BYTES:
            break
        entries.append(entry)
    if len(entries) < count:
        rest = f"{count - len(entries)} more losses do not fit into this header"
        entries.append(encode_ascii_json({"path": "", "how": "dropped", "why": rest}))
    return b"[" + b",".join(entries) + b"]"


def encode_ascii_json(value: dict[str, str]) -> bytes:
    """Return JSON that may stand in a header."""
    return NOT_ASCII.sub(_escape, msgspec.json.encode(value).decode()).encode()


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
