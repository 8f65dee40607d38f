"""Content parts, both ways: what a message's content holds comes in as hub parts, and goes out again."""

import base64
from urllib.parse import unquote_to_bytes

from dragoman.framing.fields import BadField, Fields
from dragoman.hub.ext import restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import (
    Audio,
    Cache,
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
    Text,
)
from dragoman.protocols.chat.wire import NAME, OPENAI_PROTOCOLS

_AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_AUDIO_FORMATS = {media_type: name for name, media_type in _AUDIO_TYPES.items()} | {"audio/mp3": "mp3"}
_FILE_TYPES = {
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
}
_EXTENSIONS = {media_type: name for name, media_type in _FILE_TYPES.items()}
_TTLS = {"5m": "30m", "1h": "12h"}  # Anthropic's lifetimes as the shortest of OpenAI's that last as long


def read_content(message: Fields) -> tuple[Part, ...]:
    """A string, or an array of parts; an empty string says nothing."""
    content = message.text_or_objects("content")
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (Text(content, message.pointer("content")),)
    return tuple(_read_part(part) for part in content)


def unread(fields: Fields) -> Ext:
    """What was not read of an object, by pointers relative to it."""
    return {fields.pointer(key)[len(fields.at) + 1 :]: value for key, value in fields.rest().items()}


def unread_with(outer: Fields, key: str, inner: Fields) -> Ext:
    """What was not read of an object and of one that it holds."""
    return unread(outer) | {f"{key}/{name}": value for name, value in unread(inner).items()}


def _read_part(part: Fields) -> Part:
    kind = part.need_text("type")
    match kind:
        case "text":
            return _read_text(part)
        case "refusal":
            return _read_refusal(part)
        case "image_url":
            return _read_image(part)
        case "file":
            return _read_file(part)
        case "input_audio":
            return _read_audio(part)
        case _:
            return Foreign(kind, {"type": kind, **part.rest()}, part.at)


def _read_text(part: Fields) -> Text:
    text = part.text("text", "")
    cache = _read_cache(part)
    return Text(text, part.at, cache=cache, ext=unread(part))


def _read_refusal(part: Fields) -> Refusal:
    refusal = part.text("refusal", "")
    return Refusal(refusal, part.at, ext=unread(part))


def _read_image(part: Fields) -> Image:
    if isinstance(part.raw("image_url"), str):  # a shorthand that many servers take
        source = _read_url(part.need_text("image_url"), part.pointer("image_url"))
        return Image(source, part.at, cache=_read_cache(part), ext=unread(part))
    image = part.need_obj("image_url")
    source = _read_url(image.need_text("url"), image.pointer("url"))
    detail = image.text("detail")
    cache = _read_cache(part)
    ext = unread_with(part, "image_url", image)
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
    cache = _read_cache(part)
    return Document(source, part.at, title=name, cache=cache, ext=unread_with(part, "file", file))


def _read_audio(part: Fields) -> Audio:
    audio = part.need_obj("input_audio")
    sound = audio.need_text("format")
    source = Inline(_AUDIO_TYPES.get(sound, f"audio/{sound}"), audio.need_text("data"))
    return Audio(source, part.at, ext=unread_with(part, "input_audio", audio))


def _read_cache(part: Fields) -> Cache | None:
    breakpoint_ = part.obj("prompt_cache_breakpoint")
    return None if breakpoint_ is None else Cache(breakpoint_.at, breakpoint_.text("ttl"))


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
    return Inline(_FILE_TYPES.get(extension, "application/pdf"), data)


class PartWriter:
    """Writes parts for one target."""

    __slots__ = ("_caches", "_citations", "_files", "_foreign", "_ledger", "_own")

    def __init__(self, *, client: str, caches: bool, files: bool, ledger: Ledger) -> None:
        self._own = client == NAME
        self._foreign = client not in OPENAI_PROTOCOLS
        self._citations = "annotations" if client == "responses" else "citations"  # as the client spells them
        self._caches = caches  # the server takes cache breakpoints
        self._files = files  # the client's file ids are this vendor's
        self._ledger = ledger

    def write(self, part: Text | Image | Document | Audio | Foreign) -> dict[str, object] | None:
        """The part in Chat's words; None where Chat has none, which the ledger knows by then."""
        match part:
            case Text():
                return self._written({"type": "text", "text": part.text}, part)
            case Image():
                return self._written(self._image(part), part)
            case Document():
                return self._written(self._document(part), part)
            case Audio():
                return self._written(_audio(part), part)
            case Foreign():
                return dict(part.raw) if self._own and isinstance(part.raw, dict) else None

    def drop_cache(self, cache: Cache | None, what: str) -> None:
        if cache is not None:
            self._ledger.dropped(cache.at, f"Chat has no cache breakpoint on {what}")

    def _written(self, wire: dict[str, object], part: Text | Image | Document | Audio) -> dict[str, object]:
        if not isinstance(part, Audio) and part.cache is not None:
            self._write_cache(wire, part.cache)
        if self._own:
            restore(wire, part.ext)
        if isinstance(part, Text) and part.citations and not self._own:
            self._ledger.dropped(f"{part.at}/{self._citations}", "Chat does not take citations back")
        return wire

    def _write_cache(self, wire: dict[str, object], cache: Cache) -> None:
        if not self._caches:
            self._ledger.dropped(cache.at, "this server refuses cache breakpoints")
            return
        written: dict[str, object] = {"mode": "explicit"}
        if cache.ttl is not None:
            written["ttl"] = _TTLS.get(cache.ttl, cache.ttl) if self._foreign else cache.ttl
        if self._foreign:
            self._ledger.approximated(cache.at, "the breakpoint is kept, how long it lives is the vendor's")
        wire["prompt_cache_breakpoint"] = written

    def _image(self, part: Image) -> dict[str, object]:
        match part.source:
            case Inline(media_type=media_type, data=data):
                image: dict[str, object] = {"url": f"data:{media_type};base64,{data}"}
            case Link(url=url):
                image = {"url": url}
            case FileId():
                raise BadRequest(part.at, "Chat takes no image by file id; send its data or its address")
        if part.detail is not None:
            image["detail"] = part.detail
        return {"type": "image_url", "image_url": image}

    def _document(self, part: Document) -> dict[str, object]:
        match part.source:
            case str(text):
                self._ledger.approximated(part.at, "Chat has no text documents: it is sent as plain text")
                return {"type": "text", "text": f"{part.title}\n\n{text}" if part.title else text}
            case Inline(media_type=media_type, data=data):
                name = part.title
                if name is None:
                    name = f"document.{_EXTENSIONS.get(media_type, 'bin')}"
                    self._ledger.invented(part.at, f"Chat's files need a name: {name}")
                return {"type": "file", "file": {"filename": name, "file_data": f"data:{media_type};base64,{data}"}}
            case FileId(id=file_id):
                if not self._files:
                    raise BadRequest(part.at, f"the file {file_id!r} is stored with another vendor; send its data")
                named = {} if part.title is None else {"filename": part.title}
                return {"type": "file", "file": {"file_id": file_id, **named}}
            case Link(url=url):
                raise BadRequest(part.at, f"Chat takes no document by address ({url}); enable [fetch] or send its data")


def _audio(part: Audio) -> dict[str, object]:
    sound = _AUDIO_FORMATS.get(part.source.media_type) or part.source.media_type.removeprefix("audio/")
    return {"type": "input_audio", "input_audio": {"data": part.source.data, "format": sound}}
