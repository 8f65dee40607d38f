"""Assemble the tool calls and the reasoning details of a Chat reply from its pieces."""

import re
from collections.abc import Iterator

import msgspec

from dragoman.hub.opaque import Form, Opaque
from dragoman.protocols.chat.wire import CALL_KEY, FIELD_KEY, VISIBLE_KEYS, CallPiece, ThinkingPart

_GROWING = (*VISIBLE_KEYS, "data", "signature")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")


def part_text(thinking: object) -> str:
    """Mistral's thinking part holds a list of text parts."""
    if isinstance(thinking, str):
        return thinking
    parts = thinking if isinstance(thinking, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def is_opaque(detail: dict[str, object]) -> bool:
    """Whether only its issuer can read this entry, or vouch for it."""
    return bool(detail.get("signature") or detail.get("data"))


class _Entry:
    """One entry of reasoning_details; its texts are joined once, at the end."""

    __slots__ = ("_fields", "_pieces")

    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._pieces: dict[str, list[str]] = {}

    def add(self, detail: dict[str, object]) -> None:
        for name, value in detail.items():
            if name in _GROWING and isinstance(value, str):
                if not isinstance(self._fields.get(name), str):
                    self._pieces[name] = []
                self._fields[name] = ""
                self._pieces[name].append(value)
            elif value is not None:
                self._fields[name] = value

    def joined(self) -> dict[str, object]:
        texts = {name: "".join(pieces) for name, pieces in self._pieces.items() if self._fields[name] == ""}
        return {**self._fields, **texts}


def _entry_key(index: object, count: int) -> object:
    """What pieces of one entry have in common; an entry without a usable index stands alone."""
    return ("index", index) if isinstance(index, str | int | float) else count


class Details:
    """The reasoning_details of one run of thought: entries grow by `index` until the run ends."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[object, _Entry] = {}

    def add(self, detail: dict[str, object]) -> None:
        key = _entry_key(detail.get("index"), len(self._entries))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        entry.add(detail)

    def opaques(self, issuer: str, model: str) -> Iterator[Opaque]:
        """The entries that only their issuer can read or vouch for; a plain text needs no carrying."""
        for growing in self._entries.values():
            entry = growing.joined()
            if is_opaque(entry):
                yield Opaque(issuer, Form.DETAIL, msgspec.json.encode(entry).decode(), model)


def block_opaque(block: ThinkingPart, issuer: str, model: str) -> Opaque | None:
    """What a LiteLLM thinking block holds besides its text."""
    if block.data:
        return Opaque(issuer, Form.REDACTED, block.data, model)
    if block.signature:
        return Opaque(issuer, Form.SIGNATURE, block.signature, model)
    return None


def call_opaque(extra: object, call_id: str, issuer: str, model: str) -> Opaque | None:
    """What Google writes beside a call to vouch for it; without it the next request is refused."""
    google = extra.get("google") if isinstance(extra, dict) else None
    if not isinstance(google, dict) or not google.get("thought_signature"):
        return None
    entry = {CALL_KEY: call_id, "extra_content": extra}
    return Opaque(issuer, Form.DETAIL, msgspec.json.encode(entry).decode(), model)


def field_opaque(value: str, issuer: str, model: str) -> Opaque:
    """What Copilot writes beside a thought's text, and wants back beside it."""
    return Opaque(issuer, Form.DETAIL, msgspec.json.encode({FIELD_KEY: value}).decode(), model)


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
