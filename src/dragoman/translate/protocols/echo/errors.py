"""Read the error responses of a native upstream into failures."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.error_text import describe_error_page, kind_for_status, retry_after
from dragoman.translate.framing.jsonread import decode_or
from dragoman.translate.hub.failure import Failure

_failure = msgspec.json.Decoder(Failure)


def read_failure(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Return the failure that a body is; a body that is none is described by its status and text."""
    failure = decode_or(_failure, body, None) or Failure(kind_for_status(status), describe_error_page(status, body))
    return replace(failure, status=status, retry_after=failure.retry_after or retry_after(headers))
