"""Which tool call a piece of a stream belongs to, however the server numbers its calls."""

import re

import msgspec

from dragoman.protocols.chat.wire import CallPiece

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")


def argument_text(value: object) -> str:
    """Arguments as text; some servers send the object itself."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def number(calls: list[CallPiece]) -> None:
    """In a whole message each entry is a call of its own, whatever its id."""
    for place, call in enumerate(calls):
        call.index = place


class Call:
    """A tool call; it opens when its name is known, and `held` keeps arguments that came before."""

    __slots__ = ("block", "held", "id")

    def __init__(self, id: str) -> None:
        self.id = id
        self.block: int | None = None
        self.held: list[str] = []


class Calls:
    """The calls of one reply in the order of their first appearance."""

    __slots__ = ("_by_id", "_by_index", "_met")

    def __init__(self) -> None:
        self._met: list[Call] = []
        self._by_id: dict[str, Call] = {}
        self._by_index: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._met)

    def blocks(self) -> list[int]:
        return [call.block for call in self._met if call.block is not None]

    def of(self, piece: CallPiece, name: str | None, reply: str) -> Call:
        """The call that the piece continues, or a new one; without an id of its own it gets one from the reply's."""
        call = self._known(piece, name)
        if call is None:
            call = Call(self._fresh(piece.id or f"call_{_NOT_IN_IDS.sub('', reply)}_{len(self._met)}"))
            self._met.append(call)
            self._by_id.setdefault(call.id, call)
            if piece.index is not None:
                self._by_index[piece.index] = call
        return call

    def _fresh(self, id: str) -> str:
        """An id that no other call of the reply has: a client could not tell their results apart."""
        return f"{id}_{len(self._met)}" if id in self._by_id else id

    def _known(self, piece: CallPiece, name: str | None) -> Call | None:
        if piece.index is not None:
            call = self._by_index.get(piece.index)
            # Some servers give every parallel call the index 0: a new id with a name is a new call.
            return None if call and name and piece.id and piece.id != call.id else call
        if piece.id:
            return self._by_id.get(piece.id)
        return self._met[-1] if self._met and not name else None
