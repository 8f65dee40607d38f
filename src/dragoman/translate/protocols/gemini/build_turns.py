"""Build Gemini contents from hub turns: signatures on the parts they belong to, results named after their functions."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.ext import restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import OpaqueForm, can_send_to
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Audio,
    Document,
    Ext,
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
from dragoman.translate.passes.adapt_turns import split_leading_instructions, tag_later_instructions
from dragoman.translate.passes.pair_results import merge_turns, pair_results
from dragoman.translate.protocols.gemini.wire import NAME, NO_SIGNATURE, Wire

_ASSISTANT = Role.ASSISTANT  # looked up once: on Python 3.11, each look-up of a member is slow
_OWN_FORMS = (OpaqueForm.SIGNATURE, OpaqueForm.DETAIL)
_GO_ON = "Continue."
_BEGIN = "Begin."
_SEPARATOR = "\n\n"
_IN_RESULTS = frozenset(("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"))
_TYPES_BY_SUFFIX = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "html": "text/html",
    "csv": "text/csv",
}


class Conversation(msgspec.Struct, frozen=True):
    instructions: list[Wire]  # the parts of systemInstruction
    contents: list[Wire]


def build_conversation(request: Request, target: Target, ledger: Ledger, instruction: str | None) -> Conversation:
    """Return the instructions and contents, with one more instruction if there is one.

    Raises BadRequest for a call without a result, and for media that Gemini cannot get.
    """
    # Raise BadRequest for a call without a result: Gemini refuses one without naming it.
    replies = [turn for turn in request.turns if turn.role is _ASSISTANT]
    calls = [part for turn in replies for part in turn.parts if type(part) is ToolCall]
    if calls:
        answered = {part.call_id for turn in request.turns for part in turn.parts if type(part) is ToolResult}
        for call in calls:
            if call.id not in answered:
                raise BadRequest(
                    call.at, f"The call {call.id!r} of {call.name!r} has no result. Send one, or remove it."
                )
    paired = pair_results(tag_later_instructions(request, ledger), ledger)
    leading, turns = split_leading_instructions(paired.turns)
    builder = _TurnBuilder(paired, target, ledger)
    instructions = builder.build_instructions(leading)
    if instruction is not None:
        instructions.append({"text": instruction})
    contents = builder.build(merge_turns(turns, ledger))
    if instructions and not target.profile.instructions:
        ledger.record_approximated(
            leading[0].at if leading else "", f"{target.model} reads instructions as a user's text"
        )
        return Conversation([], _put_first(instructions, contents))
    return Conversation(instructions, contents)


def _put_first(instructions: list[Wire], contents: list[Wire]) -> list[Wire]:
    first = contents[0] if contents else None
    if first is not None and first["role"] == "user" and isinstance(first["parts"], list):
        return [{**first, "parts": [*instructions, *first["parts"]]}, *contents[1:]]
    return [{"role": "user", "parts": instructions}, *contents]


class _TurnBuilder:
    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._same_protocol = request.protocol == NAME
        self._target = target
        self._ledger = ledger
        self._media = _MediaBuilder(target, ledger)
        self._citations_key = "citations" if request.protocol == "messages" else "annotations"
        self._names = {part.id: part.name for turn in request.turns for part in turn.parts if type(part) is ToolCall}

    def build_instructions(self, turns: Sequence[Turn]) -> list[Wire]:
        wires: list[Wire] = []
        for turn in turns:
            for part in turn.parts:
                if type(part) is Text:
                    wires += [{"text": part.text}] if part.text else []
                elif type(part) is not Foreign:
                    self._ledger.record_dropped(part.at, "Gemini's instructions are text")
        return wires

    def build(self, turns: Sequence[Turn]) -> list[Wire]:
        contents: list[Wire] = []
        before: list[Wire] = []  # the parts of the last content
        for turn in turns:
            is_model = turn.role is _ASSISTANT
            parts = self._build_model(turn.parts) if is_model else self._build_user(turn.parts)
            role = "model" if is_model else "user"
            if not parts:
                continue
            if contents and contents[-1]["role"] == role and not self._same_protocol:
                before += parts  # nothing was left of the turn between them
                continue
            before = parts
            wire: Wire = {"role": role, "parts": before}
            self._restore(wire, turn.ext)
            contents.append(wire)
        if not contents or (contents[0]["role"] == "model" and not self._same_protocol):
            at = turns[0].at if turns else ""
            self._ledger.record_invented(at, "a conversation with Gemini begins with a user")
            contents.insert(0, {"role": "user", "parts": [{"text": _BEGIN}]})
        if contents[-1]["role"] == "model" and not self._same_protocol:
            self._ledger.record_approximated(turns[-1].at, "Gemini continues no reply: a user turn asks it to go on")
            contents.append({"role": "user", "parts": [{"text": _GO_ON}]})
        return contents

    def _restore(self, wire: Wire, ext: Ext) -> None:
        if self._same_protocol:
            restore(wire, ext)

    # The model's turns

    def _build_model(self, parts: Sequence[Part]) -> list[Wire]:
        """Return the parts of a turn. The signature of a step belongs to its first call, else to the text after it."""
        wires: list[Wire] = []
        signature = ""  # of the reasoning so far, until a part has it
        is_first_call = True  # of its step: only this one is signed
        signs_call = False
        for index, part in enumerate(parts):
            match part:
                case Thinking():
                    found = self._build_thought(part, wires)
                    if found:
                        signature, signs_call = found, part.opaque is not None and part.opaque.of_call
                    is_first_call = True
                case ToolCall():
                    wire = self._build_call(part)
                    if signature or is_first_call:
                        wire["thoughtSignature"] = signature or NO_SIGNATURE
                    wires.append(wire)
                    signature, is_first_call = "", False
                case Text() | Refusal():
                    written = self._build_text(part)
                    if written and signature and not signs_call and not _calls_follow(parts[index + 1 :]):
                        written[-1]["thoughtSignature"] = signature
                        signature = ""
                    wires += written
                case Image() | Document() | Audio():
                    wires += self._media.build(part)
                case Foreign():
                    wires += self._build_foreign(part)
                case ToolResult():
                    pass  # of a user's turn: pair_results has moved it there
        if signature:
            wires.append({"text": "", "thoughtSignature": signature})
        return wires

    def _build_thought(self, thought: Thinking, wires: list[Wire]) -> str:
        """Write a thought of Gemini's own and return its signature; other reasoning is dropped."""
        opaque = thought.opaque
        is_own = opaque is None and self._same_protocol
        if opaque is not None:
            is_own = opaque.form in _OWN_FORMS and can_send_to(opaque, self._target.issuer, self._same_protocol)
        if not is_own:
            self._ledger.record_dropped(thought.at, "Gemini takes no reasoning of other models")
            return ""
        if opaque is not None and opaque.form is OpaqueForm.DETAIL:
            wires += self._read_replayed(opaque.payload, thought.at)
            return ""
        if thought.text:
            wires.append({"text": thought.text, "thought": True})
        return "" if opaque is None else opaque.payload

    def _read_replayed(self, payload: str, at: str) -> list[Wire]:
        """Return a part that goes back as it came; none if the client has altered it beyond reading."""
        try:
            return [msgspec.json.decode(payload, type=dict[str, object])]
        except (msgspec.DecodeError, RecursionError):
            self._ledger.record_dropped(at, "it cannot be read")
            return []

    def _build_call(self, call: ToolCall) -> Wire:
        wire: Wire = {"functionCall": {"id": call.id, "name": call.name, "args": self._read_arguments(call)}}
        self._restore(wire, call.ext)
        return wire

    def _read_arguments(self, call: ToolCall) -> object:
        """Return the arguments as an object, as Gemini has them; a client's broken JSON is kept as text."""
        arguments = parse_or(call.arguments or "{}", object, call.arguments)
        if isinstance(arguments, dict):
            return arguments
        self._ledger.record_approximated(call.at, "Gemini's arguments are an object: others are wrapped in one")
        return {"input": arguments}

    def _build_foreign(self, part: Foreign) -> list[Wire]:
        """Return a part of Gemini's own, from its client or from the reply that it continues."""
        own = self._same_protocol or part.is_upstreams
        return [dict(part.raw)] if own and isinstance(part.raw, dict) else []

    # The user's turns

    def _build_user(self, parts: Sequence[Part]) -> list[Wire]:
        responses: list[Wire] = []
        others: list[Wire] = []
        for part in parts:
            match part:
                case Text() | Refusal():
                    others += self._build_text(part)
                case ToolResult():
                    responses.append(self._build_result(part, others))
                case Image() | Document() | Audio():
                    others += self._media.build(part)
                case Thinking():
                    self._ledger.record_dropped(part.at, "a user has no reasoning")
                case Foreign():
                    others += self._build_foreign(part)
                case ToolCall():
                    pass  # pair_results has made text of it
        return responses + others

    def _build_text(self, part: Text | Refusal) -> list[Wire]:
        if isinstance(part, Text) and part.citations:
            at = f"{part.at}/{self._citations_key}"
            self._ledger.record_dropped(at, "Gemini does not accept citations in a request")
        if not part.text:
            return []
        wire: Wire = {"text": part.text}
        self._restore(wire, part.ext)
        return [wire]

    def _build_result(self, result: ToolResult, others: list[Wire]) -> Wire:
        """Return the response. Media that it cannot hold are added to the parts that follow all responses."""
        texts: list[str] = []
        attached: list[Wire] = []
        for part in result.content:
            if isinstance(part, Text):
                texts.append(part.text)
            elif isinstance(part, Document) and isinstance(part.source, str):
                texts.append(f"{part.title}{_SEPARATOR}{part.source}" if part.title else part.source)
            elif isinstance(part, Image | Document):
                if self._media.fits_in_result(part):
                    attached += self._media.build(part)
                    continue
                kind = "image" if isinstance(part, Image) else "document"
                self._ledger.record_approximated(part.at, f"the {kind} of a tool result follows as a part of its own")
                texts.append(f"[{kind}: see below]")
                others.append({"text": f"[{kind} from the result of {self._find_name(result)}]"})
                others += self._media.build(part)
        output = self._read_object(texts) or {"error" if result.is_error else "output": _SEPARATOR.join(texts)}
        response: Wire = {"id": result.call_id, "name": self._find_name(result), "response": output}
        if attached:
            response["parts"] = attached
        wire: Wire = {"functionResponse": response}
        self._restore(wire, result.ext)
        return wire

    def _read_object(self, texts: list[str]) -> dict[str, object] | None:
        """Return the object that a Gemini client sent as a response."""
        if not self._same_protocol or len(texts) != 1 or not texts[0].startswith("{"):
            return None
        return parse_or(texts[0], dict[str, object], None)

    def _find_name(self, result: ToolResult) -> str:
        return self._names.get(result.call_id, result.call_id)


