"""Build Chat content parts and reasoning fields from hub parts."""

from dragoman.translate.caching.breakpoints import FIELD
from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.ext import restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import (
    Audio,
    Cache,
    Document,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Text,
    Thinking,
)
from dragoman.translate.protocols.chat.wire import AUDIO_TYPES, CALL_KEY, FIELD_KEY, FILE_TYPES, NAME, OPENAI_PROTOCOLS

_AUDIO_FORMATS = {media_type: name for name, media_type in AUDIO_TYPES.items()} | {"audio/mp3": "mp3"}
_EXTENSIONS = {media_type: name for name, media_type in FILE_TYPES.items()}


class PartBuilder:
    """Build the content parts of one request."""

    __slots__ = ("_client", "_ledger", "_same_protocol", "marked")

    def __init__(self, client: str, ledger: Ledger) -> None:
        self._client = client
        self._same_protocol = client == NAME
        self._ledger = ledger
        self.marked: list[dict[str, object]] = []  # parts of a translated request that the client marked as OpenAI does

    def write(self, part: Text | Image | Document | Audio | Foreign) -> dict[str, object] | None:
        """Return the part as Chat writes it; None for a foreign part, which is in the ledger already."""
        match part:
            case Text():
                return self.write_text(part)
            case Image():
                return self._finish_part(self._build_image(part), part)
            case Document():
                return self._finish_part(self._build_document(part), part)
            case Audio():
                return self._finish_part(_build_audio(part), part)
            case Foreign():
                return dict(part.raw) if self._same_protocol and isinstance(part.raw, dict) else None

    def write_text(self, part: Text) -> dict[str, object]:
        wire: dict[str, object] = {"type": "text", "text": part.text}
        if part.citations and not self._same_protocol:
            key = "annotations" if self._client == "responses" else "citations"  # in its protocol
            self._ledger.record_dropped(f"{part.at}/{key}", "Chat does not accept citations in a request")
        if part.cache is None and not self._same_protocol:  # as nearly always
            return wire
        return self._finish_part(wire, part)

    def _finish_part(self, wire: dict[str, object], part: Text | Image | Document | Audio) -> dict[str, object]:
        if type(part) is not Audio and part.cache is not None:
            self._write_cache(wire, part.cache)
        if self._same_protocol:
            restore(wire, part.ext)
        return wire

    def _write_cache(self, wire: dict[str, object], cache: Cache) -> None:
        if self._same_protocol:
            wire[FIELD] = {"mode": "explicit"} if cache.ttl is None else {"mode": "explicit", "ttl": cache.ttl}
        elif self._client in OPENAI_PROTOCOLS:
            self.marked.append(wire)

    def _build_image(self, part: Image) -> dict[str, object]:
        match part.source:
            case Inline(media_type=media_type, data=data):
                image: dict[str, object] = {"url": f"data:{media_type};base64,{data}"}
            case Link(url=url):
                image = {"url": url}
            case FileId():
                raise BadRequest(part.at, "A Chat upstream takes no image by file id. Send its data or a URL.")
        if part.detail is not None:
            image["detail"] = part.detail
        return {"type": "image_url", "image_url": image}

    def _build_document(self, part: Document) -> dict[str, object]:
        match part.source:
            case str(text):
                self._ledger.record_approximated(part.at, "Chat has no text documents; sent as plain text")
                return {"type": "text", "text": f"{part.title}\n\n{text}" if part.title else text}
            case Inline(media_type=media_type, data=data):
                name = part.title
                if name is None:
                    name = f"document.{_EXTENSIONS.get(media_type, 'bin')}"
                    self._ledger.record_invented(part.at, f"Chat's files need a name: {name}")
                return {"type": "file", "file": {"filename": name, "file_data": f"data:{media_type};base64,{data}"}}
            case FileId(id=file_id):
                if self._client not in OPENAI_PROTOCOLS:
                    raise BadRequest(
                        part.at, f"The file {file_id!r} is stored at another vendor. Send its data instead."
                    )
                named = {} if part.title is None else {"filename": part.title}
                return {"type": "file", "file": {"file_id": file_id, **named}}
            case Link(url=url):
                raise BadRequest(
                    part.at, f"A Chat upstream takes no document by URL ({url}). Send its data, or enable [fetch]."
                )


def _build_audio(part: Audio) -> dict[str, object]:
    sound = _AUDIO_FORMATS.get(part.source.media_type) or part.source.media_type.removeprefix("audio/")
    return {"type": "input_audio", "input_audio": {"data": part.source.data, "format": sound}}


def find_call_signatures(thoughts: list[Thinking]) -> dict[str, object]:
    """Return the signatures that belong beside calls, by the ids of the calls."""
    opaques = [thought.opaque for thought in thoughts if thought.opaque is not None]
    entries = [_read_entry(opaque) for opaque in opaques if opaque.form is OpaqueForm.DETAIL]
    return {str(entry[CALL_KEY]): entry.get("extra_content") for entry in entries if CALL_KEY in entry}


def _read_entry(opaque: Opaque) -> dict[str, object]:
    """Return an entry as the server sent it; empty if a client has altered it beyond reading."""
    return parse_or(opaque.payload, dict[str, object], {})


def build_reasoning(thoughts: list[Thinking]) -> dict[str, object]:
    """Return the fields of a message that return reasoning to the server that issued it."""
    fields: dict[str, object] = {}
    text = "".join(thought.text for thought in thoughts)
    if text:
        fields["reasoning_content"] = text
    details: list[object] = []
    blocks: list[object] = []
    for thought in thoughts:
        opaque = thought.opaque
        if opaque is None:
            continue
        match opaque.form:
            case OpaqueForm.DETAIL:
                entry = _read_entry(opaque)
                if FIELD_KEY in entry:
                    fields |= {"reasoning_text": fields.pop("reasoning_content", ""), FIELD_KEY: entry[FIELD_KEY]}
                elif entry and CALL_KEY not in entry:
                    details.append(entry)
            case OpaqueForm.SIGNATURE:
                blocks.append({"type": "thinking", "thinking": thought.text, "signature": opaque.payload})
            case OpaqueForm.REDACTED:
                blocks.append({"type": "redacted_thinking", "data": opaque.payload})
            case OpaqueForm.ENCRYPTED:
                pass  # Chat has no place for a reasoning item of Responses
    if details:
        fields["reasoning_details"] = details
    if blocks:
        fields["thinking_blocks"] = blocks
    return fields
