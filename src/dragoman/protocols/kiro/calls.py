"""Pieces of tool calls come in, in any order; whole calls go out once, and what is left at the end is cut."""

import msgspec
from msgspec import Struct

from dragoman.framing.jsonread import read_json
from dragoman.framing.jsonscan import compact, whole_object
from dragoman.hub.events import TruncatedCall
from dragoman.hub.loss import Ledger
from dragoman.protocols.kiro.wire import ToolUse

MAX_CHARS = 32 * 1024 * 1024  # of the arguments of all calls of a reply
EMPTY = "{}"
MAX_EARLY_LOOKS = 8

_string = msgspec.json.Decoder(str)


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: str


class _Growing:
    __slots__ = ("_next_look", "_stops", "id", "length", "name", "pieces", "stopped")

    def __init__(self, id: str) -> None:
        self.id = id
        self.name = ""
        self.pieces: list[str] = []
        self.length = 0  # characters in all pieces
        self.stopped = False
        self._stops = 0
        self._next_look = 0

    def stop(self) -> Call | None:
        """Note that the call says it has ended; return it if it is whole.

        Each look joins and parses all pieces, so after the first few stops a look waits until the text has doubled;
        a call that is whole by then is found at the end of the reply at the latest.
        """
        self.stopped = True
        self._stops += 1
        if self._stops > MAX_EARLY_LOOKS and self.length < self._next_look:
            return None
        self._next_look = 2 * self.length
        return self.whole()

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def whole(self) -> Call | None:
        text = self.text
        if self.stopped and not text.strip():
            text = EMPTY
        arguments = whole_object(text) if self.name else None
        return None if arguments is None else Call(self.id, self.name, arguments)


class Calls:
    """Withholds every call until its arguments are one whole JSON object: half a call must never be run."""

    __slots__ = ("_growing", "_last", "_ledger", "_made", "_taken", "_told", "empty", "made")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._growing: dict[str, _Growing] = {}
        self._taken = 0
        self._last = ""  # the id of the call under way: pieces may come without one
        self._told: set[str] = set()
        self._made: set[tuple[str, str]] = set()
        self.made = 0
        self.empty: Call | None = None  # whole without arguments; told once nothing of the same id can follow

    def add(self, use: ToolUse) -> list[Call]:
        """One piece; gives the calls that may be told now."""
        id = use.tool_use_id or self._id_under_way(use.name)
        if not id:
            return []
        self._last = id
        calls = self.settle() if self.empty is not None and self.empty.id != id else []
        self.empty = None
        if id in self._told:
            return calls
        call = self._growing.get(id)
        if call is None:
            call = self._growing[id] = _Growing(id)
        call.name = call.name or use.name or ""
        self._grow(call, use)
        if not use.stop:
            return calls
        whole = call.stop()
        if whole is None:
            return calls
        if whole.arguments == EMPTY:
            self.empty = whole
            return calls
        return calls + self._tell(whole)

    def settle(self) -> list[Call]:
        """The call without arguments that waited for better ones."""
        empty, self.empty = self.empty, None
        return [] if empty is None else self._tell(empty)

    def end(self) -> tuple[list[Call], tuple[TruncatedCall, ...]]:
        """The calls that turn out whole, in the order in which they began, and those that do not."""
        self.empty = None
        calls: list[Call] = []
        cut: list[TruncatedCall] = []
        for growing in list(self._growing.values()):
            whole = growing.whole()
            if whole is None:
                cut.append(TruncatedCall(growing.id, growing.name, growing.text))
            else:
                calls += self._tell(whole)
        return calls, tuple(cut)

    def _id_under_way(self, name: str | None) -> str:
        """Whose a piece without an id is: the last call's, or a new one's if it has a name."""
        if not name or self._last in self._growing:
            return self._last
        return f"tooluse_{len(self._told) + 1}"

    def _grow(self, call: _Growing, use: ToolUse) -> None:
        raw = bytes(use.input)
        if raw == b"null" or self._taken > MAX_CHARS:
            return
        snapshot = raw[:1] != b'"'
        piece = raw.decode() if snapshot else read_json(_string, raw)
        if snapshot or call.pieces == [EMPTY]:  # some begin with an empty object and tell the pieces afterwards
            call.pieces.clear()
            call.length = 0
        if piece:
            call.pieces.append(piece)
            call.length += len(piece)
            self._taken += len(piece)

    def _tell(self, call: Call) -> list[Call]:
        self._growing.pop(call.id, None)
        self._told.add(call.id)
        key = (call.name, compact(call.arguments))
        if key in self._made:
            self._ledger.dropped(f"/toolUses/{call.id}", "the same call was made before in this reply")
            return []
        self._made.add(key)
        self.made += 1
        return [call]
