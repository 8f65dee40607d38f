"""Build Messages content blocks from hub parts."""

import base64
import binascii
from collections.abc import Sequence

import msgspec

from dragoman.translate.caching.placing import MAX_MARKS
from dragoman.translate.hub.ext import restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import OpaqueForm, can_send_to
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Audio,
    Cache,
    Citation,
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
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from dragoman.translate.protocols.messages.wire import NAME, Wire

_PDF = "application/pdf"
_AS_STRING = ("/content", "/system")  # where a text stands that is not in a block


class ContentBuilder:
    """Build the blocks of one request and note its cache breakpoints."""

    __slots__ = ("_breakpoints", "issuer", "ledger", "marked", "protocol", "request", "same_protocol")

    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self.request = request
        self.protocol = request.protocol
        self.same_protocol = request.protocol == NAME  # every field is restored as the client sent it
        self.issuer = target.issuer
        self.ledger = ledger
        self.marked: list[tuple[Wire, Cache]] = []  # of another protocol's client; written once all blocks are known
        self._breakpoints: list[tuple[Wire, str]] = []

    def block(self, part: Part) -> Wire | None:
        """Return the block of a part; None if it is left out."""
        match part:
            case Text():
                return self._build_text(part)
            case Refusal():
                self.ledger.record_approximated(part.at, "a refusal is sent as text")
                return {"type": "text", "text": part.text} if part.text.strip() else None
            case Image():
                return self._build_image(part)
            case Document():
                return self._build_document(part)
            case Thinking():
                return self._build_thinking(part)
            case ToolCall():
                return self.call(part, part.id)
            case ToolResult():
                return self.result(part, part.call_id)
            case Foreign():
                passes = self.same_protocol or part.is_upstreams
                return dict(part.raw) if passes and isinstance(part.raw, dict) else None
            case Audio():
                raise BadRequest(part.at, "A Messages upstream takes no audio. Send a transcript.")

    def call(self, call: ToolCall, id: str) -> Wire:
        wire: Wire = {"type": "tool_use", "id": id, "name": call.name, "input": self._parse_arguments(call)}
        return self._finish_block(wire, call.cache, call.ext)

    def result(self, result: ToolResult, id: str) -> Wire:
        wire: Wire = {"type": "tool_result", "tool_use_id": id}
        before = len(self.marked)
        blocks = [block for part in result.content if (block := self.block(part)) is not None]
        inner = [cache for _, cache in self.marked[before:]]  # a result is marked as a whole
        del self.marked[before:]
        if blocks:
            wire["content"] = self.keep_form(result.content, blocks)
        if result.is_error:
            wire["is_error"] = True
        return self._finish_block(wire, result.cache or (inner[-1] if inner else None), result.ext)

    def keep_form(self, parts: Sequence[Part], blocks: list[Wire]) -> str | list[Wire]:
        """Return content as a client of Messages wrote it, as a string or as blocks; for any other client as blocks.

        A form that depended on marks, or on what follows, would change a prompt that is cached.
        """
        if self.same_protocol and len(parts) == 1 and isinstance(part := parts[0], Text):
            return part.text if part.at.endswith(_AS_STRING) else blocks
        return blocks

    def mark(self, wire: Wire, cache: Cache | None) -> Wire:
        """Set the cache breakpoint of a block or tool."""
        if cache is None:
            return wire
        if not self.same_protocol:
            self.marked.append((wire, cache))
            return wire
        wire["cache_control"] = {"type": "ephemeral"} if cache.ttl is None else {"type": "ephemeral", "ttl": cache.ttl}
        self._breakpoints.append((wire, cache.at))
        return wire

    def limit_breakpoints(self) -> None:
        """Keep only the last breakpoints, which cover the longest prefixes."""
        for wire, at in self._breakpoints[:-MAX_MARKS]:
            del wire["cache_control"]
            self.ledger.record_dropped(at, f"a request has at most {MAX_MARKS} cache breakpoints")

    def _finish_block(self, wire: Wire, cache: Cache | None, ext: Ext) -> Wire:
        if cache is not None:
            self.mark(wire, cache)
        if self.same_protocol:
            restore(wire, ext)
        return wire

    def _build_text(self, part: Text) -> Wire | None:
        if not part.text.strip() and not self.same_protocol:
            if part.text:
                self.ledger.record_dropped(part.at, "a text of white space only is not accepted")
            return None
        wire: Wire = {"type": "text", "text": part.text}
        if part.citations and (self.same_protocol or all(map(_is_own_citation, part.citations))):
            wire["citations"] = [citation.raw for citation in part.citations]
        elif part.citations:
            self.ledger.record_dropped(f"{part.at}/annotations", "citations of another vendor cannot be returned")
        return self._finish_block(wire, part.cache, part.ext)

    def _build_image(self, part: Image) -> Wire:
        if part.detail not in (None, "auto"):
            self.ledger.record_dropped(part.detail_at, "the level of detail cannot be chosen")
        wire: Wire = {"type": "image", "source": self._build_source(part.source, part.at)}
        return self._finish_block(wire, part.cache, part.ext)

    def _build_document(self, part: Document) -> Wire:
        if self.same_protocol and isinstance(part.raw, dict):
            return self.mark(dict(part.raw), part.cache)
        source = part.source
        if isinstance(source, Inline) and source.media_type != _PDF:
            source = self._decode_text(source, part.at)
        if isinstance(source, str):
            written: Wire = {"type": "text", "media_type": "text/plain", "data": source}
        else:
            written = self._build_source(source, part.at)
        wire: Wire = {"type": "document", "source": written}
        if part.title is not None:
            wire["title"] = part.title
        return self._finish_block(wire, part.cache, part.ext)

    def _decode_text(self, source: Inline, at: str) -> str:
        if not source.media_type.startswith("text/"):
            raise BadRequest(at, f"A Messages upstream takes PDF and text documents, not {source.media_type}.")
        if source.media_type != "text/plain":
            self.ledger.record_approximated(at, f"{source.media_type} is sent as plain text")
        try:
            return base64.b64decode(source.data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise BadRequest(at, f"The document is not base64 of UTF-8 text: {error}.") from error

    def _build_source(self, media: Media, at: str) -> Wire:
        match media:
            case Inline(media_type=media_type, data=data):
                return {"type": "base64", "media_type": media_type, "data": data}
            case Link(url=url):
                return {"type": "url", "url": url}
            case FileId(id=id):
                if not self.same_protocol:
                    raise BadRequest(at, f"The file {id!r} is stored at another vendor. Send its data instead.")
                return {"type": "file", "file_id": id}

    def _build_thinking(self, part: Thinking) -> Wire | None:
        opaque = part.opaque
        if opaque is None or not can_send_to(opaque, self.issuer, self.same_protocol):
            if part.text or opaque is not None:
                self.ledger.record_dropped(part.at, "only thinking that this upstream signed can be returned to it")
            return None
        match opaque.form:
            case OpaqueForm.SIGNATURE:
                text = opaque.text or part.text
                wire: Wire = {"type": "thinking", "thinking": text, "signature": opaque.payload}
            case OpaqueForm.REDACTED:
                wire = {"type": "redacted_thinking", "data": opaque.payload}
            case _:
                self.ledger.record_dropped(part.at, "reasoning of this form cannot be returned")
                return None
        return self._finish_block(wire, None, part.ext)

    def _parse_arguments(self, call: ToolCall) -> object:
        if not call.arguments.strip():
            return {}
        try:
            return msgspec.json.decode(call.arguments, type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError):
            self.ledger.record_approximated(call.at, "arguments that are not a JSON object are sent inside one")
            return {"arguments": call.arguments}


def _is_own_citation(citation: Citation) -> bool:
    """Whether a citation is one that a Messages upstream has written."""
    return isinstance(citation.raw, dict) and str(citation.raw.get("type")).endswith("_location")
