"""Read the parameters of an admin API request. Every error names the parameter."""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection

from dragoman.http.models import read_parameters
from dragoman.hub.failure import BadRequest
from dragoman.store.request_search import MAX_PAGE

NUMBER = re.compile("[0-9]{1,18}")
MAX_TEXT = 200
CURSOR = "cursor"
LIMIT = "limit"
CLIENT_KEY = "key"  # some clients send their key in the query


class Parameters:
    """The parameters of one query. Raises BadRequest for one that the path does not have."""

    def __init__(self, query: str, known: Collection[str]) -> None:
        self._values = {name: value for name, value in read_parameters(query).items() if name != CLIENT_KEY}
        for name in self._values:
            if name not in known:
                shown = name[:MAX_TEXT].encode(errors="replace").decode()
                offered = ", ".join(known) or "none"
                raise BadRequest(f"/{shown}", f"There is no parameter {shown!r} here. Possible: {offered}.")

    def text(self, name: str) -> str | None:
        """Return a short printable text, or None if it is not given."""
        value = self._values.get(name)
        if value is not None and (len(value) > MAX_TEXT or not value.isprintable()):
            raise BadRequest(f"/{name}", f"{name} must be printable and have at most {MAX_TEXT} characters.")
        return value

    def number(self, name: str, absent: int) -> int:
        value = self._values.get(name)
        if value is None:
            return absent
        if not NUMBER.fullmatch(value):
            raise BadRequest(f"/{name}", f"{name} must be a whole number that is not negative.")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self._values.get(name, "0")
        if value not in ("0", "1"):
            raise BadRequest(f"/{name}", f"{name} must be 0 or 1.")
        return value == "1"

    def limit(self) -> int:
        """Return how many items a page has at most."""
        value = self.number(LIMIT, MAX_PAGE)
        if not 1 <= value <= MAX_PAGE:
            raise BadRequest(f"/{LIMIT}", f"{LIMIT} must be between 1 and {MAX_PAGE}.")
        return value

    def cursor(self) -> bytes | None:
        """Return what the cursor of the page before holds, or None for the first page."""
        value = self._values.get(CURSOR)
        if value is None:
            return None
        try:
            return urlsafe_b64decode(value.encode())
        except (binascii.Error, UnicodeEncodeError):
            raise invalid_cursor() from None


def make_cursor(position: bytes) -> str:
    return urlsafe_b64encode(position).decode()


def invalid_cursor() -> BadRequest:
    return BadRequest(f"/{CURSOR}", "The cursor is not valid: use `next` of the page before, unchanged.")
