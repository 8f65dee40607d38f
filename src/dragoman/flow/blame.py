"""A refusal of an upstream comes in; it goes out saying whose it is, and what mends it."""

import re
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman.flow.discretion import hushed
from dragoman.flow.prepare import Prepared
from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Headers

# Some vendors answer 403 to a bad token: that is a refused credential, not a missing entitlement.
BAD_TOKEN_CODES = frozenset({"invalid_api_key", "token_expired", "token_invalidated", "invalid_token", "expired_token"})
BAD_TOKEN = re.compile(
    r"\b(?:token|api[ -]?key)\b.{0,60}\b(?:invalid|expired|revoked|malformed)\b"
    r"|\b(?:invalid|incorrect|expired|bad)\b.{0,60}\b(?:token|(?:api[ -]?)?key|credentials?)\b",
    re.IGNORECASE | re.DOTALL,
)


def named(prepared: Prepared, failure: Failure) -> Failure:
    """A refused credential or entitlement is the gateway's, and must not look like the client's own."""
    failure = hushed(prepared.provider.heed(failure), prepared.secrets)
    name = prepared.provider.name
    if failure.kind is Kind.CREDENTIAL or (failure.kind is Kind.FORBIDDEN and _is_bad_token(failure)):
        told = f" (HTTP {failure.status})" if failure.status is not None else ""
        mend = prepared.provider.remedy or f"set providers.{name}.api_key, then run `dragoman doctor`"
        which = f" {prepared.provider.credential}" if prepared.provider.credential else ""
        message = f"Provider {name!r} refused the gateway's credential{which}{told}. To mend it: {mend}."
        return Failure(Kind.CREDENTIAL, message, status=failure.status, code=failure.code)
    if failure.kind is Kind.FORBIDDEN:
        return replace(failure, message=f"Provider {name!r}: {failure.message}", detail=None, retry_after=None)
    return failure


def _is_bad_token(failure: Failure) -> bool:
    return failure.code in BAD_TOKEN_CODES or BAD_TOKEN.search(failure.message) is not None


def redirected(name: str, status: int, headers: Headers) -> Failure:
    """A redirect is not followed, for it would take the credential along; no retry mends it."""
    try:
        host = urlsplit((headers.get(b"location") or b"").decode("latin-1")).hostname
    except ValueError:
        host = None
    where = f"to {host}" if host else "to another path of its host"
    message = (
        f"Provider {name!r} answered HTTP {status}, a redirect {where}, which is not followed. "
        f"Set providers.{name}.endpoint to the final address."
    )
    return Failure(Kind.UPSTREAM, message, status=status, should_retry=False)
