"""What is found where something is looked at: how it is, and what to do about it where it is not well."""

from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "broken"]
OK: State = "ok"
WARNING: State = "warning"
BROKEN: State = "broken"


class Finding(Struct, frozen=True):
    """One thing looked at."""

    what: str
    state: State
    found: str
    to_do: str = ""