def _calls_follow(parts: Sequence[Part]) -> bool:
    """Return whether a call of the same step follows; reasoning begins the next step."""
    for part in parts:
        if isinstance(part, ToolCall | Thinking):
            return isinstance(part, ToolCall)
    return False


class _MediaBuilder:
    """Builds the media of one request."""

    __slots__ = ("_ledger", "_media_in_results")

    def __init__(self, target: Target, ledger: Ledger) -> None:
        self._media_in_results = target.profile.media_in_results
        self._ledger = ledger

    def fits_in_result(self, part: Image | Document) -> bool:
        """Return whether the result of a call can hold this image or document itself."""
        is_known = isinstance(part.source, Inline) and part.source.media_type in _IN_RESULTS
        return is_known and self._media_in_results

    def build(self, part: Image | Document | Audio) -> list[Wire]:
        if isinstance(part, Image) and part.detail not in (None, "auto"):
            self._ledger.record_dropped(part.detail_at or part.at, "Gemini has no detail for one image")
        title = part.title if isinstance(part, Document) else None
        if title and not isinstance(part.source, str):
            self._ledger.record_approximated(part.at, "Gemini's files have no name")
        match part.source:
            case str(text):
                self._ledger.record_approximated(part.at, "Gemini has no text documents; sent as plain text")
                return [{"text": f"{title}{_SEPARATOR}{text}" if title else text}]
            case Inline(media_type=media_type, data=data):
                return [{"inlineData": {"mimeType": media_type, "data": data}}]
            case Link(url=url):
                return [{"fileData": {"mimeType": self._find_type(part, url), "fileUri": url}}]
            case FileId(id=file_id):
                raise BadRequest(part.at, f"The file {file_id!r} is stored at another vendor. Send its data instead.")

    def _find_type(self, part: Image | Document | Audio, url: str) -> str:
        """Return the type of a linked file, which Gemini wants, from its name or by its kind."""
        found = _TYPES_BY_SUFFIX.get(urlsplit(url.partition("?")[0]).path.rpartition(".")[2].lower())
        if found is not None:
            return found
        guessed = "image/jpeg" if isinstance(part, Image) else "application/pdf"
        self._ledger.record_invented(part.at, f"Gemini wants the type of a linked file: {guessed}")
        return guessed
