"""Divide a request to an upstream into blocks, in the order in which its vendor reads them, without marks."""

from functools import lru_cache

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.caching.branches import checksum_kind, digest_blocks
from dragoman.translate.caching.outlook import Miss
from dragoman.translate.framing.jsonread import JSON_ERRORS, decode_or
from dragoman.translate.hub.caching import BlockGroup, BodyFields, BuiltPrompt, SentPrompt
from dragoman.translate.hub.ports import PromptReader
from dragoman.translate.hub.profile import Profile

MARK_FIELDS = frozenset(("cache_control", "copilot_cache_control", "prompt_cache_breakpoint", "cachePoint"))
TOOLS, SYSTEM, SETTINGS, MESSAGES = (miss.value for miss in (Miss.TOOLS, Miss.SYSTEM, Miss.SETTINGS, Miss.MESSAGES))
KINDS = {section: checksum_kind(section) for section in (TOOLS, SYSTEM, SETTINGS, MESSAGES)}
_SYSTEM_KIND, _MESSAGES_KIND = KINDS[SYSTEM], KINDS[MESSAGES]
BREAKPOINT_LIFE_S = 1800.0  # GPT-5.6 and later
IMPLICIT_LIFE_S = 600.0  # earlier models of OpenAI, without a retention
DAY_S = 86_400.0
_NO_SUCH_BODY = (*JSON_ERRORS, KeyError)
_IN_EACH_MARK = b"cache"  # nearly no block has it
_AS_BUILT = b'{"role":"'  # the role first and without blanks
_INSTRUCTING = (b'{"role":"system"', b'{"role":"developer"')
_MARKS = tuple(f'"{name}"'.encode() for name in MARK_FIELDS)
_DAY = Raw(b'"24h"')
_NULL = Raw(b"null")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_object = msgspec.json.Decoder(dict[str, Raw])
read_list = msgspec.json.Decoder(list[Raw]).decode
read_object = _object.decode
_raw_list = msgspec.json.Decoder(list[Raw]).decode
_object = msgspec.json.Decoder(dict[str, Raw])


class _Role(Struct):
    role: str = ""


_role = msgspec.json.Decoder(_Role)


def list_blocks(reader: PromptReader, body: bytes) -> list[BlockGroup]:
    """Return the groups of a body that have blocks, without marks; none if it cannot be read."""
    try:
        return [strip_group(group) for group in reader.list_groups(read_fields(body)) if group.blocks]
    except _NO_SUCH_BODY:
        return []


def describe_body(reader: PromptReader, body: bytes, profile: Profile, *, is_marked: bool) -> BuiltPrompt | None:
    """Describe a request to an upstream that needs no marks; None: it cannot be read. `is_marked`: it may have some."""
    fields = read_fields(body)
    try:
        groups = reader.list_groups(fields)
    except _NO_SUCH_BODY:
        return None
    if is_marked:
        groups = list(map(strip_group, groups))
    blocks: list[bytes | Raw] = []
    kinds: list[int] = []
    for group in groups:
        own = group.blocks
        blocks += own
        kinds += (group.kind,) * len(own)
    if not blocks:
        return None
    sizes = tuple(map(len, blocks))
    sent = SentPrompt(digest_blocks(blocks, sizes, kinds), b"", len(blocks), reader.find_life_s(fields, profile))
    return BuiltPrompt(sent, sizes, groups.__iter__, None, profile.cache_minimum)


def read_fields(body: bytes) -> dict[str, Raw]:
    """Return the fields of a body; none if it cannot be read."""
    return decode_or(_object, body, {})


def make_list(section: str, fields: BodyFields, name: str) -> BlockGroup:
    """Return the members of a list of the body."""
    json = fields.get(name)
    members = [] if json is None or json == _NULL else read_list(json)
    return BlockGroup(section, KINDS[section], f"/{name}", members)


def make_content(section: str, pointer: str, content: Raw, kind: int | None = None) -> BlockGroup:
    """Return the blocks of a content, which is a list or a string."""
    kind, is_list = KINDS[section] if kind is None else kind, bytes(content).startswith(b"[")
    return BlockGroup(section, kind, pointer, read_list(content) if is_list else [content], is_list)


def make_messages(fields: BodyFields, name: str) -> tuple[BlockGroup, BlockGroup]:
    """Return the members of a list of messages; those that instruct the model and come first are its system prompt."""
    pointer, content, leading = f"/{name}", fields[name], 0
    try:
        messages = read_list(content)
    except msgspec.ValidationError:
        return BlockGroup(SYSTEM, _SYSTEM_KIND, pointer, []), make_content(MESSAGES, pointer, content)
    while leading < len(messages) and _instructs(bytes(messages[leading])):
        leading += 1
    return (
        BlockGroup(SYSTEM, _SYSTEM_KIND, pointer, messages[:leading]),
        BlockGroup(MESSAGES, _MESSAGES_KIND, pointer, messages[leading:], True, leading),
    )


def _instructs(message: bytes) -> bool:
    if message.startswith(_AS_BUILT):
        return message.startswith(_INSTRUCTING)
    return decode_or(_role, message, _Role()).role in ("system", "developer")


def make_settings(fields: BodyFields, names: tuple[str, ...], place: str = "") -> BlockGroup:
    """Return a block for each setting, absent ones included: to appear is a change."""
    if fields.keys().isdisjoint(names):
        return _make_absent(names, place)
    return BlockGroup(SETTINGS, KINDS[SETTINGS], place, [fields.get(name, _NULL) for name in names], names=names)


@lru_cache(maxsize=64)
def _make_absent(names: tuple[str, ...], place: str) -> BlockGroup:
    """Return the group of settings that a body does not have; the names are ours."""
    return BlockGroup(SETTINGS, KINDS[SETTINGS], place, (b"null",) * len(names), names=names)


def strip_group(group: BlockGroup) -> BlockGroup:
    return replace(group, blocks=[strip_marks(bytes(block)) for block in group.blocks])


def strip_marks(block: bytes) -> bytes:
    """Return a block without marks; one that has none keeps its bytes."""
    if _IN_EACH_MARK not in block or not any(mark in block for mark in _MARKS):
        return block
    return _encode(strip_value(_decode(block)))


def strip_value(value: object) -> object:
    if isinstance(value, dict):
        return {name: strip_value(inner) for name, inner in value.items() if name not in MARK_FIELDS}
    return [strip_value(inner) for inner in value] if isinstance(value, list) else value


def find_implicit_life(fields: BodyFields, profile: Profile) -> float:
    """Return for how long OpenAI keeps what a body writes."""
    if fields.get("prompt_cache_retention") == _DAY:
        return DAY_S
    return BREAKPOINT_LIFE_S if profile.cache_breakpoints else IMPLICIT_LIFE_S
