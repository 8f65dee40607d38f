"""Reasoning as Chat servers extend the protocol for it: a message's fields come in, thoughts and opaque values go out.

And the other way round, towards servers that want their thoughts back.
"""

from collections.abc import Iterator

import msgspec

from dragoman.framing.fields import Fields
from dragoman.hub.opaque import ENVELOPE_PREFIX, Form, Opaque, read_opaque
from dragoman.hub.request import Thinking
from dragoman.protocols.chat.wire import ThinkingPart

_VISIBLE = ("text", "summary")
_CALL = "tool_call"  # in an entry of ours: the call that it belongs to
_FIELD = "reasoning_opaque"  # in an entry of ours: it is no entry there, but a field of the message
_GROWING = (*_VISIBLE, "data", "signature")


def detail_text(detail: dict[str, object]) -> str:
    """What a reader may see of one entry of reasoning_details."""
    return "".join(value for key in _VISIBLE if isinstance(value := detail.get(key), str))


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
    entry = {_CALL: call_id, "extra_content": extra}
    return Opaque(issuer, Form.DETAIL, msgspec.json.encode(entry).decode(), model)


def field_opaque(value: str, issuer: str, model: str) -> Opaque:
    """What Copilot writes beside a thought's text, and wants back beside it."""
    return Opaque(issuer, Form.DETAIL, msgspec.json.encode({_FIELD: value}).decode(), model)


def read_thoughts(message: Fields) -> list[Thinking]:
    """The thoughts that a client sends back, told once however many fields repeat them."""
    key = "reasoning_content" if message.has("reasoning_content") else "reasoning"
    visible = message.text("reasoning_content")
    if visible is None and isinstance(message.raw("reasoning"), str):
        visible = message.text("reasoning")
    carried = [*_read_details(message), *_read_blocks(message)]
    return _told_once(visible or "", message.pointer(key), carried)


def _told_once(visible: str, at: str, carried: list[Thinking]) -> list[Thinking]:
    """Places the carried thoughts within the visible text, which joins the texts of all."""
    thoughts: list[Thinking] = []
    rest, exact = visible, True
    for thought in carried:
        before, found, behind = rest.partition(thought.text) if thought.text else ("", "", rest)
        if thought.text and not found:
            exact = False
        else:
            if before:
                thoughts.append(Thinking(before, at))
            rest = behind
        thoughts.append(thought)
    # If the visible text is not made of theirs, the client has altered it: it would tell the same again.
    if rest and exact:
        thoughts.append(Thinking(rest, at))
    return thoughts


def _read_details(message: Fields) -> Iterator[Thinking]:
    for detail in message.objects("reasoning_details") or ():
        entry = detail.rest()
        data = detail.raw("data")
        if isinstance(data, str) and data.startswith(ENVELOPE_PREFIX):
            ours = read_opaque(data, Form.DETAIL, "")
            yield Thinking(ours.text, detail.at, ours)
        else:
            yield Thinking(detail_text(entry), detail.at, Opaque("", Form.DETAIL, msgspec.json.encode(entry).decode()))


def _read_blocks(message: Fields) -> Iterator[Thinking]:
    for block in message.objects("thinking_blocks") or ():
        text, signature, data = block.text("thinking", ""), block.text("signature"), block.text("data")
        if data:
            yield Thinking("", block.at, read_opaque(data, Form.REDACTED, ""))
        else:
            yield Thinking(text, block.at, read_opaque(signature, Form.SIGNATURE, "") if signature else None)


def vouchers(thoughts: list[Thinking]) -> dict[str, object]:
    """What stands beside calls to vouch for them, by the calls' ids."""
    opaques = [thought.opaque for thought in thoughts if thought.opaque is not None]
    entries = [_entry(opaque) for opaque in opaques if opaque.form is Form.DETAIL]
    return {str(entry[_CALL]): entry.get("extra_content") for entry in entries if _CALL in entry}


def _entry(opaque: Opaque) -> dict[str, object]:
    """An entry as it was; nothing of one that a client has forged."""
    try:
        return msgspec.json.decode(opaque.payload, type=dict[str, object])
    except (ValueError, RecursionError):
        return {}


def write_thoughts(thoughts: list[Thinking]) -> dict[str, object]:
    """The fields of a message that give thoughts back to the server that had them."""
    fields: dict[str, object] = {}
    text = "".join(thought.text for thought in thoughts)
    if text:
        fields["reasoning_content"] = text
    details: list[object] = []
    blocks: list[object] = []
    for thought in thoughts:
        opaque = thought.opaque
        if opaque is None:
            continue
        match opaque.form:
            case Form.DETAIL:
                entry = _entry(opaque)
                if _FIELD in entry:
                    fields |= {"reasoning_text": fields.pop("reasoning_content", ""), _FIELD: entry[_FIELD]}
                elif entry and _CALL not in entry:
                    details.append(entry)
            case Form.SIGNATURE:
                blocks.append({"type": "thinking", "thinking": thought.text, "signature": opaque.payload})
            case Form.REDACTED:
                blocks.append({"type": "redacted_thinking", "data": opaque.payload})
            case Form.ENCRYPTED:
                pass  # Chat has no place for a reasoning item of Responses
    if details:
        fields["reasoning_details"] = details
    if blocks:
        fields["thinking_blocks"] = blocks
    return fields
