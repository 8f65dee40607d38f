"""Call ids of any vendor come in; ids in Anthropic's alphabet go out, different for different calls.

Towards clients the way back is known: an id in another alphabet travels encoded, and returns to its vendor as it was.
"""

import base64
import binascii
import re

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_ENCODED = "toolu_dgm1-"


def shown(id: str) -> str:
    """The id that a client sees."""
    if not _OTHER.search(id):
        return id
    return _ENCODED + base64.urlsafe_b64encode(id.encode()).decode().rstrip("=")


def meant(id: str) -> str:
    """The id that the vendor gave."""
    if not id.startswith(_ENCODED):
        return id
    body = id[len(_ENCODED) :]
    try:
        given = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, ValueError):
        return id
    return given if shown(given) == id else id


class Ids:
    """Gives each call of a request its own id; equal requests get equal ids."""

    __slots__ = ("_counts", "_taken")

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def fresh(self, id: str) -> str:
        stem = _OTHER.sub("_", id) or "call"
        name = stem
        while name in self._taken:
            count = self._counts.get(stem, 1) + 1
            self._counts[stem] = count
            name = f"{stem}-{count}"
        self._taken.add(name)
        return name
