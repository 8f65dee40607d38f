"""Build the input parts of a Responses request from hub parts."""

from collections.abc import Iterable

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
    Json,
    Link,
    Part,
    Refusal,
    Request,
    Text,
)
from dragoman.protocols.responses.wire import NAME, Wire

_OPENAI_PROTOCOLS = (NAME, "chat")  # of one vendor, with the same file ids
_TTL = {"5m": "30m", "1h": "12h"}  # at least as long as requested


class PartBuilder:
    """Build the input parts of one request."""

    def __init__(self, request: Request, ledger: Ledger) -> None:
        self._ledger = ledger
        self._same_protocol = request.protocol == NAME
        self._same_files = request.protocol in _OPENAI_PROTOCOLS
        self._same_caches = request.protocol in _OPENAI_PROTOCOLS

    def build_parts(self, parts: Iterable[Part]) -> list[Json]:
        written = (self.build_part(part) for part in parts)
        return [part for part in written if part is not None]

    def build_part(self, part: Part) -> Wire | None:
        match part:
            case Text():
                if part.citations:
                    self._ledger.note_dropped(f"{part.at}/citations", "Responses does not read the citations of a user")
                wire: Wire = {"type": "input_text", "text": part.text}
                return self._finish_part(wire, part.cache, part.ext)
            case Image():
                wire = {"type": "input_image", **self._build_image_source(part), "detail": part.detail or "auto"}
                return self._finish_part(wire, part.cache, part.ext)
            case Document():
                return self._finish_part(self._build_document(part), part.cache, part.ext)
            case Refusal():
                return {"type": "input_text", "text": part.text}
            case Audio():
                raise BadRequest(part.at, "A Responses upstream takes no audio. Send a transcript.")
            case Foreign(raw=raw) if self._same_protocol and isinstance(raw, dict):
                return raw
        return None

    def build_breakpoint(self, cache: Cache) -> Wire:
        """Build a cache breakpoint; Anthropic's lifetimes become OpenAI's."""
        wire: Wire = {"mode": "explicit"}
        if cache.ttl is not None:
            wire["ttl"] = cache.ttl if self._same_caches else _TTL.get(cache.ttl, cache.ttl)
        if not self._same_caches:
            self._ledger.note_approximated(cache.at, "the breakpoint is kept; the vendor decides its lifetime")
        return wire

    def drop_breakpoint(self, cache: Cache | None) -> None:
        """Record a breakpoint in a place where Responses has none."""
        if cache is not None:
            self._ledger.note_dropped(cache.at, "Responses has cache breakpoints on input parts only")

    def _finish_part(self, wire: Wire, cache: Cache | None, ext: Ext) -> Wire:
        if cache is not None:
            wire["prompt_cache_breakpoint"] = self.build_breakpoint(cache)
        if self._same_protocol:
            restore(wire, ext)
        return wire

    def _build_image_source(self, image: Image) -> Wire:
        match image.source:
            case Inline(media_type=media_type, data=data):
                return {"image_url": f"data:{media_type};base64,{data}"}
            case Link(url=url):
                return {"image_url": url}
            case FileId(id=id_):
                return {"file_id": self._check_file_id(id_, image.at)}

    def _build_document(self, document: Document) -> Wire:
        match document.source:
            case Inline(media_type=media_type, data=data):
                wire: Wire = {"type": "input_file", "file_data": f"data:{media_type};base64,{data}"}
                if document.title is None and not self._same_protocol:
                    self._ledger.note_invented(document.at, "Responses wants a file name: document.pdf")
                wire["filename"] = document.title or "document.pdf"
                return wire
            case Link(url=url):
                wire = {"type": "input_file", "file_url": url}
            case FileId(id=id_):
                wire = {"type": "input_file", "file_id": self._check_file_id(id_, document.at)}
            case text:
                self._ledger.note_approximated(document.at, "a document of plain text is sent as text")
                titled = f"{document.title}\n\n{text}" if document.title else text
                return {"type": "input_text", "text": titled}
        if document.title is not None:
            wire["filename"] = document.title
        return wire

    def _check_file_id(self, id_: str, at: str) -> str:
        if not self._same_files:
            raise BadRequest(at, f"The file {id_!r} is stored at another vendor. Send its data instead.")
        return id_
