"""The events of a reply while it is being generated.

`Started (Opened (Delta | OpaqueAdded | CitationAdded | ToolReturned)* Closed)* UsageReported* (Ended | Failed)`
Blocks may interleave.
"""

from enum import Enum
from typing import final

from msgspec import Raw, Struct

from dragoman.hub.failure import Failure
from dragoman.hub.opaque import Opaque
from dragoman.hub.request import Citation, Json
from dragoman.hub.server_tools import ToolOutcome
from dragoman.hub.usage import Usage


class Stop(Enum):
    END = "end"
    STOP_SEQUENCE = "stop_sequence"
    LENGTH = "length"
    CONTEXT_FULL = "context_full"
    TOOL = "tool"
    FILTERED = "filtered"  # refused or cut by a content policy
    PAUSE = "pause"  # the vendor expects another request to continue the reply


class TextBlock(Struct, frozen=True, tag="text"):
    pass


class RefusalBlock(Struct, frozen=True, tag="refusal"):
    pass


class ThinkingBlock(Struct, frozen=True, tag="thinking"):
    raw: bool = False


class CallBlock(Struct, frozen=True, tag="call"):
    id: str
    name: str
    custom: bool = False
    namespace: str | None = None


class HostedBlock(Struct, frozen=True, tag="hosted"):
    """A tool that ran on the server's side.

    One that the vendor ran is complete when it opens. For one that the gateway runs, `ToolReturned` follows.
    """

    id: str
    kind: str  # web_search, code_execution, mcp, or the vendor's own name
    input: dict[str, Json] = {}  # search: query; execution: code; MCP call: server, name, arguments
    results: tuple[Citation, ...] | None = None
    raw: Json = None
    output: str | None = None  # what it printed or returned
    failed: bool = False
    outcome: ToolOutcome | None = None  # of a tool that the gateway ran; folded in from `ToolReturned`
    is_ours: bool = False  # the gateway runs it


Block = TextBlock | RefusalBlock | ThinkingBlock | CallBlock | HostedBlock


@final
class Started(Struct, frozen=True, tag="started"):
    id: str  # the upstream's id of the reply; "" when it gave none
    model: str
    usage: Usage | None = None  # of the input, where the upstream reports it at the start


class Opened(Struct, frozen=True, tag="opened"):
    block: int
    what: Block
    answer: int = 0  # which of several answers to one request it belongs to


class Delta(Struct, frozen=True, gc=False, tag="delta"):
    """More text of a block: an answer, reasoning, a refusal, or the arguments of a tool call."""

    block: int
    text: str
    logprobs: Raw | None = None  # a JSON array of {token, logprob, bytes, top_logprobs}


class OpaqueAdded(Struct, frozen=True, tag="sealed"):
    """The complete opaque value of a thinking block; at most one per block."""

    block: int
    opaque: Opaque


class CitationAdded(Struct, frozen=True, tag="cited"):
    block: int
    citation: Citation


class ToolReturned(Struct, frozen=True, tag="returned"):
    """What a tool that the gateway runs has returned; at most once per block."""

    block: int
    outcome: ToolOutcome


class Closed(Struct, frozen=True, tag="closed"):
    block: int


@final
class UsageReported(Struct, frozen=True, tag="used"):
    """Usage so far. The last report counts; reports are never summed."""

    usage: Usage


class TruncatedCall(Struct, frozen=True):
    """A tool call whose arguments are incomplete. It must never be executed."""

    id: str
    name: str
    arguments: str  # as far as they were received


@final
class Ended(Struct, frozen=True, tag="ended"):
    stop: Stop
    sequence: str | None = None  # the stop sequence that was hit
    category: str | None = None  # of a refusal
    explanation: str | None = None
    continuation: str | None = None  # with PAUSE: the token that continues the same request
    cut: tuple[TruncatedCall, ...] = ()  # with LENGTH: calls that are not passed on because they are incomplete
    others: tuple["Ended", ...] = ()  # how further answers ended, from the second on


@final
class Failed(Struct, frozen=True, tag="failed"):
    failure: Failure


Event = Started | Opened | Delta | OpaqueAdded | CitationAdded | ToolReturned | Closed | UsageReported | Ended | Failed
