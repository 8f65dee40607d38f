"""An error answer comes in; the failure that its JSON tells, or that its status means, goes out."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from dragoman.framing.error_text import describe_error_page, kind_for_status, retry_after
from dragoman.hub.failure import Failure

_failure = msgspec.json.Decoder(Failure)


def read(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    try:
        failure = _failure.decode(body)
    except (msgspec.DecodeError, RecursionError):
        failure = Failure(kind_for_status(status), describe_error_page(status, body))
    return replace(failure, status=status, retry_after=failure.retry_after or retry_after(headers))
