"""Shapes of Gemini's replies, the tables of names that stand on its wire, and JSON as its clients read it."""

from base64 import b64encode

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.hub.events import Stop
from dragoman.translate.hub.ports import KeyPlaces
from dragoman.translate.hub.usage import Usage

NAME = "gemini"
KEYS = KeyPlaces(headers=(b"x-goog-api-key",), parameters=("key",))
CLIENT_HEADERS = (b"x-goog-api-key", b"x-goog-api-client")  # Google's SDKs send at least one of them
OPERATION = "generate_content"
MAX_CANDIDATES = 8  # answers to one request
GENERATE, STREAM, COUNT = ":generateContent", ":streamGenerateContent", ":countTokens"
SSE_QUERY = "alt=sse"  # without it a stream is one JSON array
ARRAY_STREAM = b"application/json; charset=UTF-8"  # the content type of such a stream
GOOGLE = "google"  # the publisher of Google's own models in Vertex's paths

# Paths of clients, without /v1: Google's versions, and Vertex's places of models.
VERSIONS = ("", "/v1beta", "/v1alpha", "/v1beta1")
PLACES = (
    *(f"{version}{place}" for version in VERSIONS for place in ("/models", "/publishers", "/projects")),
    *(version for version in VERSIONS if version),  # the AI SDK leaves out /models where a model's name has a slash
)
LISTS = tuple(f"{version}{place}" for version in VERSIONS for place in ("/models", "/publishers/google/models"))
ENVELOPE_START = b'"ZGdtMS'  # the base64 of our envelope's first letters, at the beginning of a JSON string

Wire = dict[str, object]
Count = int | float | None
NOTHING = Raw(b"")

VERTEX = "vertex"  # a quirk: the endpoint is Vertex AI, which differs from the Gemini API in some fields
# Kinds of tools that Google runs -> their entries in `tools`.
HOSTED_TOOLS = {"web_search": "googleSearch", "web_fetch": "urlContext", "code_execution": "codeExecution"}
TIERS = {"default": "standard", "flex": "flex", "priority": "priority"}  # OpenAI's name -> Google's

# Sent where a call needs a signature and none is at hand; Google documents this value, and another one.
NO_SIGNATURE = "skip_thought_signature_validator"
_PLACEHOLDERS = (NO_SIGNATURE, "context_engineering_is_the_way_to_go")
# Google's SDK sends them in base64.
PLACEHOLDERS = frozenset((*_PLACEHOLDERS, *(b64encode(value.encode()).decode() for value in _PLACEHOLDERS)))
# Some models put their internal namespace before a function's name.
NAME_PREFIX = "default_api:"

# Fields that the reply can do without: one of a wrong type is ignored.
INESSENTIAL_FIELDS = frozenset(
    (
        "usageMetadata",
        "modelVersion",
        "responseId",
        "promptFeedback",
        "groundingMetadata",
        "finishMessage",
        "index",
        "continuationToken",
        "logprobsResult",
    )
)

STOPS: dict[str, Stop] = {
    "STOP": Stop.END,
    "MAX_TOKENS": Stop.LENGTH,
    "SAFETY": Stop.FILTERED,
    "RECITATION": Stop.FILTERED,
    "BLOCKLIST": Stop.FILTERED,
    "PROHIBITED_CONTENT": Stop.FILTERED,
    "SPII": Stop.FILTERED,
    "IMAGE_SAFETY": Stop.FILTERED,
    "IMAGE_PROHIBITED_CONTENT": Stop.FILTERED,
    "IMAGE_RECITATION": Stop.FILTERED,
    "MODEL_ARMOR": Stop.FILTERED,
}
# Values that report a failure of the model instead of an end.
FAILED_STOPS = frozenset(
    (
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
    )
)
CONTINUATION = "CONTINUATION"  # not an end: the same request with `continuationToken` gets the rest
UNSPECIFIED = frozenset(("", "FINISH_REASON_UNSPECIFIED"))


