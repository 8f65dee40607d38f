"""Build Kiro's history and current message, with images and documents, in the order that Kiro demands."""

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from dragoman.translate.framing.jsonread import read_json
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import OpaqueForm
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Audio,
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
from dragoman.translate.passes.pair_results import merge_turns
from dragoman.translate.protocols.kiro.wire import (
    ERROR,
    IMAGE_FORMATS,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    SUCCESS,
    AssistantEntry,
    AssistantReply,
    Entry,
    ImageBlock,
    ImageSource,
    KiroOptions,
    ReasoningContent,
    ReasoningText,
    ResultText,
    ToolCallEntry,
    ToolOutcome,
    UserContext,
    UserEntry,
    UserInput,
)

_object = msgspec.json.Decoder(dict[str, object])
_USER, _ASSISTANT = Role.USER, Role.ASSISTANT  # looked up once: on Python 3.11, each look-up of a member is slow

# Kiro demands text in every message. These describe what is there and ask for nothing.
_RESULTS_ONLY = "The results of the tool calls are attached."
_IMAGES_ONLY = "The images are attached."
_CALLS_ONLY = "I am calling a tool."
_NO_TEXT = "This message has no text."
_NO_OUTPUT = "The tool gave no output."
_IMAGE_BESIDE = "The image is attached to this message."

# A whole sentence, because models repeat a single word such as "Continue".
_CONTINUE = "Please go on from where your last message ends."

_DATA_URL = re.compile(r"data:([\w.+/-]*+)[^,]*?;base64,")
_SPACE = b" \t\r\n\f\v"
_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"}
    | {"application/javascript", "application/x-sh", "application/sql"}
)


def _has_content(part: Part, role: Role) -> bool:
    """Return whether a part is content for Kiro."""
    match part:
        case Text(text=text) | Refusal(text=text):
            return bool(text.strip())
        case Image():
            return role is Role.USER
        case Document() | Audio() | ToolCall() | ToolResult():
            return True
        case Thinking() | Foreign():
            return False


