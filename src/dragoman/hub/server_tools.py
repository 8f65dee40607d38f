"""What the tools that the gateway runs itself return: search results, pages, or a failure."""

import base64
import binascii
from enum import Enum

import msgspec
from msgspec import Struct

from dragoman.hub.checksum import decode_checked, encode_checked
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
TOKEN_MARK = f"{ENVELOPE_PREFIX}source"
_FIRST_TAG = f"{TOKEN_MARK}."
_CHECKED_TAG = f"{TOKEN_MARK}2."  # with a checksum; clients still hold tokens without one


class SourceText(Struct, frozen=True):
    """What a client keeps for us of one source: Messages hands it back unread in `encrypted_content`."""

    text: str = msgspec.field(default="", name="t")
    published: str | None = msgspec.field(default=None, name="d")


def seal_source(text: str, published: str | None = None) -> str:
    """Write a source's text as a token. It is readable by anyone: a search result is no secret."""
    return _CHECKED_TAG + encode_checked(msgspec.json.encode(SourceText(text, published)))


def is_own_source(token: object) -> bool:
    """Return whether a value is such a token, damaged or not."""
    return isinstance(token, str) and token.startswith((_CHECKED_TAG, _FIRST_TAG))


def unseal_source(token: str) -> SourceText | None:
    """Read a token of ours; None if it is damaged, or another vendor's."""
    if token.startswith(_CHECKED_TAG):
        checked = decode_checked(token.removeprefix(_CHECKED_TAG))
        return None if checked is None else msgspec.json.decode(checked, type=SourceText)
    if not token.startswith(_FIRST_TAG):
        return None
    packed = token.removeprefix(_FIRST_TAG)
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), type=SourceText)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
