"""Names that become part of a URL's path: the model of a request, the id of a resource."""

from functools import lru_cache
from urllib.parse import quote, unquote

from dragoman.translate.hub.failure import BadRequest

_MAX_DECODINGS = 3  # a proxy and a server behind it may each decode the path once


class BadName(BadRequest):
    """A name that would lead to another path of the upstream."""


@lru_cache(maxsize=256)
def quote_name(name: str, at: str) -> str:
    """Return a name as it stands in a path. Its slashes stay: each separates two segments.

    Raises BadName for a segment that is empty, `.` or `..`, also percent-encoded: the upstream may resolve it, and the
    request would reach another path there with the gateway's credential. `at` is the JSON pointer to the name.
    """
    decoded = name
    for _ in range(_MAX_DECODINGS):
        if "\\" in decoded or any(segment in ("", ".", "..") for segment in decoded.split("/")):
            message = (
                f"The name {name[:100]!r} cannot be part of a URL: it has a backslash or an empty, '.' or '..' segment."
            )
            raise BadName(at, message)
        decoded = unquote(decoded)
    return quote(name, safe="/:@")
