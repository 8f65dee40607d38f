"""Build Gemini contents from hub turns: signatures on the parts they belong to, results named after their functions."""

from collections.abc import Sequence

import msgspec

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, can_send_to
from dragoman.hub.profile import Target
from dragoman.hub.request import (
    Audio,
    Cache,
    Document,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Part,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.passes.pair_results import merge_turns, pair_results
from dragoman.passes.tag_instructions import split_leading_instructions, tag_later_instructions
from dragoman.protocols.gemini.wire import NAME, NO_SIGNATURE, Wire

_GO_ON = "Continue."
_SEPARATOR = "\n\n"
_NO_CACHES = "Gemini has no cache breakpoints"


class Conversation(msgspec.Struct, frozen=True):
    instructions: list[Wire]  # the parts of systemInstruction
    contents: list[Wire]


def build_conversation(request: Request, target: Target, ledger: Ledger) -> Conversation:
    """Return the instructions and contents; raises RequestError for media that Gemini cannot get."""
    paired = pair_results(tag_later_instructions(request, ledger), ledger)
    leading, turns = split_leading_instructions(paired.turns)
    builder = _TurnBuilder(paired, target, ledger)
    contents = builder.build(merge_turns(turns, ledger))
    return Conversation(builder.build_instructions(leading), contents)


class _TurnBuilder:
    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._same_protocol = request.protocol == NAME
        self._target = target
        self._ledger = ledger
        self._names = {
            part.id: part.name for turn in request.turns for part in turn.parts if isinstance(part, ToolCall)
        }

    def build_instructions(self, turns: Sequence[Turn]) -> list[Wire]:
        parts = [part for turn in turns for part in turn.parts]
        wires: list[Wire] = []
        for part in parts:
            if isinstance(part, Text):
                self._drop_cache(part.cache)
                wires += [{"text": part.text}] if part.text else []
            elif not isinstance(part, Foreign):
                self._ledger.note_dropped(part.at, "Gemini's instructions are text")
        return wires

    def build(self, turns: Sequence[Turn]) -> list[Wire]:
        contents: list[Wire] = []
        for turn in turns:
            is_model = turn.role is Role.ASSISTANT
            parts = self._build_model(turn.parts) if is_model else self._build_user(turn.parts)
            if parts:
                contents.append({"role": "model" if is_model else "user", "parts": parts})
        if contents and contents[-1]["role"] == "model":
            self._ledger.note_approximated(turns[-1].at, "Gemini continues no reply: a user turn asks it to go on")
            contents.append({"role": "user", "parts": [{"text": _GO_ON}]})
        return contents

    # The model's turns

    def _build_model(self, parts: Sequence[Part]) -> list[Wire]:
        wires: list[Wire] = []
        signature = ""  # of the reasoning that precedes the next part
        is_first_call = True  # of its step: only this one is signed
        for part in parts:
            match part:
                case Thinking():
                    signature = self._build_thought(part, wires) or signature
                    is_first_call = True
                case ToolCall():
                    wire = self._build_call(part)
                    if signature or is_first_call:
                        wire["thoughtSignature"] = signature or NO_SIGNATURE
                    wires.append(wire)
                    signature, is_first_call = "", False
                case Text() | Refusal() if part.text:
                    wire = {"text": part.text}
                    if isinstance(part, Text):
                        self._drop_cache(part.cache)
                        self._drop_citations(part)
                    if signature:
                        wire["thoughtSignature"] = signature
                    wires.append(wire)
                    signature = ""
                case Image() | Document() | Audio():
                    wires += self._build_media(part)
                case _:
                    pass  # empty text means nothing, and foreign parts are in the ledger
        if signature:
            wires.append({"text": "", "thoughtSignature": signature})
        return wires

    def _build_thought(self, thought: Thinking, wires: list[Wire]) -> str:
        """Write a thought of Gemini's own and return its signature; other reasoning is dropped."""
        opaque = thought.opaque
        is_own = opaque is not None and opaque.form is Form.SIGNATURE
        if opaque is None or not is_own or not can_send_to(opaque, self._target.issuer, self._same_protocol):
            self._ledger.note_dropped(thought.at, "Gemini takes no reasoning of other models")
            return ""
        if thought.text:
            wires.append({"text": thought.text, "thought": True})
        return opaque.payload

    def _build_call(self, call: ToolCall) -> Wire:
        self._drop_cache(call.cache)
        return {"functionCall": {"id": call.id, "name": call.name, "args": self._read_arguments(call)}}

    def _read_arguments(self, call: ToolCall) -> object:
        """Return the arguments as an object, as Gemini has them; a client's broken JSON is kept as text."""
        try:
            arguments: object = msgspec.json.decode(call.arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            arguments = call.arguments
        if isinstance(arguments, dict):
            return arguments
        self._ledger.note_approximated(call.at, "Gemini's arguments are an object: others are wrapped in one")
        return {"input": arguments}

    # The user's turns

    def _build_user(self, parts: Sequence[Part]) -> list[Wire]:
        responses: list[Wire] = []
        others: list[Wire] = []
        for part in parts:
            match part:
                case ToolResult():
                    responses.append(self._build_result(part, others))
                case Text() | Refusal():
                    others += self._build_text(part)
                case Image() | Document() | Audio():
                    others += self._build_media(part)
                case Thinking():
                    self._ledger.note_dropped(part.at, "a user has no reasoning")
                case _:
                    pass  # foreign parts are in the ledger
        return responses + others

    def _build_text(self, part: Text | Refusal) -> list[Wire]:
        if isinstance(part, Text):
            self._drop_cache(part.cache)
            self._drop_citations(part)
        return [{"text": part.text}] if part.text else []

    def _build_result(self, result: ToolResult, others: list[Wire]) -> Wire:
        """Return the response, and add its media to the parts that follow all responses."""
        self._drop_cache(result.cache)
        texts: list[str] = []
        for part in result.content:
            if isinstance(part, Text):
                texts.append(part.text)
            elif isinstance(part, Document) and isinstance(part.source, str):
                texts.append(part.source)
            elif isinstance(part, Image | Document):
                kind = "image" if isinstance(part, Image) else "document"
                self._ledger.note_approximated(part.at, f"the {kind} of a tool result follows as a part of its own")
                texts.append(f"[{kind}: see below]")
                others.append({"text": f"[{kind} from the result of {self._find_name(result)}]"})
                others += self._build_media(part)
        output = {"error" if result.is_error else "output": _SEPARATOR.join(texts)}
        return {"functionResponse": {"id": result.call_id, "name": self._find_name(result), "response": output}}

    def _find_name(self, result: ToolResult) -> str:
        return self._names.get(result.call_id, result.call_id)

    # Media

    def _build_media(self, part: Image | Document | Audio) -> list[Wire]:
        if not isinstance(part, Audio):
            self._drop_cache(part.cache)
        if isinstance(part, Image) and part.detail not in (None, "auto"):
            self._ledger.note_dropped(part.detail_at or part.at, "Gemini has no detail for one image")
        match part.source:
            case str(text):
                self._ledger.note_approximated(part.at, "Gemini has no text documents; sent as plain text")
                title = part.title if isinstance(part, Document) else None
                return [{"text": f"{title}{_SEPARATOR}{text}" if title else text}]
            case Inline(media_type=media_type, data=data):
                return [{"inlineData": {"mimeType": media_type, "data": data}}]
            case Link(url=url):
                media_type = "image/jpeg" if isinstance(part, Image) else "application/pdf"
                self._ledger.note_invented(part.at, f"Gemini wants the type of a linked file: {media_type}")
                return [{"fileData": {"mimeType": media_type, "fileUri": url}}]
            case FileId(id=file_id):
                raise BadRequest(part.at, f"The file {file_id!r} is stored at another vendor. Send its data instead.")

    def _drop_cache(self, cache: Cache | None) -> None:
        if cache is not None:
            self._ledger.note_dropped(cache.at, _NO_CACHES)

    def _drop_citations(self, part: Text) -> None:
        if part.citations:
            self._ledger.note_dropped(f"{part.at}/citations", "Gemini does not accept citations in a request")
