"""Divide a request to an upstream into blocks, in the order in which its vendor reads them, without marks."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.caching.branches import checksum_kind, digest_blocks, digest_head
from dragoman.translate.caching.outlook import Miss
from dragoman.translate.framing.jsonread import JSON_ERRORS, decode_or
from dragoman.translate.hub.caching import BodyFields, BuiltPrompt, RenderedGroup, SentPrompt
from dragoman.translate.hub.ports import PromptReader
from dragoman.translate.hub.profile import Profile, Target

MARK_FIELDS = frozenset(("cache_control", "copilot_cache_control", "prompt_cache_breakpoint", "cachePoint"))
MESSAGES = Miss.MESSAGES.value
HEAD = ("tools", "system")  # the sections before settings and messages
BREAKPOINT_LIFE_S = 1800.0  # GPT-5.6 and later
IMPLICIT_LIFE_S = 600.0  # earlier models of OpenAI, without a retention
DAY_S = 86_400.0
_NO_SUCH_BODY = (*JSON_ERRORS, KeyError)
_IN_EACH_MARK = b"cache"  # nearly no block has it
_AS_BUILT = (b'{"role":"user"', b'{"role":"assistant"', b'{"role":"system"', b'{"role":"developer"', b'{"role":"tool"')
_INSTRUCTING = (b'{"role":"system"', b'{"role":"developer"')
_MARKS = tuple(f'"{name}"'.encode() for name in MARK_FIELDS)
_DAY = Raw(b'"24h"')
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_raw_list = msgspec.json.Decoder(list[Raw]).decode
_object = msgspec.json.Decoder(dict[str, Raw])


class _Role(Struct):
    role: str = ""


_role = msgspec.json.Decoder(_Role)


def list_blocks(reader: PromptReader, body: bytes) -> list[RenderedGroup]:
    """Return the groups of a body that have blocks, without marks; none if it cannot be read."""
    try:
        return [strip_group(group) for group in reader.list_groups(read_fields(body)) if group.blocks]
    except _NO_SUCH_BODY:
        return []


def describe_body(reader: PromptReader, body: bytes, profile: Profile, *, is_marked: bool) -> BuiltPrompt | None:
    """Describe a request to an upstream that needs no marks; None: it cannot be read. `is_marked`: it may have some."""
    return _describe(reader, read_fields(body), profile, is_marked=is_marked)


def encode_and_describe(body: dict[str, object], lists: Collection[str], reader: PromptReader, target: Target) -> bytes:
    """Encode a request to an upstream that needs no marks, and let its plan take what is remembered of it.

    The members of `lists`, which are nearly all of it, are encoded one by one: to find them in the body afterwards
    would take longer than to encode it.
    """
    plan = target.cache
    if plan.take is None:
        return _encode(body)
    fields, encoded, listed = BodyFields(), dict[str, object](), dict[str, list[bytes]]()
    for name, value in body.items():
        if name in lists and isinstance(value, list):
            members = listed[name] = list(map(_encode, value))
            encoded[name] = list(map(Raw, members))
        else:
            encoded[name] = fields[name] = Raw(_encode(value))
    fields.members = listed
    built = _describe(reader, fields, target.profile, is_marked=plan.breakpoints)
    if built is not None:
        plan.take(built)
    return _encode(encoded)


def _describe(reader: PromptReader, fields: BodyFields, profile: Profile, *, is_marked: bool) -> BuiltPrompt | None:
    try:
        groups = reader.list_groups(fields)
    except _NO_SUCH_BODY:
        return None
    if is_marked:
        groups = [strip_group(group) for group in groups if group.blocks]
    blocks, kinds, head = list[bytes](), list[int](), 0
    for group in groups:
        own = group.blocks
        if own:
            blocks += own
            kinds += (checksum_kind(group.kind),) * len(own)
            if group.section in HEAD:
                head = len(blocks)
    if not blocks:
        return None
    chain = digest_blocks(blocks, kinds)
    sent = SentPrompt(chain, digest_head(chain, head), len(blocks), reader.find_life_s(fields, profile))
    return BuiltPrompt(sent, tuple(map(len, blocks)), groups.__iter__, minimum=profile.cache_minimum)


def read_fields(body: bytes | Raw) -> BodyFields:
    """Return the fields of a body; none if it cannot be read."""
    fields: dict[str, Raw] = decode_or(_object, body, {})
    return BodyFields(fields)


def read_object(json: bytes | Raw) -> dict[str, Raw]:
    return _object.decode(json)


def read_list(json: bytes | Raw) -> list[Raw]:
    return _raw_list(json)


def make_list(section: str, body: BodyFields, name: str, place: str = "") -> RenderedGroup:
    """Return the members of a list of the body."""
    members = body.members.get(name)
    if members is None:
        members = _list_members(body[name]) if name in body and body[name] != b"null" else []
    return RenderedGroup(section, section, f"{place}/{name}", members)


def _list_members(json: bytes | Raw) -> list[bytes]:
    return list(map(bytes, _raw_list(json)))


def make_content(section: str, kind: str, pointer: str, content: bytes | Raw) -> RenderedGroup:
    """Return the blocks of a content, which is a list or a string."""
    if bytes(content).lstrip()[:1] == b"[":
        return RenderedGroup(section, kind, pointer, list(map(bytes, _raw_list(content))))
    return RenderedGroup(section, kind, pointer, [bytes(content)], is_list=False)


def make_messages(body: BodyFields, name: str) -> tuple[RenderedGroup, RenderedGroup]:
    """Return the members of a list of messages; those that instruct the model and come first are its system prompt."""
    pointer = f"/{name}"
    blocks = body.members.get(name)
    if blocks is None:
        messages = body[name]
        if bytes(messages).lstrip()[:1] != b"[":
            return RenderedGroup("system", "system", pointer, []), make_content(MESSAGES, MESSAGES, pointer, messages)
        blocks = _list_members(messages)
    leading = 0
    while leading < len(blocks) and _instructs(blocks[leading]):
        leading += 1
    return (
        RenderedGroup("system", "system", pointer, blocks[:leading]),
        RenderedGroup(MESSAGES, MESSAGES, pointer, blocks[leading:], offset=leading),
    )


def _instructs(message: bytes) -> bool:
    if message.startswith(_AS_BUILT):  # the role first and without blanks
        return message.startswith(_INSTRUCTING)
    return decode_or(_role, message, _Role()).role in ("system", "developer")


def make_settings(body: Mapping[str, Raw], names: tuple[str, ...], place: str = "") -> Sequence[RenderedGroup]:
    """Return a block for each setting, absent ones included: to appear is a change."""
    absent = _make_absent(names, place)
    if body.keys().isdisjoint(names):
        return absent
    return [
        replace(group, blocks=[bytes(body[name])]) if name in body else group
        for name, group in zip(names, absent, strict=True)
    ]


@lru_cache(maxsize=64)
def _make_absent(names: tuple[str, ...], place: str) -> tuple[RenderedGroup, ...]:
    """Return the groups of settings that a body does not have; the names are ours."""
    return tuple(
        RenderedGroup("settings", f"settings/{name}", f"{place}/{name}", [b"null"], is_list=False) for name in names
    )


def strip_group(group: RenderedGroup) -> RenderedGroup:
    return replace(group, blocks=list(map(strip_marks, group.blocks)))


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
