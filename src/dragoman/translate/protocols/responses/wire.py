"""Names, tables and shapes of the Responses API as they stand on the wire."""

from msgspec import Raw, Struct

from dragoman.translate.hub.request import Json

NAME = "responses"
OPENAI_PROTOCOLS = frozenset({NAME, "chat"})  # of one vendor, with the same efforts, tiers and file ids
VENDOR = "openai"  # the issuer of `encrypted_content` that clients send without our envelope
ABSENT = Raw()
Count = int | float | None  # servers written in languages without integers send 12.0


class ResponsesOptions(Struct, frozen=True):
    """What a provider's model list says about one model, where it says more than the model's profile."""

    efforts: tuple[str, ...] | None = None  # None: those of the profile
    summaries: bool = True  # whether a summary of the reasoning may be requested


# Fields that the reply can do without: one of a wrong type is ignored.
INESSENTIAL_FIELDS = frozenset(("id", "model", "usage", "service_tier", "incomplete_details", "tool_usage"))

# Types of items of vendor-run tools -> the hub's kind, the same as in other protocols where they have one.
HOSTED_ITEMS = {
    "web_search_call": "web_search",
    "code_interpreter_call": "code_execution",
    "mcp_call": "mcp",
    "file_search_call": "file_search",
    "image_generation_call": "image_generation",
    "mcp_list_tools": "mcp_list_tools",
    "mcp_approval_request": "mcp_approval_request",
    "computer_call": "computer",
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
    "tool_search_call": "tool_search",
    "tool_search_output": "tool_search_output",
    "program": "program",
    "program_output": "program_output",
}

# Types of hosted tools -> the hub's kind; any other type is its own kind.
HOSTED_TOOLS = {
    "web_search": "web_search",
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search",
    "code_interpreter": "code_execution",
}
OTHER_TOOLS = frozenset(
    {
        *("mcp", "tool_search", "file_search", "image_generation", "computer", "computer_use_preview"),
        *("shell", "local_shell", "apply_patch", "programmatic_tool_calling"),
    }
)
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
SEARCH_ITEM = "web_search_call"
SOURCES = f"{SEARCH_ITEM}.action.sources"
Wire = dict[str, Json]
CARRIED_KINDS = frozenset(HOSTED_TOOLS.values()) | {"mcp"}  # hosted tools that other protocols have too
Item = dict[str, Json]


class StreamEvent(Struct, frozen=True, gc=False):
    """Any stream event: the fields that some type needs; large values stay undecoded."""

    type: str = ""
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    delta: str = ""
    logprobs: Raw = ABSENT
    text: str | None = None
    refusal: str | None = None
    input: str | None = None
    arguments: Raw = ABSENT
    item: Raw = ABSENT
    part: Raw = ABSENT
    annotation: Raw = ABSENT
    response: Raw = ABSENT


class ErrorEvent(Struct, frozen=True):
    """An `error` event, or an error without a type."""

    error: Raw = ABSENT


class TypeOnly(Struct, frozen=True, gc=False):
    type: str = ""


class Annotation(Struct, frozen=True):
    type: str = ""
    url: str | None = None
    title: str | None = None
    filename: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class Part(Struct, frozen=True):
    """A content part of a message, a summary part, or a reasoning text."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None
    logprobs: Raw = ABSENT


class MessageItem(Struct, frozen=True):
    content: list[Part] | None = None


class ReasoningItem(Struct, frozen=True):
    summary: list[Part] | None = None
    content: list[Part] | None = None
    encrypted_content: str | None = None


class CallItem(Struct, frozen=True):
    """A function_call or a custom_tool_call."""

    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Raw = ABSENT
    input: str | None = None


class InputDetails(Struct, frozen=True):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: Count = None


class Counts(Struct, frozen=True):
    """`usage` of a response."""

    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class WebSearches(Struct, frozen=True):
    num_requests: Count = None


class ToolUsage(Struct, frozen=True):
    web_search: WebSearches | None = None


class IncompleteDetails(Struct, frozen=True):
    reason: str | None = None


class Response(Struct, frozen=True):
    """A whole reply, or the snapshot of one inside a lifecycle event."""

    object: str | None = None
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: Counts | None = None
    tool_usage: ToolUsage | None = None
    service_tier: str | None = None
    error: Raw = ABSENT
    incomplete_details: IncompleteDetails | None = None


class Error(Struct, frozen=True):
    """An error, nested as servers send it or flat as the specification has it."""

    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    status: int | None = None
    status_code: int | None = None
    resets_at: float | None = None
    resets_in_seconds: float | None = None


def text_at(item: Item, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""
