"""Parse the messages of a Chat request into turns."""

import base64
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import msgspec

from dragoman.translate.caching.breakpoints import read_breakpoint
from dragoman.translate.framing.fields import BadField, Fields, unread_fields
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX, Opaque, OpaqueForm, read_opaque
from dragoman.translate.hub.request import (
    Audio,
    Document,
    Ext,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Media,
    Part,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.protocols.chat.wire import AUDIO_TYPES, FILE_TYPES, visible_text

_USER, _ASSISTANT = Role.USER, Role.ASSISTANT  # looked up once: on Python 3.11, each look-up of a member is slow
_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "user": Role.USER}


def parse_turns(messages: list[Fields]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    custom: set[str] = set()  # ids of custom tools' calls: other protocols give their results a type of their own
    for message in messages:
        turn = _read_turn(message, custom)
        for part in turn.parts:
            if type(part) is ToolCall and part.custom:
                custom.add(part.id)
        turns.append(turn)
    return tuple(turns)


def _read_turn(message: Fields, custom: set[str]) -> Turn:
    role = message.need_text("role")
    if role == "assistant":
        return _read_assistant(message)
    if role == "tool":
        call_id = message.need_text("tool_call_id")
        content = tuple(_result_part(part) for part in _parse_content(message))
        result = ToolResult(call_id, content, message.at, custom=call_id in custom, ext=unread_fields(message))
        return Turn(_USER, (result,), message.at)
    if role == "function":
        raise BadField(message.pointer("role"), "is the deprecated 'function'; send the result with the role 'tool'")
    if role not in _ROLES:
        raise message.bad("role", "must be system, developer, user, assistant or tool")
    parts = _parse_content(message)
    return Turn(_ROLES[role], parts, message.at, unread_fields(message))


def _read_assistant(message: Fields) -> Turn:
    if message.has("audio"):
        raise BadField(message.pointer("audio"), "refers to an audio reply, which is not stored here; send its text")
    # Parse the reasoning that a client returns, once even if several fields repeat it.
    key = "reasoning_content" if message.has("reasoning_content") else "reasoning"
    visible = message.text("reasoning_content")
    if visible is None and isinstance(message.raw("reasoning"), str):
        visible = message.text("reasoning")
    entries = [*_read_details(message), *_read_blocks(message)]
    parts: list[Part] = [*_merge_reasoning(visible or "", message.pointer(key), entries), *_parse_content(message)]
    refusal = message.text("refusal")
    if refusal:
        parts.append(Refusal(refusal, message.pointer("refusal")))
    for call in message.objects("tool_calls") or ():
        parts += [*_parse_call_signature(call), _read_call(call)]
    legacy = message.obj("function_call")
    if legacy is not None:
        call_id = "call_" + message.at.rpartition("/")[2]
        name, arguments = legacy.need_text("name"), _read_arguments(legacy)
        parts.append(ToolCall(call_id, name, arguments, legacy.at, ext=unread_fields(legacy)))
    return Turn(_ASSISTANT, tuple(parts), message.at, _without_sdk_defaults(unread_fields(message)))


def _read_call(call: Fields) -> Part:
    kind = call.text("type", "function")
    call_id = call.text("id", "")
    called = call.obj(kind)
    if called is None or kind not in ("function", "custom"):
        return Foreign(kind, {"type": kind, "id": call_id, **call.rest()}, call.at)
    custom = kind == "custom"
    name = called.need_text("name")
    arguments = called.text("input", "") if custom else _read_arguments(called)
    ext = unread_fields(call, called)
    return ToolCall(call_id, name, arguments, call.at, custom=custom, ext=ext)


def _read_arguments(called: Fields) -> str:
    """Return arguments as JSON text; some clients send the object itself, or nothing for no arguments."""
    if isinstance(called.raw("arguments"), dict):
        return msgspec.json.encode(called.raw("arguments")).decode()
    return called.text("arguments") or "{}"


def _result_part(part: Part) -> Text | Image | Document | Foreign:
    match part:
        case Text() | Image() | Document() | Foreign():
            return part
        case _:
            raise BadField(part.at, "is not allowed in a tool result")


def _without_sdk_defaults(ext: Ext) -> Ext:
    """Leave out the empty fields that SDKs add when they return a message."""
    return {key: value for key, value in ext.items() if not (key in ("annotations", "parsed") and not value)}


def _parse_content(message: Fields) -> tuple[Part, ...]:
    """Parse `content`, a string or an array of parts; an empty string has no parts."""
    content = message.text_or_objects("content")
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (Text(content, f"{message.at}/content"),)
    return tuple([_read_part(part) for part in content])


def _read_part(part: Fields) -> Part:
    kind = part.need_text("type")
    match kind:
        case "text":
            text = part.text("text", "")
            cache = read_breakpoint(part)
            return Text(text, part.at, cache=cache, ext=unread_fields(part))
        case "refusal":
            refusal = part.text("refusal", "")
            return Refusal(refusal, part.at, ext=unread_fields(part))
        case "image_url":
            return _read_image(part)
        case "file":
            return _read_file(part)
        case "input_audio":
            audio = part.need_obj("input_audio")
            sound = audio.need_text("format")
            source = Inline(AUDIO_TYPES.get(sound, f"audio/{sound}"), audio.need_text("data"))
            return Audio(source, part.at, ext=unread_fields(part, audio))
        case _:
            return Foreign(kind, {"type": kind, **part.rest()}, part.at)


def _read_image(part: Fields) -> Image:
    if isinstance(part.raw("image_url"), str):  # a shorthand that many servers take
        source = _read_url(part.need_text("image_url"), part.pointer("image_url"))
        return Image(source, part.at, cache=read_breakpoint(part), ext=unread_fields(part))
    image = part.need_obj("image_url")
    source = _read_url(image.need_text("url"), image.pointer("url"))
    detail = image.text("detail")
    cache = read_breakpoint(part)
    ext = unread_fields(part, image)
    return Image(
        source,
        part.at,
        detail=None if detail == "auto" else detail,
        detail_at=f"{part.at}/image_url/detail" if detail not in (None, "auto") else "",
        cache=cache,
        ext=ext,
    )


def _read_file(part: Fields) -> Document:
    file = part.need_obj("file")
    name = file.text("filename")
    data = file.text("file_data")
    file_id = file.text("file_id")
    source: Media
    if data is not None:
        source = _read_file_data(data, name, file.pointer("file_data"))
    elif file_id is not None:
        source = FileId(file_id)
    else:
        raise BadField(file.at, "must have file_data or file_id")
    cache = read_breakpoint(part)
    return Document(source, part.at, title=name, cache=cache, ext=unread_fields(part, file))


def _read_url(url: str, at: str) -> Inline | Link:
    if url[:5].lower() == "data:":
        return _read_data_url(url, at)
    if "://" not in url:
        raise BadField(at, "must be a data: URL or an address")
    return Link(url)


def _read_data_url(url: str, at: str) -> Inline:
    head, comma, data = url[5:].partition(",")
    if not comma:
        raise BadField(at, "is a data: URL without data")
    media_type, *options = head.split(";")
    if "base64" not in options:
        data = base64.b64encode(unquote_to_bytes(data)).decode()
    return Inline(media_type or "text/plain", data)


def _read_file_data(data: str, name: str | None, at: str) -> Inline:
    if data[:5].lower() == "data:":
        return _read_data_url(data, at)
    extension = (name or "").rpartition(".")[2].lower()
    return Inline(FILE_TYPES.get(extension, "application/pdf"), data)


def _merge_reasoning(visible: str, at: str, entries: list[Thinking]) -> list[Thinking]:
    """Place the entries within the visible text, which joins the texts of all."""
    thinking: list[Thinking] = []
    rest, exact = visible, True
    for thought in entries:
        prefix, found, suffix = rest.partition(thought.text) if thought.text else ("", "", rest)
        if thought.text and not found:
            exact = False
        else:
            if prefix:
                thinking.append(Thinking(prefix, at))
            rest = suffix
        thinking.append(thought)
    # If the visible text does not contain theirs, the client has altered it; adding it would repeat them.
    if rest and exact:
        thinking.append(Thinking(rest, at))
    return thinking


def _read_details(message: Fields) -> Iterator[Thinking]:
    for detail in message.objects("reasoning_details") or ():
        entry = detail.rest()
        data = detail.raw("data")
        if isinstance(data, str) and data.startswith(ENVELOPE_PREFIX):
            ours = read_opaque(data, OpaqueForm.DETAIL, "")
            yield Thinking(ours.text, detail.at, ours)
        else:
            yield Thinking(
                visible_text(entry), detail.at, Opaque("", OpaqueForm.DETAIL, msgspec.json.encode(entry).decode())
            )


def _read_blocks(message: Fields) -> Iterator[Thinking]:
    for block in message.objects("thinking_blocks") or ():
        text, signature, data = block.text("thinking", ""), block.text("signature"), block.text("data")
        if data:
            yield Thinking("", block.at, read_opaque(data, OpaqueForm.REDACTED, ""))
        else:
            yield Thinking(text, block.at, read_opaque(signature, OpaqueForm.SIGNATURE, "") if signature else None)


def _parse_call_signature(call: Fields) -> Iterator[Thinking]:
    """Yield the signature of a call that is ours; another one stays with its call, for an upstream of this protocol."""
    extra = call.rest().get("extra_content") if call.has("extra_content") else None
    google = extra.get("google") if isinstance(extra, dict) else None
    token = google.get("thought_signature") if isinstance(google, dict) else None
    if isinstance(token, str) and token.startswith(ENVELOPE_PREFIX):
        call.raw("extra_content")
        yield Thinking("", call.pointer("extra_content"), read_opaque(token, OpaqueForm.SIGNATURE, ""))
