"""What the tools that the gateway runs itself return: search results, pages, or a failure."""

import base64
import binascii
from enum import Enum

import msgspec
from msgspec import Struct

from dragoman.translate.hub.checksum import decode_checked, encode_checked
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX

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
    shown: int | None = None  # how many of the results the model reads; None: all

    @property
    def read(self) -> tuple[SearchResult, ...]:
        """Return the results that the model reads."""
        return self.results[: self.shown]


class WebPage(Struct, frozen=True, tag="page"):
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
FetchOutcome = WebPage | ToolFailure
ToolOutcome = SearchFound | WebPage | ToolFailure


class CallPlace(Struct, frozen=True):
    """Where the model called a server tool, so that later turns have the call as its round had it."""

    id: str  # of the call, as the upstream gave it; empty: the client cannot keep it
    round: int = 0  # of the reply
    rest: int = 0  # size of the parts that follow it in the round: characters of text, and 1 for any other part


class ServerToolUse(Struct, frozen=True):
    """A web search or fetch of an earlier turn, with what it returned."""

    id: str
    kind: str  # web_search | web_fetch
    input: dict[str, object]
    outcome: ToolOutcome | None  # None: it has not run yet
    is_ours: bool = False  # the gateway ran it, so the text of its sources can be read
    place: CallPlace | None = None  # None: another vendor's, or of a version that did not write it
    is_whole: bool = True  # the outcome is all that the model read
    is_result: bool = False  # the call stands in an earlier turn

    @property
    def call_id(self) -> str:
        """Return the id of the call for its upstream."""
        return self.id if self.place is None else self.place.id or self.id


# It begins as the envelope of reasoning does, so that one look at a body finds both. No envelope has a second dot.
TOKEN_MARK = f"{ENVELOPE_PREFIX}source"
_FIRST_TAG = f"{TOKEN_MARK}."
_CHECKED_TAG = f"{TOKEN_MARK}2."  # with a checksum; clients still hold tokens without one


class SourceText(Struct, frozen=True, omit_defaults=True):
    """What a client keeps for us of one source: Messages hands it back unread in `encrypted_content`.

    Of a result without sources, it is what the model read of it that the client is not shown.
    """

    text: str = msgspec.field(default="", name="t")
    published: str | None = msgspec.field(default=None, name="d")
    prose: str | None = msgspec.field(default=None, name="p")  # that the model read of the whole search
    truncated: bool = msgspec.field(default=False, name="c")  # of a page: the text was longer


def seal_source(source: SourceText) -> str:
    """Write a source's text as a token. It is readable by anyone: a search result is no secret."""
    return _CHECKED_TAG + encode_checked(msgspec.json.encode(source))


def is_own_source(token: object) -> bool:
    """Return whether a value is such a token, damaged or not."""
    return isinstance(token, str) and token.startswith((_CHECKED_TAG, _FIRST_TAG))


def unseal_source(token: str) -> SourceText | None:
    """Read a token of ours; None if it is damaged, or another vendor's."""
    try:
        if token.startswith(_CHECKED_TAG):
            packed = decode_checked(token.removeprefix(_CHECKED_TAG))
        elif token.startswith(_FIRST_TAG):
            body = token.removeprefix(_FIRST_TAG)
            packed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        else:
            return None
        return None if packed is None else msgspec.json.decode(packed, type=SourceText)
    except (binascii.Error, ValueError):  # a client may write one itself
        return None


_RUN_TAG = f"{TOKEN_MARK}run."
MAX_RUNS_BYTES = 16_000_000  # of what the tools of one reply returned, as it is kept for later turns


class ToolUseRecord(Struct, frozen=True, array_like=True):
    """A use of a server tool as it is kept for later turns, where the client's own record of it holds too little."""

    kind: str
    input: dict[str, object]
    outcome: ToolOutcome
    place: CallPlace | None = None


def seal_use(record: ToolUseRecord) -> str:
    return _RUN_TAG + encode_checked(msgspec.msgpack.encode(record))


def is_sealed_use(token: object) -> bool:
    """Return whether a value is such a record, damaged or not."""
    return isinstance(token, str) and token.startswith(_RUN_TAG)


def read_sealed_use(token: str, id: str) -> ServerToolUse | None:
    """Return the use of such a record, under this id; None if it is damaged."""
    packed = decode_checked(token.removeprefix(_RUN_TAG))
    try:
        record = None if packed is None else msgspec.msgpack.decode(packed, type=ToolUseRecord)
    except (ValueError, RecursionError):  # a client may write one itself
        return None
    if record is None:
        return None
    return ServerToolUse(id, record.kind, record.input, record.outcome, is_ours=True, place=record.place)
