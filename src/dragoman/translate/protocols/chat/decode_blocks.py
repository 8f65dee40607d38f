"""Assemble the tool calls and the reasoning details of a Chat reply from its pieces."""

import re
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.protocols.chat.wire import CALL_KEY, FIELD_KEY, VISIBLE_KEYS, CallPiece, ThinkingPart

_STREAMED_KEYS = (*VISIBLE_KEYS, "data", "signature")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")


def read_thinking_text(thinking: object) -> str:
    """Return the text of Mistral's thinking part, which holds a list of text parts."""
    if isinstance(thinking, str):
        return thinking
    parts = thinking if isinstance(thinking, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def is_opaque(detail: dict[str, object]) -> bool:
    """Return whether an entry holds a signature or encrypted data."""
    return bool(detail.get("signature") or detail.get("data"))


class _DetailEntry(Struct, eq=False):
    """One entry of reasoning_details; its pieces of text are joined once, at the end."""

    _fields: dict[str, object] = {}
    _pieces: dict[str, list[str]] = {}

    def add(self, detail: dict[str, object]) -> None:
        for name, value in detail.items():
            if name in _STREAMED_KEYS and isinstance(value, str):
                if not isinstance(self._fields.get(name), str):
                    self._pieces[name] = []
                self._fields[name] = ""
                self._pieces[name].append(value)
            elif value is not None:
                self._fields[name] = value

    def join(self) -> dict[str, object]:
        texts = {name: "".join(pieces) for name, pieces in self._pieces.items() if self._fields[name] == ""}
        return {**self._fields, **texts}


def _entry_key(index: object, count: int) -> object:
    """Return the key that the pieces of one entry share; an entry without a usable index has its own."""
    return ("index", index) if isinstance(index, str | int | float) else count


class ReasoningDetails(Struct, eq=False):
    """The reasoning_details of one thinking block; pieces with the same `index` belong to one entry."""

    _entries: dict[object, _DetailEntry] = {}

    def add(self, detail: dict[str, object]) -> None:
        key = _entry_key(detail.get("index"), len(self._entries))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _DetailEntry()
        entry.add(detail)

    def opaques(self, issuer: str, model: str) -> Iterator[Opaque]:
        """Yield the entries with a signature or encrypted data; plain text is sent without them."""
        for growing in self._entries.values():
            entry = growing.join()
            if is_opaque(entry):
                yield Opaque(issuer, OpaqueForm.DETAIL, msgspec.json.encode(entry).decode(), model)


def read_block_opaque(block: ThinkingPart, issuer: str, model: str) -> Opaque | None:
    """Return the signature or encrypted data of a LiteLLM thinking block."""
    if block.data:
        return Opaque(issuer, OpaqueForm.REDACTED, block.data, model)
    if block.signature:
        return Opaque(issuer, OpaqueForm.SIGNATURE, block.signature, model)
    return None


def read_call_opaque(extra: object, call_id: str, issuer: str, model: str) -> Opaque | None:
    """Return the signature that Google writes beside a call, and demands in the next request."""
    google = extra.get("google") if isinstance(extra, dict) else None
    if not isinstance(google, dict) or not google.get("thought_signature"):
        return None
    entry = {CALL_KEY: call_id, "extra_content": extra}
    return Opaque(issuer, OpaqueForm.DETAIL, msgspec.json.encode(entry).decode(), model)


def read_field_opaque(value: str, issuer: str, model: str) -> Opaque:
    """Return the opaque value that Copilot writes beside the reasoning text, and wants back there."""
    return Opaque(issuer, OpaqueForm.DETAIL, msgspec.json.encode({FIELD_KEY: value}).decode(), model)


def arguments_as_text(value: object) -> str:
    """Return arguments as JSON text; some servers send the object itself."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def number_calls(calls: list[CallPiece]) -> None:
    """Number the calls of a whole message, where each entry is a call of its own whatever its id."""
    for place, call in enumerate(calls):
        call.index = place


class Call:
    """A tool call. Its block opens when its name is known; `held` keeps arguments that came earlier."""

    __slots__ = ("block", "held", "id")

    def __init__(self, id: str) -> None:
        self.id = id
        self.block: int | None = None
        self.held: list[str] = []


class Calls:
    """The calls of one reply in the order of their first appearance."""

    __slots__ = ("_by_id", "_by_index", "_calls")

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._by_id: dict[str, Call] = {}
        self._by_index: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def blocks(self) -> list[int]:
        return [call.block for call in self._calls if call.block is not None]

    def find_or_add(self, piece: CallPiece, name: str | None, reply: str) -> Call:
        """Return the call that a piece continues, or a new one; without an id it gets one made from the reply's id."""
        call = self._find(piece, name)
        if call is None:
            call = Call(self._unique_id(piece.id or f"call_{_NOT_IN_IDS.sub('', reply)}_{len(self._calls)}"))
            self._calls.append(call)
            self._by_id.setdefault(call.id, call)
            if piece.index is not None:
                self._by_index[piece.index] = call
        return call

    def _unique_id(self, id: str) -> str:
        """Return an id that no other call of the reply has, so that results can be matched."""
        return f"{id}_{len(self._calls)}" if id in self._by_id else id

    def _find(self, piece: CallPiece, name: str | None) -> Call | None:
        if piece.index is not None:
            call = self._by_index.get(piece.index)
            # Some servers give every parallel call the index 0: a new id with a name is a new call.
            return None if call and name and piece.id and piece.id != call.id else call
        if piece.id:
            return self._by_id.get(piece.id)
        return self._calls[-1] if self._calls and not name else None


def as_array(logprobs: msgspec.Raw) -> msgspec.Raw | None:
    text = bytes(logprobs)
    return logprobs if text.startswith(b"[") and text != b"[]" else None
