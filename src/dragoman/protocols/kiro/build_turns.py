"""Build Kiro's history and current message from hub turns, in the order that Kiro demands."""

from collections.abc import Sequence

import msgspec

from dragoman.framing.jsonread import read_json
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form
from dragoman.hub.profile import Target
from dragoman.hub.request import (
    Audio,
    Cache,
    Document,
    Foreign,
    Image,
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
from dragoman.passes.pair_results import merge_turns
from dragoman.protocols.kiro.build_content import write_document, write_image
from dragoman.protocols.kiro.wire import (
    ERROR,
    MAX_IMAGES,
    SUCCESS,
    AssistantEntry,
    AssistantReply,
    Entry,
    ImageBlock,
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

# Kiro demands words in every message. These say what is there, and nothing that a model could take for a request.
_ONLY_RESULTS = "The results of the tool calls are attached."
_ONLY_IMAGES = "The images are attached."
_ONLY_CALLS = "I am calling a tool."
_NO_WORDS = "This message has no text."
_NO_OUTPUT = "The tool gave no output."
_IMAGE_BESIDE = "The image is attached to this message."

# A model that is asked to continue in one word repeats that word: this is a sentence like any other.
_GO_ON = "Please go on from where your last message ends."


def is_silent(turn: Turn) -> bool:
    """Whether a turn would say nothing at all."""
    return not any(_is_spoken(part, turn.role) for part in turn.parts)


def _is_spoken(part: Part, role: Role) -> bool:
    match part:
        case Text(text=text) | Refusal(text=text):
            return bool(text.strip())
        case Image():
            return role is Role.USER
        case Document() | Audio() | ToolCall() | ToolResult():
            return True
        case Thinking() | Foreign():
            return False


class Writer:
    """Writes the turns of one request to one target."""

    __slots__ = ("_citations", "_issuer", "_ledger", "_model", "_model_id", "_origin")

    def __init__(self, request: Request, target: Target, options: KiroOptions, ledger: Ledger) -> None:
        self._citations = "citations" if request.protocol == "messages" else "annotations"
        self._issuer = target.issuer
        self._model = target.model
        self._model_id = options.model_id or target.model
        self._origin = options.origin
        self._ledger = ledger

    def instructions(self, turn: Turn) -> list[str]:
        """The words of a turn that instructs."""
        words: list[str] = []
        for part in turn.parts:
            if isinstance(part, Text | Refusal | Document):
                words += self._words(part)
            elif not isinstance(part, Foreign):
                self._ledger.note_dropped(part.at, "instructions may hold text only")
        return words

    def user(self, turn: Turn, opening: str = "") -> UserInput:
        """A user's turn; `opening` stands before its words."""
        words = [opening] if opening else []
        images: list[ImageBlock] = []
        results: list[ToolOutcome] = []
        for part in turn.parts:
            match part:
                case Image():
                    self._image(part, turn, images)
                case ToolResult():
                    results.append(self._result(part, images))
                case _:
                    words += self._words(part)
        if not words:
            words = [_ONLY_RESULTS if results else _ONLY_IMAGES if images else _NO_WORDS]
            self._ledger.note_invented(turn.at, "Kiro demands words in every message")
        if len(images) > MAX_IMAGES:
            raise BadRequest(
                turn.at, f"Kiro takes at most {MAX_IMAGES} images in a message; this one has {len(images)}"
            )
        context = UserContext(results) if results else None
        return UserInput("\n\n".join(words), self._model_id, self._origin, images, context)

    def assistant(self, turn: Turn) -> AssistantReply:
        words: list[str] = []
        calls: list[ToolCallEntry] = []
        reasoning: ReasoningContent | None = None
        for part in turn.parts:
            match part:
                case ToolCall():
                    self._uncached(part.cache)
                    calls.append(ToolCallEntry(part.id, part.name, self._arguments(part)))
                case Thinking():
                    reasoning = self._reasoning(part, reasoning)
                case Image():
                    self._ledger.note_dropped(part.at, "an assistant's turn holds text only")
                case _:
                    more = self._words(part)
                    if more and calls:
                        self._ledger.note_approximated(part.at, "an assistant's words are sent before its calls")
                    words += more
        if not words:
            words = [_ONLY_CALLS]
            self._ledger.note_invented(turn.at, "Kiro demands words in every message")
        return AssistantReply("\n\n".join(words), calls, reasoning)

    def _words(self, part: Part) -> list[str]:
        match part:
            case Text() | Refusal():
                return self._text(part)
            case Document():
                self._uncached(part.cache)
                return [write_document(part, self._ledger)]
            case Thinking():
                self._ledger.note_dropped(part.at, "only an assistant's turn holds thoughts")
            case Audio():
                raise BadRequest(part.at, "Kiro takes no audio")
        return []  # Foreign, of which the ledger has been told

    def _text(self, part: Text | Refusal) -> list[str]:
        if isinstance(part, Refusal):
            self._ledger.note_approximated(part.at, "a refusal is told as text")
        else:
            self._uncached(part.cache)
            if part.citations:
                self._ledger.note_dropped(f"{part.at}/{self._citations}", "citations cannot be given back")
        if part.text.strip():
            return [part.text]
        if part.text:
            self._ledger.note_dropped(part.at, "a text of white space only is left out")
        return []

    def _image(self, part: Image, turn: Turn, images: list[ImageBlock]) -> None:
        self._uncached(part.cache)
        if part.detail not in (None, "auto"):
            self._ledger.note_dropped(part.detail_at or part.at, "the level of detail cannot be chosen")
        place = next(index for index, other in enumerate(turn.parts) if other is part)
        if _has_words(turn.parts[:place]) and _has_words(turn.parts[place:]):
            self._ledger.note_approximated(part.at, "images are sent beside the text, not within it")
        images.append(write_image(part))

    def _result(self, result: ToolResult, images: list[ImageBlock]) -> ToolOutcome:
        self._uncached(result.cache)
        words: list[str] = []
        for part in result.content:
            if isinstance(part, Image):
                self._hoisted(part, images)
                words.append(_IMAGE_BESIDE)
            else:
                words += self._words(part)
        if not words:
            self._ledger.note_invented(result.at, "Kiro demands words in every result")
            words = [_NO_OUTPUT]
        status = ERROR if result.is_error else SUCCESS
        return ToolOutcome(result.call_id, status, [ResultText(text) for text in words])

    def _hoisted(self, part: Image, images: list[ImageBlock]) -> None:
        self._uncached(part.cache)
        self._ledger.note_approximated(part.at, "an image of a result is attached to the message that holds the result")
        images.append(write_image(part))

    def _reasoning(self, part: Thinking, before: ReasoningContent | None) -> ReasoningContent | None:
        """Thoughts go back to nobody but who had them, exactly as they came."""
        opaque = part.opaque
        if opaque is None or opaque.issuer != self._issuer:
            self._ledger.note_dropped(part.at, "only thoughts that this upstream signed itself may be given back")
            return before
        if opaque.model not in ("", self._model):
            self._ledger.note_dropped(part.at, "thoughts are signed for the model that had them")
            return before
        if before is not None:
            self._ledger.note_dropped(part.at, "a message of Kiro's holds one run of thoughts")
            return before
        match opaque.form:
            case Form.SIGNATURE:
                return ReasoningContent(ReasoningText(opaque.text or part.text, opaque.payload))
            case Form.REDACTED:
                return ReasoningContent(redacted_content=opaque.payload)
        self._ledger.note_dropped(part.at, "reasoning of this form cannot be given back")
        return before

    def _arguments(self, call: ToolCall) -> dict[str, object]:
        if not call.arguments.strip():
            return {}
        try:
            value = read_json(_object, call.arguments.encode(errors="replace"))
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            self._ledger.note_approximated(call.at, "arguments that are not a JSON object are sent inside one")
            return {"arguments": call.arguments}
        if '""' not in call.arguments:
            return value
        named = _without_empty_keys(value)
        assert isinstance(named, dict)
        if named != value:
            self._ledger.note_dropped(call.at, "Kiro takes no empty keys in arguments")
        return named

    def _uncached(self, cache: Cache | None) -> None:
        if cache is not None:
            self._ledger.note_dropped(cache.at, "Kiro has no cache breakpoints")


def _has_words(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, Text) and part.text.strip() for part in parts)


def _without_empty_keys(value: object) -> object:
    match value:
        case dict():
            return {key: _without_empty_keys(held) for key, held in value.items() if key}
        case list():
            return [_without_empty_keys(held) for held in value]
        case _:
            return value


def write_turns(turns: Sequence[Turn], opening: str, writer: Writer, ledger: Ledger) -> tuple[list[Entry], UserEntry]:
    """The conversation after its leading instructions, which are the `opening` of its first message."""
    ordered = _in_order(turns, ledger)
    *history, current = (_entry(turn, opening if index == 0 else "", writer) for index, turn in enumerate(ordered))
    assert isinstance(current, UserEntry)
    return history, current


def _entry(turn: Turn, opening: str, writer: Writer) -> Entry:
    if turn.role is Role.USER:
        return UserEntry(writer.user(turn, opening))
    return AssistantEntry(writer.assistant(turn))


def _in_order(turns: Sequence[Turn], ledger: Ledger) -> list[Turn]:
    """Turns that alternate, the first and the last a user's."""
    spoken = [turn for turn in turns if not is_silent(turn)]
    for turn in turns:
        if is_silent(turn):
            ledger.note_dropped(turn.at, "a turn that says nothing is left out")
    ordered = list(merge_turns(spoken, ledger))
    if not ordered or ordered[0].role is not Role.USER:
        at = ordered[0].at if ordered else ""
        ledger.note_invented(at, "a conversation must open with a user's turn")
        ordered.insert(0, Turn(Role.USER, (), at))
    last = ordered[-1]
    if last.role is Role.ASSISTANT:
        assert not any(isinstance(part, ToolCall) for part in last.parts)
        ledger.note_approximated(last.at, "a turn to be continued is sent as one that is over")
        ordered.append(Turn(Role.USER, (Text(_GO_ON),), last.at))
    return ordered