class TurnBuilder:
    """Build the turns of one request for one target."""

    __slots__ = ("_citations", "_issuer", "_ledger", "_model", "_model_id", "_origin")

    def __init__(self, request: Request, target: Target, options: KiroOptions, ledger: Ledger) -> None:
        self._citations = "citations" if request.protocol == "messages" else "annotations"
        self._issuer = target.issuer
        self._model = target.model
        self._model_id = options.model_id or target.model
        self._origin = options.origin
        self._ledger = ledger

    def instructions(self, turn: Turn) -> list[str]:
        """Return the texts of a system or developer turn."""
        texts: list[str] = []
        for part in turn.parts:
            if isinstance(part, Text | Refusal | Document):
                texts += self._build_text(part)
            elif not isinstance(part, Foreign):
                self._ledger.record_dropped(part.at, "instructions can hold only text")
        return texts

    def user(self, turn: Turn, opening: str = "") -> UserInput:
        """Build a user's turn; `opening` stands before its text."""
        texts = [opening] if opening else []
        images: list[ImageBlock] = []
        results: list[ToolOutcome] = []
        for part in turn.parts:  # types are compared: a struct's class pattern that does not fit is slow
            if type(part) is Image:
                self._add_image(part, turn, images)
            elif type(part) is ToolResult:
                results.append(self._build_result(part, images))
            else:
                texts += self._build_text(part)
        if not texts:
            texts = [_RESULTS_ONLY if results else _IMAGES_ONLY if images else _NO_TEXT]
            self._ledger.record_invented(turn.at, "Kiro requires text in every message")
        if len(images) > MAX_IMAGES:
            raise BadRequest(turn.at, f"Kiro takes at most {MAX_IMAGES} images in a message, got {len(images)}.")
        context = UserContext(results) if results else None
        return UserInput("\n\n".join(texts), self._model_id, self._origin, images, context)

    def assistant(self, turn: Turn) -> AssistantReply:
        texts: list[str] = []
        calls: list[ToolCallEntry] = []
        reasoning: ReasoningContent | None = None
        for part in turn.parts:
            match part:
                case ToolCall():
                    calls.append(ToolCallEntry(part.id, part.name, self._parse_arguments(part)))
                case Thinking():
                    reasoning = self._build_reasoning(part, reasoning)
                case Image():
                    self._ledger.record_dropped(part.at, "an assistant's turn holds text only")
                case _:
                    more = self._build_text(part)
                    if more and calls:
                        self._ledger.record_approximated(part.at, "an assistant's words are sent before its calls")
                    texts += more
        if not texts:
            texts = [_CALLS_ONLY]
            self._ledger.record_invented(turn.at, "Kiro requires text in every message")
        return AssistantReply("\n\n".join(texts), calls, reasoning)

    def _build_text(self, part: Part) -> list[str]:
        match part:
            case Text() | Refusal():
                return self._check_text(part)
            case Document():
                return [_build_document_text(part, self._ledger)]
            case Thinking():
                self._ledger.record_dropped(part.at, "only an assistant turn can hold reasoning")
            case Audio():
                raise BadRequest(part.at, "Kiro takes no audio. Send a transcript.")
        return []  # foreign parts are in the ledger already

    def _check_text(self, part: Text | Refusal) -> list[str]:
        if type(part) is Refusal:
            self._ledger.record_approximated(part.at, "a refusal is sent as text")
        elif type(part) is Text and part.citations:
            self._ledger.record_dropped(f"{part.at}/{self._citations}", "citations cannot be returned")
        if part.text.strip():
            return [part.text]
        if part.text:
            self._ledger.record_dropped(part.at, "a text of white space only is left out")
        return []

    def _add_image(self, part: Image, turn: Turn, images: list[ImageBlock]) -> None:
        if part.detail not in (None, "auto"):
            self._ledger.record_dropped(part.detail_at or part.at, "the level of detail cannot be chosen")
        place = next(index for index, other in enumerate(turn.parts) if other is part)
        if _has_text(turn.parts[:place]) and _has_text(turn.parts[place:]):
            self._ledger.record_approximated(part.at, "images are sent beside the text, not within it")
        images.append(_build_image(part))

    def _build_result(self, result: ToolResult, images: list[ImageBlock]) -> ToolOutcome:
        texts: list[str] = []
        for part in result.content:
            if isinstance(part, Image):
                self._add_result_image(part, images)
                texts.append(_IMAGE_BESIDE)
            else:
                texts += self._build_text(part)
        if not texts:
            self._ledger.record_invented(result.at, "Kiro requires text in every result")
            texts = [_NO_OUTPUT]
        status = ERROR if result.is_error else SUCCESS
        return ToolOutcome(result.call_id, status, [ResultText(text) for text in texts])

    def _add_result_image(self, part: Image, images: list[ImageBlock]) -> None:
        self._ledger.record_approximated(
            part.at, "an image of a result is attached to the message that holds the result"
        )
        images.append(_build_image(part))

    def _build_reasoning(self, part: Thinking, earlier: ReasoningContent | None) -> ReasoningContent | None:
        """Return reasoning unchanged to the upstream and model that issued it."""
        opaque = part.opaque
        if opaque is None or opaque.issuer != self._issuer:
            self._ledger.record_dropped(part.at, "only reasoning that this upstream signed can be returned to it")
            return earlier
        if opaque.model not in ("", self._model):
            self._ledger.record_dropped(part.at, "reasoning is signed for the model that wrote it")
            return earlier
        if earlier is not None:
            self._ledger.record_dropped(part.at, "a Kiro message holds one reasoning block")
            return earlier
        match opaque.form:
            case OpaqueForm.SIGNATURE:
                return ReasoningContent(ReasoningText(opaque.text or part.text, opaque.payload))
            case OpaqueForm.REDACTED:
                return ReasoningContent(redacted_content=opaque.payload)
        self._ledger.record_dropped(part.at, "reasoning of this form cannot be returned")
        return earlier

    def _parse_arguments(self, call: ToolCall) -> dict[str, object]:
        if not call.arguments.strip():
            return {}
        try:
            value = read_json(_object, call.arguments.encode(errors="replace"))
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            self._ledger.record_approximated(call.at, "arguments that are not a JSON object are sent inside one")
            return {"arguments": call.arguments}
        if '""' not in call.arguments:
            return value
        cleaned = _drop_empty_keys(value)
        assert isinstance(cleaned, dict)
        if cleaned != value:
            self._ledger.record_dropped(call.at, "Kiro takes no empty keys in arguments")
        return cleaned


def _has_text(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, Text) and part.text.strip() for part in parts)


