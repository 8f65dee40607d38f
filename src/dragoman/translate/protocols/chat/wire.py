"""Shapes of stream chunks and replies in Chat Completions, and the tables of names that vendors use."""

from msgspec import Raw, Struct

from dragoman.translate.hub.events import Stop
from dragoman.translate.hub.usage import Usage

NAME = "chat"
OPENAI = "openai"  # the vendor
OPENAI_PROTOCOLS = frozenset({NAME, "responses"})  # of one vendor, with the same effort scale and file ids
DONE = b"[DONE]"
NOTHING = Raw(b"")
Count = int | float | None  # servers written in languages without integers send 12.0

# Fields that the reply can do without: one of a wrong type is ignored.
INESSENTIAL_FIELDS = frozenset(("id", "model", "usage", "service_tier", "logprobs", "annotations"))

# Values of finish_reason: OpenAI's five, and those that compatible servers add.
STOPS: dict[str, Stop] = {
    "stop": Stop.END,
    "length": Stop.LENGTH,
    "tool_calls": Stop.TOOL,
    "function_call": Stop.TOOL,
    "content_filter": Stop.FILTERED,
    "eos": Stop.END,
    "end_turn": Stop.END,
    "stop_sequence": Stop.STOP_SEQUENCE,
    "max_tokens": Stop.LENGTH,
    "model_length": Stop.CONTEXT_FULL,
    "refusal": Stop.FILTERED,
    "safety": Stop.FILTERED,
}

# Those that decide alone why a reply without tool calls ended.
PLAIN_STOPS = {finish: STOPS[finish] for finish in ("stop", "length", "content_filter")}

# Values that report a failure instead of an end: OpenRouter's and DeepSeek's.
FAILED_STOPS = frozenset({"error", "insufficient_system_resource"})

# The finish_reason that clients get.
FINISHES: dict[Stop, str] = {
    Stop.END: "stop",
    Stop.STOP_SEQUENCE: "stop",
    Stop.LENGTH: "length",
    Stop.CONTEXT_FULL: "length",
    Stop.TOOL: "tool_calls",
    Stop.FILTERED: "content_filter",
    Stop.PAUSE: "stop",
}
AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
FILE_TYPES = {
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
}
SEARCH_OPTIONS = "web_search_options"
VISIBLE_KEYS = ("text", "summary")
CALL_KEY = "tool_call"  # in our own entries: the call that a signature belongs to
FIELD_KEY = "reasoning_opaque"  # in our own entries: a value that is a field of the message


class FunctionPiece(Struct, gc=False):
    name: str | None = None
    arguments: object = None  # text; some servers send the object itself


class CustomPiece(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class CallPiece(Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None
    custom: CustomPiece | None = None
    extra_content: object = None  # where Google keeps the signature of a call


class ContentPart(Struct):
    """Content as an array: OpenAI's text and refusal parts, Mistral's thinking parts."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    thinking: object = None


class ThinkingPart(Struct):
    """An entry of LiteLLM's thinking_blocks, which has the shape of Anthropic's blocks."""

    type: str = ""
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class UrlCitation(Struct):
    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class Annotation(Struct):
    type: str = ""
    url_citation: UrlCitation | None = None


Content = str | list[ContentPart] | None


class Message(Struct, gc=False):
    """A stream's delta, or a whole reply's message: the same fields."""

    content: Content = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: FunctionPiece | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, object] | None = None
    reasoning_text: str | None = None  # Copilot's
    reasoning_opaque: str | None = None
    reasoning_details: list[dict[str, object]] | None = None
    thinking_blocks: list[ThinkingPart] | None = None
    annotations: list[Annotation] | None = None
    audio: object = None
    images: object = None


class Logprobs(Struct, gc=False):
    content: Raw = NOTHING
    refusal: Raw = NOTHING


class PromptDetails(Struct, gc=False):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


class CompletionDetails(Struct, gc=False):
    reasoning_tokens: Count = None


_NO_PROMPT_DETAILS = PromptDetails()
_NO_COMPLETION_DETAILS = CompletionDetails()


class Tokens(Struct, gc=False):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: Count = None  # DeepSeek's name for cached_tokens

    @property
    def has_counts(self) -> bool:
        """Return whether there are counts: some servers send the object without any."""
        return self.prompt_tokens is not None or self.completion_tokens is not None

    def to_usage(self, service_tier: str | None) -> Usage:
        prompt = self.prompt_tokens_details or _NO_PROMPT_DETAILS
        completion = self.completion_tokens_details or _NO_COMPLETION_DETAILS
        return Usage(
            input=int(self.prompt_tokens or 0),
            output=int(self.completion_tokens or 0),
            cache_read=int(prompt.cached_tokens or self.prompt_cache_hit_tokens or 0),
            cache_write=int(prompt.cache_write_tokens or 0),
            reasoning=int(completion.reasoning_tokens or 0),
            service_tier=service_tier,
        )


class Choice(Struct, gc=False):
    index: int | None = None
    delta: Message | None = None
    message: Message | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    usage: Tokens | None = None  # where Moonshot writes it
    stop_reason: object = None  # vLLM: the stop string that was hit, or a token
    matched_stop: object = None  # SGLang's name for it


class Chunk(Struct, gc=False):
    """One stream event, or a whole reply."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Tokens | None = None
    service_tier: str | None = None
    error: object = None


def may_be_same_model(name: str, other: str) -> bool:
    """Return whether two names may mean one model: servers add dates or vendors in the middle of a stream."""
    return name in other or other in name


def visible_text(detail: dict[str, object]) -> str:
    """Return the readable text of one entry of reasoning_details."""
    return "".join(value for key in VISIBLE_KEYS if isinstance(value := detail.get(key), str))
