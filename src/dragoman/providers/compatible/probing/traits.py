"""What is found in one trial of a server: a word, perhaps the server's own, and the quirk it calls for."""

from typing import Literal

from msgspec import Struct

from dragoman.config.settings import Quirk

Found = Literal[
    "takes", "refuses", "ignores", "unclear", "told", "missing", "is cut", "is whole", "right", "lies", "odd"
]


class Trait(Struct, frozen=True):
    what: str
    found: Found
    said: str = ""
    quirk: Quirk | None = None
