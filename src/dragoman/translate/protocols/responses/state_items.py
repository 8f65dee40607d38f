"""Items as the server keeps them: completed, listed and checked over a whole context, and those of compactions."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.framing.jsonread import read_json
from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.checksum import decode_checked, encode_checked
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.wire import ABSENT, SEARCH_ITEM, Item, text_at

REFERENCE = "item_reference"
TRIGGER = "compaction_trigger"
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_WITH_STATUS = frozenset(("message", *_CALLS, *_OUTPUTS))
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "compaction": "cmp_",
}
_WITH_OPAQUE = ("reasoning", SEARCH_ITEM)
_STEMS = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc", "compaction": "cmp"}
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata


class _Peek(Struct):
    store: object = None
    previous_response_id: object = None
    conversation: object = None
    background: object = None
    input: Raw = ABSENT


class _ItemPeek(Struct):
    type: object = None
    role: object = None
    id: object = None
    encrypted_content: object = None


_peek = msgspec.json.Decoder(_Peek)
_items_peek = msgspec.json.Decoder(list[_ItemPeek])


def uses_state(body: bytes, *, stores: bool) -> bool:
    """Return whether a request reads or changes the server's state. `stores`: what `store` means if it is absent."""
    try:
        peek = read_json(_peek, body)
        if peek.store is True or (peek.store is None and stores):
            return True
        if peek.previous_response_id is not None or peek.conversation is not None or peek.background:
            return True
        if b'"id"' not in body and b"compaction" not in body:
            return False
        items = _items_peek.decode(peek.input) if bytes(memoryview(peek.input)[:1]) == b"[" else []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # parsing reports what is wrong
    return any(_needs_store(item.type, item.role, item.id, item.encrypted_content) for item in items)


def _needs_store(type_: object, role: object, id_: object, encrypted: object) -> bool:
    if type_ in (REFERENCE, TRIGGER, "compaction") or (type_ is None and role is None):
        return True
    return type_ in _WITH_OPAQUE and id_ is not None and encrypted is None


def read_input(raw: dict[str, Json], key: str = "input") -> list[Item]:
    """Return the input items of a request; a string is a message of the user."""
    value = raw.get(key)
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadRequest(f"/{key}", f"{key} must be a string or an array.")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise BadRequest(f"/{key}/{index}", f"{key}[{index}] must be an object.")
    return [item for item in value if isinstance(item, dict)]


def type_of(item: Item) -> str:
    return text_at(item, "type") or ("message" if item.get("role") is not None else REFERENCE)


def read_id(raw: dict[str, Json], key: str) -> str | None:
    """Return the id in a field; raises RequestError if it cannot be an id."""
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        raise BadRequest(
            f"/{key}",
            f"Invalid '{key}': '{shown[:80]}'. Expected an ID that contains letters, numbers, underscores, or dashes, "
            "but this value contained additional characters.",
            code="invalid_value",
        )
    return value


def check_ids(items: Sequence[Item]) -> None:
    """Raise RequestError if an item's id has the prefix of another type of item."""
    for index, item in enumerate(items):
        stem, id_ = _STEMS.get(type_of(item)), item.get("id")
        if stem is None or not isinstance(id_, str) or id_.startswith(stem):
            continue
        if id_.startswith(tuple(f"{other}_" for other in (*_STEMS.values(), "resp"))):
            message = f"Invalid 'input[{index}].id': '{id_[:80]}'. Expected an ID that begins with '{stem}'."
            raise BadRequest(f"/input/{index}/id", message, code="invalid_value")


def complete_item(item: Item, new_id: Callable[[str], str]) -> Item:
    """Return an item as it is listed: with type, id and status, and its content as parts."""
    type_ = type_of(item)
    id_ = item.get("id")
    if not isinstance(id_, str) or not id_:
        id_ = new_id(_PREFIXES.get(type_, "item_"))
    completed: Item = {"id": id_, "type": type_}
    if type_ in _WITH_STATUS:
        completed["status"] = item.get("status") or "completed"
    completed |= {key: value for key, value in item.items() if key not in completed and value is not None}
    content = item.get("content")
    if type_ == "message" and isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part: Item = {"type": kind, "text": content}
        completed["content"] = [part | {"annotations": []} if kind == "output_text" else part]
    return completed


def lacks_opaque(item: Item) -> bool:
    """Return whether an item comes back without the opaque form that a later turn needs."""
    return type_of(item) in _WITH_OPAQUE and item.get("encrypted_content") is None and isinstance(item.get("id"), str)


def read_metadata(raw: dict[str, Json]) -> dict[str, Json]:
    """Return the metadata of a request; raises RequestError."""
    metadata = raw.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise BadRequest("/metadata", "metadata must be an object.")
    if len(metadata) > MAX_PAIRS:
        raise BadRequest("/metadata", f"metadata has {len(metadata)} pairs, and may have at most {MAX_PAIRS}.")
    for key, value in metadata.items():
        if len(key) > MAX_KEY:
            raise BadRequest("/metadata", f"A key of metadata has {len(key)} characters, more than {MAX_KEY}.")
        if not isinstance(value, str) or len(value) > MAX_VALUE:
            message = f"The value of metadata {key!r} must be a string of at most {MAX_VALUE} characters."
            raise BadRequest("/metadata", message)
    return metadata


def check_context(earlier: Sequence[Item], items: Sequence[Item]) -> None:
    """Raise RequestError if an item comes twice, or if a call and its result are not together."""
    seen: set[str] = set()
    for item in (*earlier, *items):
        id_ = item.get("id")
        if isinstance(id_, str) and id_ in seen:
            raise duplicate_item(id_, "/input")
        if isinstance(id_, str):
            seen.add(id_)
    _check_pairs((*earlier, *items))


