"""Parse the content blocks of a Messages request into hub parts; unknown blocks are extras whole."""

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.fields import Fields, unread_fields
from dragoman.translate.hub.opaque import OpaqueForm, is_signature, read_opaque
from dragoman.translate.hub.request import (
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
from dragoman.translate.hub.server_tools import (
    SearchFound,
    SearchResult,
    ServerToolUse,
    SourceText,
    ToolErrorCode,
    ToolFailure,
    WebPage,
    is_own_source,
    unseal_source,
)
from dragoman.translate.protocols.messages.wire import DIRECT_CALLER, VENDOR, decode_call_id, decode_use_id

ResultPart = Text | Image | Document | Foreign
_RESULT_KINDS = {"web_search_tool_result": "web_search", "web_fetch_tool_result": "web_fetch"}


def parse_cache(fields: Fields) -> tuple[Cache | None, Fields | None]:
    """Return the cache breakpoint of a block or tool, and the object that defines it."""
    control = fields.obj("cache_control")
    if control is None:
        return None, None
    if control.text("type") != "ephemeral":
        return None, fields.obj("cache_control")  # not marked as read, so that it is extras
    return Cache(control.at, control.text("ttl")), control


def parse_content(content: str | list[Fields], at: str) -> tuple[Part, ...]:
    """Parse the parts of a turn, written as a string or as blocks."""
    if isinstance(content, str):
        return (Text(content, at),)
    return tuple([_parse_part(block) for block in content])


def _parse_part(block: Fields) -> Part:
    kind = block.need_text("type")
    read = _PARSERS.get(kind)
    return read(block) if read is not None else _parse_foreign(block)


def _parse_result_part(block: Fields) -> ResultPart:
    read = _RESULT_PARSERS.get(block.need_text("type"))
    return read(block) if read is not None else _parse_foreign(block)


def _parse_foreign(block: Fields) -> Foreign:
    kind = block.need_text("type")
    raw: dict[str, Json] = {"type": kind, **block.rest()}
    if raw.get("caller") == DIRECT_CALLER:
        del raw["caller"]
    token = raw.get("encrypted_content") if kind in _RESULT_KINDS else None
    if not isinstance(token, str) or not is_own_source(token):
        return Foreign(kind, raw, block.at)
    shown = {key: value for key, value in raw.items() if value is not token}
    return Foreign(kind, shown, block.at, returned=unseal_source(token))


def _parse_text(block: Fields) -> Text:
    cache, control = parse_cache(block)
    return Text(
        text=block.need_text("text"),
        at=block.at,
        citations=tuple(_parse_citations(block)) if block.has("citations") else (),
        cache=cache,
        ext=unread_fields(block, control),
    )


def _parse_citations(block: Fields) -> Iterable[Citation]:
    """Yield the citations; `raw` keeps nulls, because the vendor demands a title even if it is null."""
    for raw, record in zip(block.items("citations") or (), block.objects("citations") or (), strict=True):
        title = record.text("title") or record.text("document_title")
        yield Citation(record.text("url"), title, record.text("cited_text"), raw=raw)


def _parse_image(block: Fields) -> Image | Foreign:
    source = block.need_obj("source")
    media = _parse_media(source)
    if media is None:
        return _keep_whole(block)
    cache, control = parse_cache(block)
    return Image(media, block.at, cache=cache, ext=unread_fields(block, source, control))


def _parse_document(block: Fields) -> Document | Foreign:
    source = block.need_obj("source")
    media: Media | str | None = _parse_media(source)
    if media is None and source.text("type") == "text":
        source.need_text("media_type")  # always text/plain
        media = source.need_text("data")
    if media is None and source.text("type") == "content":
        return _parse_composed(block, source)
    if media is None:
        return _keep_whole(block)
    cache, control = parse_cache(block)
    return Document(media, block.at, block.text("title"), cache, unread_fields(block, source, control))


def _parse_media(source: Fields) -> Media | None:
    match source.need_text("type"):
        case "base64":
            return Inline(source.need_text("media_type"), source.need_text("data"))
        case "url":
            return Link(source.need_text("url"))
        case "file":
            return FileId(source.need_text("file_id"))
    return None


def _parse_composed(block: Fields, source: Fields) -> Document:
    """Parse a document made of blocks: its text for all protocols, its blocks for this one."""
    raw = _as_raw(block)
    text, others = _read_text(source)
    cache, control = parse_cache(block)
    return Document(text, block.at, block.text("title"), cache, unread_fields(block, source, control, *others), raw)


def _parse_search_result(block: Fields) -> Document:
    """Parse a search result; for other protocols it is a document that begins with its source."""
    raw = _as_raw(block)
    text, others = _read_text(block)
    cache, control = parse_cache(block)
    source = block.text("source")
    titled = f"{source}\n\n{text}" if source else text
    return Document(titled, block.at, block.text("title"), cache, unread_fields(block, control, *others), raw)


def _read_text(holder: Fields) -> tuple[str, list[Fields]]:
    """Return the text of `content`, and its blocks."""
    content = holder.text_or_objects("content")
    if content is None or isinstance(content, str):
        return content or "", []
    texts = [item for item in content if item.text("type") == "text"]
    return "\n\n".join(item.text("text", "") for item in texts), content


def _as_raw(block: Fields) -> Json:
    """Return a block as it came, without its cache breakpoint."""
    read = {"type": block.need_text("type"), "source": block.raw("source")}
    whole = {**{key: value for key, value in read.items() if value is not None}, **block.rest()}
    return {key: value for key, value in whole.items() if key != "cache_control"}


def _keep_whole(block: Fields) -> Foreign:
    kind = block.need_text("type")
    return Foreign(kind, {"type": kind, "source": block.raw("source"), **block.rest()}, block.at)


def _parse_tool_use(block: Fields) -> ToolCall:
    given = block.raw("input")
    if not isinstance(given, dict):
        raise block.bad("input", "must be an object")
    cache, control = parse_cache(block)
    caller = block.raw("caller")
    extras: Ext = {} if caller in (None, DIRECT_CALLER) else {"caller": caller}
    return ToolCall(
        id=decode_call_id(block.need_text("id")),
        name=block.need_text("name"),
        arguments=msgspec.json.encode(given).decode(),
        at=block.at,
        cache=cache,
        ext=extras | unread_fields(block, control),
    )


def _parse_tool_result(block: Fields) -> ToolResult:
    content = block.text_or_objects("content")
    cache, control = parse_cache(block)
    parts: tuple[ResultPart, ...] = ()
    if isinstance(content, str):
        parts = (Text(content, block.pointer("content")),)
    elif content is not None:
        parts = tuple(_parse_result_part(item) for item in content)
    return ToolResult(
        call_id=decode_call_id(block.need_text("tool_use_id")),
        content=parts,
        at=block.at,
        is_error=block.flag("is_error", False),
        cache=cache,
        ext=unread_fields(block, control),
    )


def _parse_thinking(block: Fields) -> Thinking:
    signature = block.text("signature")
    opaque = read_opaque(signature, OpaqueForm.SIGNATURE, VENDOR) if signature and is_signature(signature) else None
    return Thinking(block.need_text("thinking"), block.at, opaque, ext=unread_fields(block))


def _parse_redacted(block: Fields) -> Thinking:
    return Thinking(
        "", block.at, read_opaque(block.need_text("data"), OpaqueForm.REDACTED, VENDOR), ext=unread_fields(block)
    )


_RESULT_PARSERS: dict[str, Callable[[Fields], ResultPart]] = {
    "text": _parse_text,
    "image": _parse_image,
    "document": _parse_document,
    "search_result": _parse_search_result,
}
_PARSERS: dict[str, Callable[[Fields], Part]] = {
    **_RESULT_PARSERS,
    "tool_use": _parse_tool_use,
    "tool_result": _parse_tool_result,
    "thinking": _parse_thinking,
    "redacted_thinking": _parse_redacted,
}


def read_tool_uses(parts: Sequence[Part]) -> dict[int, ServerToolUse | None]:
    """Return the earlier uses of web search and fetch: each at its call, with its result wherever that stands.

    A result without its call is a use of an earlier turn.
    """
    results = {
        str(part.raw.get("tool_use_id")): (index, part)
        for index, part in enumerate(parts)
        if isinstance(part, Foreign) and part.what in _RESULT_KINDS and isinstance(part.raw, dict)
    }
    uses: dict[int, ServerToolUse | None] = {}
    seen: dict[str, int] = {}
    for index, part in enumerate(parts):
        if not isinstance(part, Foreign) or part.what != "server_tool_use" or not isinstance(part.raw, dict):
            continue
        kind, id, given = part.raw.get("name"), str(part.raw.get("id")), part.raw.get("input")
        if kind not in _RESULT_KINDS.values():
            continue
        found = results.get(id)
        if found is not None:
            uses[found[0]] = None
            if id in seen:  # the same use again, as it stands with its result
                uses[seen[id]] = None
        seen[id] = index
        arguments = {str(key): value for key, value in given.items()} if isinstance(given, dict) else {}
        use = ServerToolUse(id, str(kind), arguments, None, place=decode_use_id(id))
        uses[index] = use if found is None else _add_outcome(use, found[1])
    for id, (index, part) in results.items():
        if id not in seen:
            use = ServerToolUse(id, _RESULT_KINDS[part.what], {}, None, place=decode_use_id(id), is_result=True)
            uses[index] = _add_outcome(use, part)
    return uses


def _add_outcome(use: ServerToolUse, result: Foreign) -> ServerToolUse:
    """Return a use with what its result block says."""
    content = result.raw.get("content") if isinstance(result.raw, dict) else None
    sealed = result.returned
    is_whole = sealed is not None or use.place is None
    if isinstance(content, list):
        items = [item for item in content if isinstance(item, dict)]
        if items:
            return _add_found(use, items)
        prose = None if sealed is None else sealed.prose
        return replace(use, outcome=SearchFound((), prose), is_ours=True, is_whole=is_whole)
    if isinstance(content, dict) and content.get("type") == "web_fetch_result":
        page = _read_fetched(content, truncated=sealed is not None and sealed.truncated)
        return replace(use, outcome=page, is_ours=True, is_whole=is_whole)
    code = content.get("error_code") if isinstance(content, dict) else None
    known = next((kind for kind in ToolErrorCode if kind.value == code), ToolErrorCode.UNAVAILABLE)
    message = f"The tool failed ({code})." if sealed is None else sealed.text
    return replace(use, outcome=ToolFailure(known, message), is_ours=True, is_whole=is_whole)


def _add_found(use: ServerToolUse, items: list[dict[str, Json]]) -> ServerToolUse:
    tokens = [item.get("encrypted_content") for item in items]
    sources = [unseal_source(token) if isinstance(token, str) else None for token in tokens]
    results = tuple(_read_found(item, source) for item, source in zip(items, sources, strict=True))
    outcome = SearchFound(results, None if sources[0] is None else sources[0].prose)
    return replace(use, outcome=outcome, is_ours=all(map(is_own_source, tokens)), is_whole=None not in sources)


def _read_found(item: dict[str, Json], source: SourceText | None) -> SearchResult:
    age = item.get("page_age")
    text, date = ("", age if isinstance(age, str) else None) if source is None else (source.text, source.published)
    return SearchResult(str(item.get("url") or ""), str(item.get("title") or ""), text, date)


def _read_fetched(content: dict[str, Json], *, truncated: bool) -> WebPage:
    document = content.get("content")
    source = document.get("source") if isinstance(document, dict) else None
    title = document.get("title") if isinstance(document, dict) else None
    url, data = str(content.get("url") or ""), source.get("data") if isinstance(source, dict) else None
    is_pdf = isinstance(source, dict) and source.get("type") == "base64"
    text = data if isinstance(data, str) else ""
    is_citable = not isinstance(document, dict) or document.get("citations") != {"enabled": False}
    body, pdf = ("", text) if is_pdf else (text, None)
    return WebPage(url, str(title or url), body, pdf, truncated, is_citable=is_citable)
