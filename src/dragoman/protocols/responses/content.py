"""Content parts of a request: a Responses client's parts come in and hub parts go out, and the other way round."""

import re
from collections.abc import Iterable

from dragoman.framing.fields import BadField, Fields
from dragoman.hub.ext import restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.pointer import escape_key
from dragoman.hub.request import (
    Audio,
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
    Refusal,
    Request,
    Text,
)
from dragoman.protocols.responses.wire import NAME

Wire = dict[str, Json]

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_SAME_FILES = (NAME, "chat")  # both name files of the same vendor's store
_TTL = {"5m": "30m", "1h": "12h"}  # at least as long as was asked for
_MEDIA_BY_SUFFIX = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv"}


def ext_of(fields: Fields, **nested: Fields | None) -> Ext:
    """What was not read of an object, and of the objects inside it."""
    ext = {escape_key(key): value for key, value in fields.rest().items()}
    for name, inner in nested.items():
        if inner is not None:
            ext |= {f"{name}/{escape_key(key)}": value for key, value in inner.rest().items()}
    return ext


# Reading


def read_content(fields: Fields, key: str) -> tuple[Part, ...]:
    """A string or an array of parts."""
    content = fields.text_or_objects(key)
    if isinstance(content, str):
        return (Text(content, fields.pointer(key)),) if content else ()
    return tuple(read_part(part) for part in content or ())


def read_part(part: Fields) -> Part:
    match part.text("type"):
        case "input_text" | "output_text" | "text":
            return _read_text(part)
        case "refusal":
            return Refusal(part.need_text("refusal"), part.at, ext_of(part))
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
    ext = ext_of(part) | ({"logprobs": logprobs} if logprobs else {})
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
        source = _media(url, part.pointer("image_url"))
    else:
        raise BadField(part.at, "needs image_url or file_id")
    detail = part.text("detail")
    return Image(
        source,
        part.at,
        detail=None if detail == "auto" else detail,
        detail_at=part.pointer("detail") if detail not in (None, "auto") else "",
        cache=_read_cache(part),
        ext=ext_of(part),
    )


def _read_file(part: Fields) -> Document:
    file_id, url, data = part.text("file_id"), part.text("file_url"), part.text("file_data")
    title = part.text("filename")
    source: Media
    if file_id is not None:
        source = FileId(file_id)
    elif data is not None:
        source = _file_data(data, title)
    elif url is not None:
        source = Link(url)
    else:
        raise BadField(part.at, "needs file_id, file_data or file_url")
    detail, cache = part.text("detail"), _read_cache(part)
    ext = ext_of(part) | ({"detail": detail} if detail not in (None, "auto") else {})
    return Document(source, part.at, title, cache, ext)


def _read_audio(part: Fields) -> Audio:
    audio = part.need_obj("input_audio")
    source = Inline(f"audio/{audio.need_text('format')}", audio.need_text("data"))
    return Audio(source, part.at, ext_of(part, input_audio=audio))


def _read_cache(part: Fields) -> Cache | None:
    breakpoint_ = part.obj("prompt_cache_breakpoint")
    return None if breakpoint_ is None else Cache(breakpoint_.at, breakpoint_.text("ttl"))


def _media(url: str, at: str) -> Media:
    if url[:5].lower() != "data:":
        return Link(url)
    found = _DATA_URL.match(url)
    if found is None:
        raise BadField(at, "must be a web address or a base64 data URL")
    return Inline(found[1].lower() or "application/octet-stream", url[found.end() :])


def _file_data(data: str, title: str | None) -> Inline:
    found = _DATA_URL.match(data)
    if found:
        return Inline(found[1].lower() or "application/octet-stream", data[found.end() :])
    suffix = (title or "").rpartition(".")[2].lower()
    return Inline(_MEDIA_BY_SUFFIX.get(suffix, "application/pdf"), data)


# Writing


class PartWriter:
    """Writes input parts of one request, and tells the ledger what they lose."""

    def __init__(self, request: Request, ledger: Ledger) -> None:
        self._ledger = ledger
        self._own = request.protocol == NAME
        self._same_files = request.protocol in _SAME_FILES
        self._same_caches = request.protocol in _SAME_FILES

    def parts(self, parts: Iterable[Part]) -> list[Json]:
        written = (self.part(part) for part in parts)
        return [part for part in written if part is not None]

    def part(self, part: Part) -> Wire | None:
        match part:
            case Text():
                if part.citations:
                    self._ledger.dropped(f"{part.at}/citations", "responses does not read the citations of a user")
                wire: Wire = {"type": "input_text", "text": part.text}
                return self._finish(wire, part.cache, part.ext)
            case Image():
                wire = {"type": "input_image", **self._image_source(part), "detail": part.detail or "auto"}
                return self._finish(wire, part.cache, part.ext)
            case Document():
                return self._finish(self._document(part), part.cache, part.ext)
            case Refusal():
                return {"type": "input_text", "text": part.text}
            case Audio():
                raise BadRequest(part.at, "Responses upstreams take no audio input")
            case Foreign(raw=raw) if self._own and isinstance(raw, dict):
                return raw
        return None

    def breakpoint(self, cache: Cache) -> Wire:
        """A cache breakpoint; Messages' times to live differ from OpenAI's."""
        wire: Wire = {"mode": "explicit"}
        if cache.ttl is not None:
            wire["ttl"] = cache.ttl if self._same_caches else _TTL.get(cache.ttl, cache.ttl)
        if not self._same_caches:
            self._ledger.approximated(cache.at, "the breakpoint is kept, how long it lives is the vendor's")
        return wire

    def no_breakpoint(self, cache: Cache | None) -> None:
        """For places where this protocol has no breakpoints."""
        if cache is not None:
            self._ledger.dropped(cache.at, "responses has cache breakpoints on input parts only")

    def _finish(self, wire: Wire, cache: Cache | None, ext: Ext) -> Wire:
        if cache is not None:
            wire["prompt_cache_breakpoint"] = self.breakpoint(cache)
        if self._own:
            restore(wire, ext)
        return wire

    def _image_source(self, image: Image) -> Wire:
        match image.source:
            case Inline(media_type=media_type, data=data):
                return {"image_url": f"data:{media_type};base64,{data}"}
            case Link(url=url):
                return {"image_url": url}
            case FileId(id=id_):
                return {"file_id": self._file_id(id_, image.at)}

    def _document(self, document: Document) -> Wire:
        match document.source:
            case Inline(media_type=media_type, data=data):
                wire: Wire = {"type": "input_file", "file_data": f"data:{media_type};base64,{data}"}
                if document.title is None and not self._own:
                    self._ledger.invented(document.at, "responses wants a file name: document.pdf")
                wire["filename"] = document.title or "document.pdf"
                return wire
            case Link(url=url):
                wire = {"type": "input_file", "file_url": url}
            case FileId(id=id_):
                wire = {"type": "input_file", "file_id": self._file_id(id_, document.at)}
            case text:
                self._ledger.approximated(document.at, "a document of plain text is sent as text")
                titled = f"{document.title}\n\n{text}" if document.title else text
                return {"type": "input_text", "text": titled}
        if document.title is not None:
            wire["filename"] = document.title
        return wire

    def _file_id(self, id_: str, at: str) -> str:
        if not self._same_files:
            raise BadRequest(at, f"the file {id_!r} is another vendor's: send its content instead")
        return id_
