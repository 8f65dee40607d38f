"""An error answer comes in; the failure that its JSON tells, or that its status means, goes out."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from dragoman.hub.failure import Failure, Kind

BY_STATUS = {
    400: Kind.BAD_REQUEST,
    401: Kind.CREDENTIAL,
    402: Kind.QUOTA,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    408: Kind.TIMEOUT,
    409: Kind.CONFLICT,
    413: Kind.TOO_LARGE,
    422: Kind.BAD_REQUEST,
    429: Kind.RATE_LIMITED,
    503: Kind.OVERLOADED,
    504: Kind.TIMEOUT,
    529: Kind.OVERLOADED,
}

_failure = msgspec.json.Decoder(Failure)


def read(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    try:
        failure = _failure.decode(body)
    except (msgspec.DecodeError, RecursionError):
        failure = Failure(BY_STATUS.get(status, Kind.UPSTREAM), f"the upstream answered with status {status}")
    return replace(failure, status=status, retry_after=failure.retry_after or _seconds(headers.get(b"retry-after")))


def _seconds(value: bytes | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
