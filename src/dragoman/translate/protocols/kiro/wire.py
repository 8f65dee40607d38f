"""Shapes of Kiro's requests and reply events, and the options that its provider sets for one request."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field

from dragoman.translate.hub.events import Stop

NAME = "kiro"
Position = Annotated[int, Meta(ge=0, le=2**53)]  # within the reply's text
Count = int | float  # of tokens; impossible counts are clamped by the decoder
NOTHING = Raw(b"null")
STOPS = {
    "END_TURN": Stop.END,
    "TOOL_USE": Stop.END,  # only complete calls make it TOOL
    "STOP_SEQUENCE": Stop.STOP_SEQUENCE,
    "MAX_TOKENS": Stop.LENGTH,
    "CONTENT_FILTERED": Stop.FILTERED,
    "MODEL_CONTEXT_WINDOW_EXCEEDED": Stop.CONTEXT_FULL,
    "PAUSE_TURN": Stop.PAUSE,
}

# The official client's limits, which the service is known to accept.
MAX_IMAGES = 10  # in one message
MAX_IMAGE_BYTES = 10 * 1024 * 1024
IMAGE_FORMATS = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}
NO_CACHE_POINTS = "no_cache_points"  # a quirk
MANUAL = "MANUAL"
VIBE = "vibe"
SUCCESS = "success"
ERROR = "error"
_SURROGATE = re.compile("[\ud800-\udfff]")


class KiroOptions(Struct, frozen=True):
    """Kiro's options for one request, which its provider passes to `build` and to the decoder."""

    profile_arn: str | None = None
    conversation_id: str = ""
    model_id: str | None = None  # Kiro's own id of the model; None: the target's model
    origin: str = "AI_EDITOR"
    agent_mode: str | None = None
    thinking_by: str = "auto"  # auto | native | tags | off
    cache_points: bool = False  # the model's list entry says that it caches prompts
    fields_schema: dict[str, object] | None = None  # additionalModelRequestFieldsSchema; None: no native channel
    tool_description_max: int = 10_000
    max_payload_bytes: int | None = None
    missing_tail_is_truncation: bool = True


def read_options(value: object) -> KiroOptions:
    """Return the options in `Target.options` or `Issuer.options`, else the defaults."""
    return value if isinstance(value, KiroOptions) else KiroOptions()


class ReplyIds(Struct, rename="camel"):
    conversation_id: str | None = None
    utterance_id: str | None = None
    wrapped: "ReplyIds | None" = field(default=None, name="messageMetadataEvent")


class TextEvent(Struct, rename="camel", gc=False):
    content: str | None = None
    model_id: str | None = None
    wrapped: "TextEvent | None" = field(default=None, name="assistantResponseEvent")


class ReasoningEvent(Struct, rename="camel"):
    text: str | None = None
    reasoning_text: str | None = None  # an older spelling of `text`
    signature: str | None = None
    redacted_content: str | None = None
    wrapped: "ReasoningEvent | None" = field(default=None, name="reasoningContentEvent")


class ToolUse(Struct, rename="camel"):
    tool_use_id: str | None = None
    name: str | None = None
    input: Raw = NOTHING  # a piece of JSON text as a string, or the whole object
    stop: bool | None = None
    wrapped: "ToolUse | None" = field(default=None, name="toolUseEvent")


class TokenUsage(Struct, rename="camel"):
    uncached_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_write_input_tokens: Count | None = None
    output_tokens: Count | None = None

    @property
    def has_input(self) -> bool:
        counts = (self.uncached_input_tokens, self.cache_read_input_tokens, self.cache_write_input_tokens)
        return any(count is not None for count in counts)


class Metadata(Struct, rename="camel"):
    token_usage: TokenUsage | None = None
    stop_reason: str | None = None
    wrapped: "Metadata | None" = field(default=None, name="metadataEvent")


class ContextUsage(Struct, rename="camel"):
    context_usage_percentage: float | None = None
    wrapped: "ContextUsage | None" = field(default=None, name="contextUsageEvent")


class Metering(Struct, rename="camel"):
    unit: str | None = None
    usage: float | None = None
    wrapped: "Metering | None" = field(default=None, name="meteringEvent")


class Span(Struct):
    start: Position | None = None
    end: Position | None = None


