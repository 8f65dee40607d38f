"""Kiro's shapes in Kiro's spelling: what its reply events hold, and what a provider tells about one request."""

from typing import Annotated

from msgspec import Meta, Raw, Struct, field

from dragoman.hub.events import Stop

NAME = "kiro"

Position = Annotated[int, Meta(ge=0, le=2**53)]  # within the reply's text
Count = int | float  # of tokens; what cannot be true is clamped by whoever reads it

NOTHING = Raw(b"null")


class KiroOptions(Struct, frozen=True):
    """What only Kiro needs to know for one request; its provider hands it to `build` and to the decoder."""

    profile_arn: str | None = None
    conversation_id: str = ""
    model_id: str | None = None  # the id that Kiro knows; None: the target's model is one
    origin: str = "AI_EDITOR"
    agent_mode: str | None = None
    thinking_by: str = "auto"  # auto | native | tags | off
    fields_schema: dict[str, object] | None = None  # additionalModelRequestFieldsSchema; None: no native channel
    tool_description_max: int = 10_000
    max_payload_bytes: int | None = None
    missing_tail_is_truncation: bool = True


def options_of(value: object) -> KiroOptions:
    """The options that `Target.options` or `Issuer.options` holds, else the defaults."""
    return value if isinstance(value, KiroOptions) else KiroOptions()


# Each event may come bare or wrapped in its own name: `wrapped` is the second.


class ReplyIds(Struct, rename="camel"):
    conversation_id: str | None = None
    utterance_id: str | None = None
    wrapped: "ReplyIds | None" = field(default=None, name="messageMetadataEvent")


class Words(Struct, rename="camel", gc=False):
    content: str | None = None
    model_id: str | None = None
    wrapped: "Words | None" = field(default=None, name="assistantResponseEvent")


class Thoughts(Struct, rename="camel"):
    text: str | None = None
    reasoning_text: str | None = None  # an older spelling of `text`
    signature: str | None = None
    redacted_content: str | None = None
    wrapped: "Thoughts | None" = field(default=None, name="reasoningContentEvent")


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


class Place(Struct):
    location: Position | None = None
    range: Span | None = None


class Quotation(Struct, rename="camel"):
    target: Place | None = None
    citation_text: str | None = None
    citation_link: str | None = None
    wrapped: "Quotation | None" = field(default=None, name="citationEvent")


class Fault(Struct):
    """What an exception, an invalid state or an error body says; all of it may be missing."""

    message: str | None = None
    Message: str | None = None
    errorMessage: str | None = None
    reason: str | None = None
    type: str | None = field(default=None, name="__type")
    code: str | int | None = None
    wrapped: "Fault | None" = field(default=None, name="invalidStateEvent")
    error: "Fault | str | None" = None

    @property
    def told(self) -> str:
        return self.message or self.Message or self.errorMessage or ""


STOPS = {
    "END_TURN": Stop.END,
    "TOOL_USE": Stop.END,  # only whole calls make it TOOL
    "STOP_SEQUENCE": Stop.STOP_SEQUENCE,
    "MAX_TOKENS": Stop.LENGTH,
    "CONTENT_FILTERED": Stop.FILTERED,
    "MODEL_CONTEXT_WINDOW_EXCEEDED": Stop.CONTEXT_FULL,
    "PAUSE_TURN": Stop.PAUSE,
}