def _check_pairs(items: Iterable[Item]) -> None:
    calls: dict[str, bool] = {}  # call id -> whether its result has come
    for item in items:
        type_, call_id = type_of(item), text_at(item, "call_id")
        if type_ in _CALLS:
            calls[call_id] = False
        elif type_ in _OUTPUTS:
            if call_id not in calls:
                kind = "function call" if type_ == _OUTPUTS[0] else "custom tool call"
                message = f"No tool call found for {kind} output with call_id {call_id}."
                raise BadRequest("/input", message)
            calls[call_id] = True
    for call_id, has_result in calls.items():
        if not has_result:
            raise BadRequest("/input", f"No tool output found for function call {call_id}.")


def duplicate_item(id_: str, at: str) -> RequestError:
    message = f"Duplicate item found with id {id_}. Remove duplicate items from your input and try again."
    return BadRequest(at, message)


def item_not_found(id_: str) -> RequestError:
    message = (
        f"Item with id '{id_}' not found. Items are not persisted when `store` is set to false. Try again with "
        "`store` set to true, or remove this item from your input."
    )
    return RequestError(Failure(Kind.NOT_FOUND, message, at="/input"))


# The ids of the items of a reply that passes unchanged, found in its bytes

_ITEM_DONE = b"response.output_item.done"
_MAX_IDS = 10_000  # of one reply


class _IdOnly(Struct, frozen=True):
    id: str = ""


class _Event(Struct):
    item: _IdOnly = _IdOnly()


class _Response(Struct):
    output: list[_IdOnly] = []


_event = msgspec.json.Decoder(_Event)
_response = msgspec.json.Decoder(_Response)


def find_item_ids(body: bytes) -> list[str]:
    """Return the ids of the items of a whole reply."""
    try:
        return [item.id for item in _response.decode(body).output[:_MAX_IDS] if item.id]
    except (ValueError, RecursionError):
        return []


class ItemIdReader:
    """Reads the ids of the items of a stream; it is fed the stream's bytes."""

    def __init__(self) -> None:
        self._framer = SseFramer()
        self.ids: list[str] = []

    def feed(self, data: bytes) -> None:
        for frame in self._framer.feed(data):
            if type(frame) is Frame and frame.data.find(_ITEM_DONE) >= 0 and len(self.ids) < _MAX_IDS:
                self._read(frame.data)

    def _read(self, data: bytes) -> None:
        try:
            id_ = _event.decode(data).item.id
        except (msgspec.MsgspecError, RecursionError):
            return
        if id_:
            self.ids.append(id_)


# Compacted contexts: a summary that a model wrote, sealed in the item that stands for what it summarises

# Envelopes too, so a body that holds one never passes unchanged. Clients still hold those of the first version, which
# have no checksum.
_COMPACTION_PREFIX = ENVELOPE_PREFIX + "c2."
_FIRST_COMPACTION_PREFIX = ENVELOPE_PREFIX + "c."

_SUMMARY_INSTRUCTIONS = (
    "You write the hand-over note of a conversation between a user and an assistant that works with tools. Another "
    "assistant will continue from your note alone. State the user's goals and constraints in their own words, the "
    "decisions made and why, what was done and found (names, paths, values, exact errors), what is unfinished, and the "
    "next step. Do not answer the user and do not call tools. Write plain text."
)
_SUMMARY_REQUEST = "Write the hand-over note for everything above now."
_SUMMARY_SETTINGS = frozenset(("model", "service_tier", "prompt_cache_key", "safety_identifier"))
_SUMMARY_INTRODUCTION = "The conversation so far was compacted to this summary:\n\n"


class Compaction(Struct, frozen=True):
    summary: str
    model: str  # that wrote it
    owner: str  # digest of the tenant it was written for

    @property
    def text_for_model(self) -> str:
        """Return the text that a model reads."""
        return _SUMMARY_INTRODUCTION + self.summary


def seal_compaction(compaction: Compaction) -> str:
    """Return the value of `encrypted_content`."""
    return _COMPACTION_PREFIX + encode_checked(msgspec.msgpack.encode(compaction))


def is_own_compaction(token: str) -> bool:
    """Return whether a value was made by a gateway, damaged or not."""
    return token.startswith((_COMPACTION_PREFIX, _FIRST_COMPACTION_PREFIX))


def open_compaction(token: str) -> Compaction | None:
    """Return the compaction that a value holds; None if it is damaged or another vendor's."""
    if not is_own_compaction(token):
        return None
    body = token.removeprefix(_FIRST_COMPACTION_PREFIX)
    try:
        if token.startswith(_COMPACTION_PREFIX):
            packed = decode_checked(token.removeprefix(_COMPACTION_PREFIX))
            return None if packed is None else msgspec.msgpack.decode(packed, type=Compaction)
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Compaction)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def make_summary_request(raw: dict[str, Json], items: list[Json]) -> dict[str, Json]:
    """Return a request to summarise these items, for the model and with the limits of the given request."""
    kept: dict[str, Json] = {key: value for key, value in raw.items() if key in _SUMMARY_SETTINGS}
    final: Item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _SUMMARY_REQUEST}]}
    own = raw.get("instructions")
    given: list[Json] = []
    if isinstance(own, str) and own:
        given.append({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": own}]})
    return {**kept, "instructions": _SUMMARY_INSTRUCTIONS, "input": [*given, *items, final], "store": False}