def _drop_empty_keys(value: object) -> object:
    match value:
        case dict():
            return {key: _drop_empty_keys(held) for key, held in value.items() if key}
        case list():
            return [_drop_empty_keys(held) for held in value]
        case _:
            return value


def build_turns(
    turns: Sequence[Turn], opening: str, builder: TurnBuilder, ledger: Ledger
) -> tuple[list[Entry], UserEntry]:
    """Return history and current message; `opening` holds the leading instructions for the first message."""
    ordered = _order_turns(turns, ledger)
    *history, current = (
        _build_entry(turn, opening if index == 0 else "", builder) for index, turn in enumerate(ordered)
    )
    assert isinstance(current, UserEntry)
    return history, current


def _build_entry(turn: Turn, opening: str, builder: TurnBuilder) -> Entry:
    if turn.role is _USER:
        return UserEntry(builder.user(turn, opening))
    return AssistantEntry(builder.assistant(turn))


def _order_turns(turns: Sequence[Turn], ledger: Ledger) -> list[Turn]:
    """Return turns that alternate, the first and the last of them a user's."""
    filled: list[Turn] = []
    for turn in turns:
        if any(_has_content(part, turn.role) for part in turn.parts):
            filled.append(turn)
        else:
            ledger.record_dropped(turn.at, "a turn without content is left out")
    ordered = list(merge_turns(filled, ledger))
    if not ordered or ordered[0].role is not _USER:
        at = ordered[0].at if ordered else ""
        ledger.record_invented(at, "a conversation must begin with a user turn")
        ordered.insert(0, Turn(Role.USER, (), at))
    last = ordered[-1]
    if last.role is _ASSISTANT:
        assert not any(isinstance(part, ToolCall) for part in last.parts)
        ledger.record_approximated(last.at, "Kiro cannot continue an assistant turn; sent as finished")
        ordered.append(Turn(Role.USER, (Text(_CONTINUE),), last.at))
    return ordered


def _build_image(part: Image) -> ImageBlock:
    match part.source:
        case Link(url=url):
            raise BadRequest(part.at, f"Kiro takes no image by URL ({url[:80]}). Send its data, or enable [fetch].")
        case FileId():
            raise BadRequest(part.at, "Kiro takes no image by file id. Send its data.")
        case Inline(media_type=media_type, data=data):
            return _build_block(media_type, data, part.at)


def _build_block(media_type: str, data: str, at: str) -> ImageBlock:
    if (prefix := _DATA_URL.match(data)) is not None:
        media_type, data = prefix[1] or media_type, data[prefix.end() :]
    kind = media_type.partition(";")[0].strip().lower()
    if kind not in IMAGE_FORMATS:
        raise BadRequest(
            at, f"Kiro takes PNG, JPEG, GIF and WebP images, not {media_type or 'one without a media type'}."
        )
    if any(character in data for character in "\n\r\t "):
        # Not by an expression or `split`: to join millions of pieces would let nothing else run for half a second.
        data = data.encode(errors="replace").translate(None, _SPACE).decode()
    size = len(data) * 3 // 4
    if size > MAX_IMAGE_BYTES:
        raise BadRequest(at, f"Kiro takes images of at most {MAX_IMAGE_BYTES} bytes, got {size}.")
    return ImageBlock(IMAGE_FORMATS[kind], ImageSource(data))


def _build_document_text(part: Document, ledger: Ledger) -> str:
    """Return a text document as tagged text; raises BadRequest for other documents."""
    text = _read_text(part)
    ledger.record_approximated(part.at, "a document is sent as text")
    title = f' title="{part.title}"' if part.title else ""
    return f"<document{title}>\n{text}\n</document>"


def _read_text(part: Document) -> str:
    match part.source:
        case str():
            return part.source
        case Link():
            raise BadRequest(part.at, "Kiro takes no document by URL. Send its text, or enable [fetch].")
        case FileId():
            raise BadRequest(part.at, "Kiro takes no document by file id. Send its text.")
        case Inline(media_type=media_type, data=data):
            kind = media_type.partition(";")[0].strip().lower()
            if not kind.startswith("text/") and kind not in _TEXT_TYPES:
                raise BadRequest(part.at, f"Kiro takes text documents, not {media_type}.")
            try:
                return base64.b64decode(data, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError) as error:
                raise BadRequest(part.at, f"The document is not base64 of UTF-8 text: {error}.") from error
