"""Names, tables and shapes of Anthropic Messages as they stand on the wire."""

import base64
import binascii
import re
from collections.abc import Mapping

from msgspec import Raw, Struct

from dragoman.translate.hub.events import Stop
from dragoman.translate.hub.request import Hosted
from dragoman.translate.hub.server_tools import CallPlace

NAME = "messages"
MCP_BETA = b"mcp-client-2025-11-20"
BINDING_BETA = b"thinking-binding-controls-2026-08-01"
ANTHROPIC_VERSION = (b"anthropic-version", b"2023-06-01")  # a required header
VENDOR = "anthropic"  # the issuer of signatures that clients send without our envelope
EFFORTS = ("low", "medium", "high", "xhigh", "max")
MIN_BUDGET = 1024
DEFAULT_MAX_TOKENS = 32_000
STOPS = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.STOP_SEQUENCE,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.CONTEXT_FULL,
    "tool_use": Stop.TOOL,
    "refusal": Stop.FILTERED,
    "pause_turn": Stop.PAUSE,
}
STOP_REASONS = {stop: reason for reason, stop in STOPS.items()}
REFUSAL_CATEGORIES = frozenset(("cyber", "bio", "frontier_llm", "reasoning_extraction", "general_harms"))

# The names of vendor-run tools in replies -> the hub's names.
HOSTED_KINDS = {
    "web_search": "web_search",
    "web_fetch": "web_fetch",
    "code_execution": "code_execution",
    "bash_code_execution": "code_execution",
    "text_editor_code_execution": "code_execution",
    "tool_search_tool_regex": "tool_search",
    "tool_search_tool_bm25": "tool_search",
    "tool_search_tool": "tool_search",
    "mcp_tool": "mcp",
    "mcp": "mcp",
}
HOSTED_USES = frozenset({"server_tool_use", "mcp_tool_use"})
HOSTED_RESULT = "_tool_result"  # the type of every result block ends with it
REPLY_TIERS = {"standard": "default", "priority": "priority", "batch": "batch"}  # to OpenAI's spelling
TIERS_IN_REPLIES = {ours: theirs for theirs, ours in REPLY_TIERS.items()}
NOTHING = Raw()
Count = int | float | None  # servers written in languages without integers send 12.0

# Fields that the reply can do without: one of a wrong type is ignored.
INESSENTIAL_FIELDS = frozenset(("id", "model", "usage", "stop_details", "stop_sequence"))
NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
_ENCODED = "toolu_dgm1-"
# Where cache marks may stand: on tools, on blocks of the system prompt, on blocks of these types in messages. A quirk,
# with a place behind it: the host refuses marks there.
MARKED_TYPES = ("text", "image", "document", "tool_use", "tool_result")
MARKED_PLACES = ("tools", "system", *MARKED_TYPES)
NO_MARK_ON = "no_mark_on_"
Wire = dict[str, object]
DIRECT_CALLER: Wire = {"type": "direct"}  # the default: the model itself has called, not code that it wrote


def is_present(raw: Raw) -> bool:
    """Return whether a field is present and not null."""
    return bytes(raw) not in (b"", b"null")


class CacheCreation(Struct):
    ephemeral_1h_input_tokens: Count = None


class ThinkingTokens(Struct):
    thinking_tokens: Count = None


class ServerTools(Struct):
    web_search_requests: Count = None


class Iteration(Struct):
    """One iteration of a reply that took several."""

    type: str = ""
    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None
    cache_creation: CacheCreation | None = None


class Counts(Struct):
    """`usage` of a reply, of message_start and of message_delta; absent fields keep their earlier value."""

    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None
    cache_creation: CacheCreation | None = None
    iterations: list[Iteration] | None = None
    output_tokens_details: ThinkingTokens | None = None
    server_tool_use: ServerTools | None = None
    service_tier: str | None = None


class StopDetails(Struct):
    category: str | None = None
    explanation: str | None = None


class Change(Struct, gc=False):
    """`delta` of content_block_delta and of message_delta."""

    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: Raw = NOTHING
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class Fault(Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None
    details: dict[str, object] | None = None


class Head(Struct):
    """`message` of message_start."""

    id: str = ""
    model: str = ""
    usage: Counts | None = None


class StreamEvent(Struct, gc=False):
    """Any event of the stream; one shape for all, so that each is parsed once."""

    type: str = ""
    index: int = 0
    delta: Change | None = None
    content_block: Raw = NOTHING
    message: Head | None = None
    usage: Counts | None = None
    error: Fault | str | None = None


class ContentBlock(Struct):
    type: str = ""
    text: str = ""
    citations: list[Raw] | None = None
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: Raw = NOTHING
    tool_use_id: str = ""
    content: Raw = NOTHING


class CitedSource(Struct):
    """The fields that the five kinds of citation share or that name a source."""

    type: str = ""
    url: str | None = None
    source: str | None = None
    title: str | None = None
    document_title: str | None = None
    cited_text: str | None = None


class SearchHit(Struct):
    url: str | None = None
    title: str | None = None


class FetchedDocument(Struct, frozen=True):
    title: str | None = None


class FetchedPage(Struct):
    url: str | None = None
    content: FetchedDocument = FetchedDocument()


class Message(Struct):
    """A whole reply, or an error body in its place."""

    type: str = ""
    id: str = ""
    model: str = ""
    content: list[Raw] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None
    usage: Counts | None = None
    error: Fault | str | None = None


def encode_call_id(id: str) -> str:
    """Return the id for clients: an id that is not in Anthropic's alphabet is encoded."""
    if not NOT_IN_IDS.search(id):
        return id
    return _ENCODED + base64.urlsafe_b64encode(id.encode()).decode().rstrip("=")


def decode_call_id(id: str) -> str:
    """Return the vendor's id from one that `encode_call_id` made."""
    if not id.startswith(_ENCODED):
        return id
    body = id[len(_ENCODED) :]
    try:
        given = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, ValueError):
        return id
    return given if encode_call_id(given) == id else id


_USE_ID = re.compile(r"srvtoolu_[0-9A-Za-z]+_(\d{1,9})_(\d{1,9})_([px])([0-9A-Za-z_]*)")
_NOT_IN_USE_IDS = re.compile(r"[^A-Za-z0-9_]")
MAX_CALL_ID = 256  # characters of an upstream's id of a call that a client can keep


def encode_use_id(place: CallPlace, new_id: str) -> str:
    """Return the id of a server tool's use: with it, a client keeps where in the model's reply the call stood."""
    form, id = ("x", place.id.encode().hex()) if _NOT_IN_USE_IDS.search(place.id) else ("p", place.id)
    return f"{new_id}_{place.round}_{place.rest}_{form}{id}"


def decode_use_id(id: str) -> CallPlace | None:
    """Return what such an id holds; None if another vendor wrote it, or an earlier version."""
    found = _USE_ID.fullmatch(id)
    if found is None:
        return None
    round, rest, form, call_id = found.groups()
    try:
        return CallPlace(call_id if form == "p" else bytes.fromhex(call_id).decode(), int(round), int(rest))
    except ValueError:
        return None


def text_at(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def hosted_name(tool: Hosted) -> str | None:
    """Return the name under which a vendor-run tool is called, if the client wrote one."""
    name = tool.raw.get("name") if isinstance(tool.raw, dict) else None
    return name if isinstance(name, str) else None