_ENDINGS = {Stop.LENGTH: "MAX_TOKENS", Stop.CONTEXT_FULL: "MAX_TOKENS", Stop.FILTERED: "SAFETY"}
FINISH_REASONS = {stop: _ENDINGS.get(stop, "STOP") for stop in Stop}

# Python's and older JS clients take these for line ends, though they stand inside of a JSON string.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def encode_json(value: object) -> bytes:
    """Return JSON for clients, which split it at more line ends than those of SSE."""
    data = msgspec.json.encode(value)
    return data if data.isascii() else escape_line_ends(data)


def escape_line_ends(json: bytes) -> bytes:
    for character, escape in _LINE_ENDS:
        json = json.replace(character, escape)
    return json


class FunctionCall(Struct, gc=False):
    name: str = ""
    id: str | None = None
    args: Raw = NOTHING


class ExecutableCode(Struct, gc=False):
    code: str = ""


class ExecutionResult(Struct, gc=False):
    outcome: str = ""
    output: str = ""


class InlineData(Struct, rename="camel", gc=False):
    """Media of a reply, in base64."""

    mime_type: str = ""
    data: str = ""


class ReplyPart(Struct, rename="camel", gc=False):
    """One part of a candidate. Whichever field is set says what it is."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    inline_data: Raw = NOTHING
    file_data: Raw = NOTHING
    executable_code: ExecutableCode | None = None
    code_execution_result: ExecutionResult | None = None
    tool_call: Raw = NOTHING
    tool_response: Raw = NOTHING


class ReplyContent(Struct, gc=False):
    parts: list[ReplyPart] | None = None


class Candidate(Struct, rename="camel", gc=False):
    index: int | None = None
    content: ReplyContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    continuation_token: str | None = None  # on any chunk: a reply could go on from there
    grounding_metadata: Raw = NOTHING
    logprobs_result: Raw = NOTHING


class PromptFeedback(Struct, rename="camel", gc=False):
    block_reason: str | None = None
    block_reason_message: str | None = None


class Tokens(Struct, rename="camel", gc=False):
    prompt_token_count: Count = None
    candidates_token_count: Count = None
    thoughts_token_count: Count = None
    tool_use_prompt_token_count: Count = None
    cached_content_token_count: Count = None
    total_token_count: Count = None

    def merge(self, later: "Tokens") -> "Tokens":
        """Return the counts of a later chunk; those that it does not have stay."""
        if later.thoughts_token_count is None:
            later.thoughts_token_count = self.thoughts_token_count
        if later.cached_content_token_count is None:
            later.cached_content_token_count = self.cached_content_token_count
        if later.tool_use_prompt_token_count is None:
            later.tool_use_prompt_token_count = self.tool_use_prompt_token_count
        if later.candidates_token_count is None:
            later.candidates_token_count = self.candidates_token_count
        if later.prompt_token_count is None:
            later.prompt_token_count = self.prompt_token_count
        if later.total_token_count is None:
            later.total_token_count = self.total_token_count
        return later

    @property
    def input(self) -> int:
        return int(self.prompt_token_count or 0) + int(self.tool_use_prompt_token_count or 0)

    def to_usage(self) -> Usage:
        given = self.input
        candidates = int(self.candidates_token_count or 0)
        thoughts = int(self.thoughts_token_count or 0)
        # Some models count thoughts among the candidates' tokens as well: only the total shows which.
        counted_twice = thoughts > 0 and given + candidates == self.total_token_count
        return Usage(
            input=given,
            output=candidates if counted_twice else candidates + thoughts,
            cache_read=int(self.cached_content_token_count or 0),
            reasoning=thoughts,
        )


class Chunk(Struct, rename="camel", gc=False):
    """One stream event, or a whole reply."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: Tokens | None = None
    model_version: str | None = None
    response_id: str | None = None
    continuation_token: str | None = None  # also here, according to some documents
    error: object = None
