"""Parse the content parts of Responses items into hub parts."""

import re

from dragoman.framing.fields import BadField, Fields, unread_fields
from dragoman.hub.request import (
    Audio,
    Cache,
    Citation,
    Document,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Media,
    Part,
    Refusal,
    Text,
)

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_MEDIA_BY_SUFFIX = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv"}


def parse_content(fields: Fields, key: str) -> tuple[Part, ...]:
    """Parse content, a string or an array of parts."""
    content = fields.text_or_objects(key)
    if isinstance(content, str):
        return (Text(content, fields.pointer(key)),) if content else ()
    return tuple(parse_part(part) for part in content or ())


def parse_part(part: Fields) -> Part:
    match part.text("type"):
        case "input_text" | "output_text" | "text":
            return _read_text(part)
        case "refusal":
            return Refusal(part.need_text("refusal"), part.at, unread_fields(part))
        case "input_image":
            return _read_image(part)
        case "input_file":
            return _read_file(part)
        case "input_audio":
            return _read_audio(part)
        case other:
            return Foreign(str(other), {"type": other, **part.rest()}, part.at)


def _read_text(part: Fields) -> Text:
    annotations = part.objects("annotations") or []
    logprobs = part.raw("logprobs")
    cache = _read_cache(part)
    text = part.need_text("text")
    ext = unread_fields(part) | ({"logprobs": logprobs} if logprobs else {})
    return Text(text, part.at, tuple(_read_citation(annotation) for annotation in annotations), cache, ext)


def _read_citation(annotation: Fields) -> Citation:
    raw = annotation.rest()
    return Citation(
        url=annotation.text("url"),
        title=annotation.text("title") or annotation.text("filename"),
        start=annotation.integer("start_index"),
        end=annotation.integer("end_index"),
        raw=raw,
    )


def _read_image(part: Fields) -> Image:
    url, file_id = part.text("image_url"), part.text("file_id")
    source: Media
    if file_id is not None:
        source = FileId(file_id)
    elif url is not None:
        source = _read_media(url, part.pointer("image_url"))
    else:
        raise BadField(part.at, "needs image_url or file_id")
    detail = part.text("detail")
    return Image(
        source,
        part.at,
        detail=None if detail == "auto" else detail,
        detail_at=part.pointer("detail") if detail not in (None, "auto") else "",
        cache=_read_cache(part),
        ext=unread_fields(part),
    )


def _read_file(part: Fields) -> Document:
    file_id, url, data = part.text("file_id"), part.text("file_url"), part.text("file_data")
    title = part.text("filename")
    source: Media
    if file_id is not None:
        source = FileId(file_id)
    elif data is not None:
        source = _read_file_data(data, title)
    elif url is not None:
        source = Link(url)
    else:
        raise BadField(part.at, "needs file_id, file_data or file_url")
    detail, cache = part.text("detail"), _read_cache(part)
    ext = unread_fields(part) | ({"detail": detail} if detail not in (None, "auto") else {})
    return Document(source, part.at, title, cache, ext)


def _read_audio(part: Fields) -> Audio:
    audio = part.need_obj("input_audio")
    source = Inline(f"audio/{audio.need_text('format')}", audio.need_text("data"))
    return Audio(source, part.at, unread_fields(part, audio))


def _read_cache(part: Fields) -> Cache | None:
    breakpoint_ = part.obj("prompt_cache_breakpoint")
    return None if breakpoint_ is None else Cache(breakpoint_.at, breakpoint_.text("ttl"))


def _read_media(url: str, at: str) -> Media:
    if url[:5].lower() != "data:":
        return Link(url)
    found = _DATA_URL.match(url)
    if found is None:
        raise BadField(at, "must be a web address or a base64 data URL")
    return Inline(found[1].lower() or "application/octet-stream", url[found.end() :])


def _read_file_data(data: str, title: str | None) -> Inline:
    found = _DATA_URL.match(data)
    if found:
        return Inline(found[1].lower() or "application/octet-stream", data[found.end() :])
    suffix = (title or "").rpartition(".")[2].lower()
    return Inline(_MEDIA_BY_SUFFIX.get(suffix, "application/pdf"), data)
