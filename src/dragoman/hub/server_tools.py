"""What the tools that the gateway runs itself return: search results, pages, or a failure."""

import base64
import binascii
from enum import Enum

import msgspec
from msgspec import Struct

from dragoman.hub.opaque import ENVELOPE_PREFIX

SEARCH = "web_search"  # the kinds of server tools that the gateway can run
FETCH = "web_fetch"


class ToolErrorCode(Enum):
    """Why a server tool failed, in the codes of Messages, which has the most of them."""

    INVALID_INPUT = "invalid_tool_input"
    UNAVAILABLE = "unavailable"
    MAX_USES_EXCEEDED = "max_uses_exceeded"
    TOO_MANY_REQUESTS = "too_many_requests"
    QUERY_TOO_LONG = "query_too_long"
    REQUEST_TOO_LARGE = "request_too_large"
    URL_TOO_LONG = "url_too_long"
    URL_NOT_ALLOWED = "url_not_allowed"
    URL_NOT_IN_PRIOR_CONTEXT = "url_not_in_prior_context"
    URL_NOT_ACCESSIBLE = "url_not_accessible"
    UNSUPPORTED_CONTENT_TYPE = "unsupported_content_type"
    CONTENT_TOO_LARGE = "content_too_large"


class ToolFailure(Struct, frozen=True, tag="failure"):
    """A call that failed. It is a result for the model and the client, never an error of the request."""

    code: ToolErrorCode
    message: str


class SearchResult(Struct, frozen=True):
    url: str
    title: str
    text: str = ""
    published: str | None = None  # an ISO 8601 date, where the search service gives one


class SearchFound(Struct, frozen=True, tag="found"):
    """The results of one search, best first."""

    results: tuple[SearchResult, ...]
    text: str | None = None  # what the model reads, where the service returns prose; None: the results


class Page(Struct, frozen=True, tag="page"):
    """A fetched page: its readable text, or a PDF that only a model can read."""

    url: str  # after redirects
    title: str
    text: str = ""
    pdf: str | None = None  # base64
    truncated: bool = False  # the text was longer than the limit
    retrieved_at: str = ""  # ISO 8601
    is_citable: bool = True  # whether the client wants citations of it


class ToolText(Struct, frozen=True):
    """How a service describes its tool to a model."""

    description: str
    argument: str = ""  # what its only argument is


SearchOutcome = SearchFound | ToolFailure
FetchOutcome = Page | ToolFailure
ToolOutcome = SearchFound | Page | ToolFailure


class ServerToolUse(Struct, frozen=True):
    """A web search or fetch of an earlier turn, with what it returned."""

    id: str
    kind: str  # web_search | web_fetch
    input: dict[str, object]
    outcome: ToolOutcome | None  # None: it has not run yet
    is_ours: bool = False  # the gateway ran it, so the text of its sources can be read


# It begins as the envelope of reasoning does, so that one look at a body finds both. No envelope has a second dot.
TOKEN_TAG = f"{ENVELOPE_PREFIX}source."


class SourceText(Struct, frozen=True):
    """What a client keeps for us of one source: Messages hands it back unread in `encrypted_content`."""

    text: str = msgspec.field(default="", name="t")
    published: str | None = msgspec.field(default=None, name="d")


def seal_source(text: str, published: str | None = None) -> str:
    """Write a source's text as a token. It is readable by anyone: a search result is no secret."""
    packed = msgspec.json.encode(SourceText(text, published))
    return TOKEN_TAG + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def unseal_source(token: str) -> SourceText | None:
    """Read a token of ours; None if it is another vendor's."""
    if not token.startswith(TOKEN_TAG):
        return None
    packed = token.removeprefix(TOKEN_TAG)
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), type=SourceText)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