class Reference(Struct, rename="camel"):
    license_name: str | None = None
    repository: str | None = None
    url: str | None = None
    recommendation_content_span: Span | None = None


class CodeReferences(Struct, rename="camel"):
    references: list[Reference] | None = None
    wrapped: "CodeReferences | None" = field(default=None, name="codeReferenceEvent")


class WebLink(Struct):
    url: str | None = None
    title: str | None = None
    snippet: str | None = None


class WebLinks(Struct, rename="camel"):
    supplementary_web_links: list[WebLink] | None = None
    wrapped: "WebLinks | None" = field(default=None, name="supplementaryWebLinksEvent")


class CitationTarget(Struct):
    location: Position | None = None
    range: Span | None = None


class CitationEvent(Struct, rename="camel"):
    target: CitationTarget | None = None
    citation_text: str | None = None
    citation_link: str | None = None
    wrapped: "CitationEvent | None" = field(default=None, name="citationEvent")


class Fault(Struct):
    """An exception, an invalid state or an error body; every field may be missing."""

    message: str | None = None
    Message: str | None = None
    errorMessage: str | None = None
    reason: str | None = None
    type: str | None = field(default=None, name="__type")
    code: str | int | None = None
    wrapped: "Fault | None" = field(default=None, name="invalidStateEvent")
    error: "Fault | str | None" = None

    @property
    def text(self) -> str:
        return self.message or self.Message or self.errorMessage or ""


class ImageSource(Struct):
    bytes: str  # base64


class ImageBlock(Struct):
    format: str
    source: ImageSource


class ResultText(Struct):
    text: str


class ToolOutcome(Struct, rename="camel"):
    tool_use_id: str
    status: str
    content: list[ResultText]


class ToolCallEntry(Struct, rename="camel"):
    tool_use_id: str
    name: str
    input: dict[str, object]


class InputSchema(Struct):
    json: dict[str, object]


class ToolSpecification(Struct, rename="camel"):
    name: str
    description: str
    input_schema: InputSchema


class ToolEntry(Struct, rename="camel"):
    tool_specification: ToolSpecification


class UserContext(Struct, rename="camel", omit_defaults=True):
    tool_results: list[ToolOutcome] = field(default_factory=list)
    tools: list[ToolEntry] = field(default_factory=list)


class CachePoint(Struct):
    """A mark: the prompt is cached up to the end of its message."""

    type: str = "default"


class UserInput(Struct, rename="camel", omit_defaults=True):
    content: str
    model_id: str
    origin: str
    images: list[ImageBlock] = field(default_factory=list)
    user_input_message_context: UserContext | None = None
    cache_point: CachePoint | None = None


class ReasoningText(Struct):
    text: str
    signature: str


class ReasoningContent(Struct, rename="camel", omit_defaults=True):
    """Exactly one of the fields is set."""

    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None


class AssistantReply(Struct, rename="camel", omit_defaults=True):
    content: str
    tool_uses: list[ToolCallEntry] = field(default_factory=list)
    reasoning_content: ReasoningContent | None = None
    cache_point: CachePoint | None = None


class UserEntry(Struct, rename="camel"):
    user_input_message: UserInput


class AssistantEntry(Struct, rename="camel"):
    assistant_response_message: AssistantReply


Entry = UserEntry | AssistantEntry


class ConversationState(Struct, rename="camel", omit_defaults=True):
    chat_trigger_type: str
    agent_task_type: str
    current_message: UserEntry
    conversation_id: str = ""
    history: list[Entry] = field(default_factory=list)


class Payload(Struct, rename="camel", omit_defaults=True):
    conversation_state: ConversationState
    profile_arn: str | None = None
    agent_mode: str | None = None
    additional_model_request_fields: dict[str, object] = field(default_factory=dict)


def encode_json(value: object) -> bytes:
    """Return the JSON of a value; lone surrogates, which JSON cannot hold, are removed."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_drop_surrogates(msgspec.to_builtins(value)))


def json_text(value: object) -> str:
    return encode_json(value).decode()


def _drop_surrogates(value: object) -> object:
    match value:
        case str():
            return _SURROGATE.sub("", value)
        case dict():
            return {_drop_surrogates(key): _drop_surrogates(item) for key, item in value.items()}
        case list():
            return [_drop_surrogates(item) for item in value]
        case _:
            return value
