"""Content blocks of a request come in; hub parts go out, and what is not understood stays whole."""

from collections.abc import Callable, Iterable

import msgspec

from dragoman.framing.fields import Fields
from dragoman.hub.opaque import Form, read_opaque
from dragoman.hub.request import (
    Cache,
    Citation,
    Document,
    Ext,
    FileId,
    Foreign,
    Image,
    Inline,
    Json,
    Link,
    Media,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from dragoman.protocols.messages.wire import VENDOR, meant

Answer = Text | Image | Document | Foreign


def unread(holder: Fields, *inner: Fields | None) -> Ext:
    """What was not read of an object and of the objects inside it, by pointers that start at the object."""
    start = len(holder.at) + 1
    return {
        fields.pointer(key)[start:]: value
        for fields in (holder, *inner)
        if fields is not None
        for key, value in fields.rest().items()
    }


def parse_cache(fields: Fields) -> tuple[Cache | None, Fields | None]:
    """The breakpoint of a block or tool, and the object that told it."""
    control = fields.obj("cache_control")
    if control is None:
        return None, None
    if control.text("type") != "ephemeral":
        return None, fields.obj("cache_control")  # unread, so that it is kept
    return Cache(control.at, control.text("ttl")), control


def parse_content(content: str | list[Fields], at: str) -> tuple[Part, ...]:
    """The parts of a turn, written as a string or as blocks."""
    if isinstance(content, str):
        return (Text(content, at),)
    return tuple(_part(block) for block in content)


def _part(block: Fields) -> Part:
    kind = block.need_text("type")
    read = _PARTS.get(kind)
    return read(block) if read is not None else _foreign(block)


def _answer(block: Fields) -> Answer:
    read = _ANSWERS.get(block.need_text("type"))
    return read(block) if read is not None else _foreign(block)


def _foreign(block: Fields) -> Foreign:
    kind = block.need_text("type")
    return Foreign(kind, {"type": kind, **block.rest()}, block.at)


def _text(block: Fields) -> Text:
    cache, control = parse_cache(block)
    return Text(
        text=block.need_text("text"),
        at=block.at,
        citations=tuple(_citations(block)),
        cache=cache,
        ext=unread(block, control),
    )


def _citations(block: Fields) -> Iterable[Citation]:
    """Nulls too are kept in what goes back to the vendor: it demands a title, if only such a one."""
    for raw, record in zip(block.items("citations") or (), block.objects("citations") or (), strict=True):
        title = record.text("title") or record.text("document_title")
        yield Citation(record.text("url"), title, record.text("cited_text"), raw=raw)


def _image(block: Fields) -> Image | Foreign:
    source = block.need_obj("source")
    media = _media(source)
    if media is None:
        return _whole(block)
    cache, control = parse_cache(block)
    return Image(media, block.at, cache=cache, ext=unread(block, source, control))


def _document(block: Fields) -> Document | Foreign:
    source = block.need_obj("source")
    media: Media | str | None = _media(source)
    if media is None and source.text("type") == "text":
        source.need_text("media_type")  # always text/plain
        media = source.need_text("data")
    if media is None and source.text("type") == "content":
        return _composed(block, source)
    if media is None:
        return _whole(block)
    cache, control = parse_cache(block)
    return Document(media, block.at, block.text("title"), cache, unread(block, source, control))


def _media(source: Fields) -> Media | None:
    match source.need_text("type"):
        case "base64":
            return Inline(source.need_text("media_type"), source.need_text("data"))
        case "url":
            return Link(source.need_text("url"))
        case "file":
            return FileId(source.need_text("file_id"))
    return None


def _composed(block: Fields, source: Fields) -> Document:
    """A document made of blocks: its text for everyone, its blocks for its own protocol."""
    raw = _raw(block)
    words, others = _read_words(source)
    cache, control = parse_cache(block)
    return Document(words, block.at, block.text("title"), cache, unread(block, source, control, *others), raw)


def _search_result(block: Fields) -> Document:
    """A search result: for everyone else a document of its words, which begins with where they came from."""
    raw = _raw(block)
    words, others = _read_words(block)
    cache, control = parse_cache(block)
    source = block.text("source")
    told = f"{source}\n\n{words}" if source else words
    return Document(told, block.at, block.text("title"), cache, unread(block, control, *others), raw)


def _read_words(holder: Fields) -> tuple[str, list[Fields]]:
    """The text of `content`, and its blocks with what else they hold."""
    content = holder.text_or_objects("content")
    if content is None or isinstance(content, str):
        return content or "", []
    texts = [item for item in content if item.text("type") == "text"]
    return "\n\n".join(item.text("text", "") for item in texts), content


def _raw(block: Fields) -> Json:
    """A block whose `type` and perhaps `source` have been read, as it came but for its cache breakpoint."""
    read = {"type": block.need_text("type"), "source": block.raw("source")}
    whole = {**{key: value for key, value in read.items() if value is not None}, **block.rest()}
    return {key: value for key, value in whole.items() if key != "cache_control"}


def _whole(block: Fields) -> Foreign:
    kind = block.need_text("type")
    return Foreign(kind, {"type": kind, "source": block.raw("source"), **block.rest()}, block.at)


def _tool_use(block: Fields) -> ToolCall:
    given = block.raw("input")
    if not isinstance(given, dict):
        raise block.bad("input", "must be an object")
    cache, control = parse_cache(block)
    caller = block.raw("caller")
    kept: Ext = {} if caller in (None, {"type": "direct"}) else {"caller": caller}
    return ToolCall(
        id=meant(block.need_text("id")),
        name=block.need_text("name"),
        arguments=msgspec.json.encode(given).decode(),
        at=block.at,
        cache=cache,
        ext=kept | unread(block, control),
    )


def _tool_result(block: Fields) -> ToolResult:
    content = block.text_or_objects("content")
    cache, control = parse_cache(block)
    answers: tuple[Answer, ...] = ()
    if isinstance(content, str):
        answers = (Text(content, block.pointer("content")),)
    elif content is not None:
        answers = tuple(_answer(item) for item in content)
    return ToolResult(
        call_id=meant(block.need_text("tool_use_id")),
        content=answers,
        at=block.at,
        is_error=block.flag("is_error", False),
        cache=cache,
        ext=unread(block, control),
    )


def _thinking(block: Fields) -> Thinking:
    signature = block.text("signature")
    opaque = read_opaque(signature, Form.SIGNATURE, VENDOR) if signature else None
    return Thinking(block.need_text("thinking"), block.at, opaque, ext=unread(block))


def _redacted(block: Fields) -> Thinking:
    return Thinking("", block.at, read_opaque(block.need_text("data"), Form.REDACTED, VENDOR), ext=unread(block))


_ANSWERS: dict[str, Callable[[Fields], Answer]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
}
_PARTS: dict[str, Callable[[Fields], Part]] = {
    **_ANSWERS,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
}
