"""Call ids of any vendor come in; ids in Anthropic's alphabet go out, different for different calls."""

import re

_OTHER = re.compile(r"[^A-Za-z0-9_-]")


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
