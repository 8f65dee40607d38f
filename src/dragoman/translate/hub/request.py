"""Requests: the fields that two or more protocols share. Fields of only one protocol are kept in `ext`.

Every value that can be lost on its own has `at`, its JSON pointer in the client's body, so that the ledger can name it
as the client wrote it.

Echo's requests are these records as JSON, and captures have them: a field that is renamed makes replays differ.
"""

from enum import Enum
from typing import final

from msgspec import Struct, field

from dragoman.translate.hub.opaque import Opaque
from dragoman.translate.hub.server_tools import ServerToolUse, SourceText

Json = object
Ext = dict[str, Json]  # unread fields by relative JSON pointer without its leading slash


class Role(Enum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"

    __hash__ = object.__hash__  # Enum's own is a Python function


ROLE_NAMES = {role: role.value for role in Role}  # on Python 3.11, to read `value` takes two calls


class Cache(Struct, frozen=True):
    """A cache breakpoint: everything up to here should be cached."""

    at: str
    ttl: str | None = None  # as the client wrote it: 5m, 30m, 1h, 12h


class Inline(Struct, frozen=True, tag="inline"):
    media_type: str
    data: str  # base64


class Link(Struct, frozen=True, tag="link"):
    url: str


class FileId(Struct, frozen=True, tag="file"):
    id: str


Media = Inline | Link | FileId


class CitedDocument(Struct, frozen=True):
    """Where in a document of the conversation a cited text stands."""

    number: int  # among all documents, from 0
    is_pdf: bool = False  # then it is not known where
    start: int = 0  # characters
    end: int = 0


class Citation(Struct, frozen=True):
    url: str | None = None
    title: str | None = None
    quoted: str | None = None  # the cited text
    start: int | None = None  # characters within the block's text
    end: int | None = None
    raw: Json = None  # the vendor's record, for its own protocol
    document: CitedDocument | None = None  # the page is a document that the model has read


class Text(Struct, frozen=True, tag="text"):
    text: str
    at: str = ""
    citations: tuple[Citation, ...] = ()
    cache: Cache | None = None
    ext: Ext = field(default_factory=dict)


class Refusal(Struct, frozen=True, tag="refusal"):
    text: str
    at: str = ""
    ext: Ext = field(default_factory=dict)


class Image(Struct, frozen=True, tag="image"):
    source: Media
    at: str = ""
    detail: str | None = None
    detail_at: str = ""
    cache: Cache | None = None
    ext: Ext = field(default_factory=dict)


class Document(Struct, frozen=True, tag="document"):
    source: Media | str  # a str is the document's plain text
    at: str = ""
    title: str | None = None  # a file's name
    cache: Cache | None = None
    ext: Ext = field(default_factory=dict)
    raw: Json = None  # what only looks like a document to others, as its own protocol wrote it


@final
class Audio(Struct, frozen=True, tag="audio"):
    source: Inline
    at: str = ""
    ext: Ext = field(default_factory=dict)


class Thinking(Struct, frozen=True, tag="thinking"):
    """Reasoning of an earlier turn; without text it is opaque only (redacted, or display omitted)."""

    text: str
    at: str = ""
    opaque: Opaque | None = None
    raw: bool = False  # the model's raw thoughts rather than a summary of them (Responses distinguishes them)
    ext: Ext = field(default_factory=dict)


class ToolCall(Struct, frozen=True, tag="call"):
    id: str
    name: str
    arguments: str  # JSON text of an object; for a custom tool, the raw input
    at: str = ""
    custom: bool = False
    namespace: str | None = None
    cache: Cache | None = None
    ext: Ext = field(default_factory=dict)


class ToolResult(Struct, frozen=True, tag="result"):
    call_id: str
    content: tuple["Text | Image | Document | Foreign", ...]
    at: str = ""
    is_error: bool = False
    custom: bool = False
    cache: Cache | None = None
    ext: Ext = field(default_factory=dict)
    error_at: str = ""  # what says that it is an error, where that is not a field `is_error`

    @property
    def error_pointer(self) -> str:
        return self.error_at or f"{self.at}/is_error"


@final
class Foreign(Struct, frozen=True, tag="foreign"):
    """A part that only its own protocol understands; kept whole for that protocol, dropped for any other."""

    what: str  # its type, for the ledger
    raw: Json
    at: str = ""
    is_upstreams: bool = False  # of a reply that the same upstream has just given, and gets back
    # What the gateway has added to it, which no vendor may see: all of a tool's use, or of what it returned.
    use: ServerToolUse | None = None
    returned: SourceText | None = None


Part = Text | Refusal | Image | Document | Audio | Thinking | ToolCall | ToolResult | Foreign


class Turn(Struct, frozen=True):
    """One message of a conversation. Tool results are part of user turns, as in Messages."""

    role: Role
    parts: tuple[Part, ...]
    at: str = ""
    ext: Ext = field(default_factory=dict)


class Grammar(Struct, frozen=True):
    syntax: str  # lark | regex
    definition: str


class Function(Struct, frozen=True, tag="function"):
    name: str
    at: str = ""
    description: str | None = None
    parameters: Json = None  # a JSON Schema object; None where the client gave none
    strict: bool | None = None
    namespace: str | None = None
    deferred: bool = False  # defer_loading: offered only after a tool search
    cache: Cache | None = None
    ext: Ext = field(default_factory=dict)
    fields_at: str = ""  # the object that holds its fields, where that is not the tool itself
    schema_key: str = "parameters"  # what the client's protocol calls the schema
    strict_at: str = ""  # where strictness is requested, if not in the tool

    def pointer(self, field: str) -> str:
        """Return where the client wrote one of the tool's fields."""
        if field == "strict" and self.strict_at:
            return self.strict_at
        return f"{self.fields_at or self.at}/{self.schema_key if field == 'parameters' else field}"


class Custom(Struct, frozen=True, tag="custom"):
    """A freeform tool: its input is text, perhaps bound by a grammar."""

    name: str
    at: str = ""
    description: str | None = None
    grammar: Grammar | None = None
    namespace: str | None = None
    ext: Ext = field(default_factory=dict)
    fields_at: str = ""  # the object that holds its fields, where that is not the tool itself


class ToolFilter(Struct, frozen=True):
    """A choice among tools by name."""

    only: frozenset[str] | None = None  # None: all
    besides: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        return (self.only is None or name in self.only) and name not in self.besides


class UrlSources(Struct, frozen=True):
    """What may name an address that the model fetches."""

    user_input: bool = True
    client_tools: ToolFilter = ToolFilter()  # their results
    server_tools: ToolFilter = ToolFilter()


class Hosted(Struct, frozen=True, tag="hosted"):
    """A tool that the vendor runs: web_search, code_execution, mcp, tool_search, or the vendor's own type name."""

    kind: str
    raw: Json  # as the client wrote it
    at: str = ""
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    max_uses: int | None = None
    location: Json = None  # {"type": "approximate", city, country, region, timezone}: the same in both vendors
    context_size: str | None = None  # how much of the search results the model reads: low, medium, high
    max_content_tokens: int | None = None  # of a fetched page, roughly
    cites_pages: bool = True  # whether the client wants citations of fetched pages
    url_sources: UrlSources = UrlSources()  # of web fetch
    filters_results: bool = False  # the model may filter results by code before it reads them
    server_url: str | None = None  # mcp
    server_name: str | None = None
    authorization: str | None = None
    allowed_tools: tuple[str, ...] | None = None  # the server's tools that may be called; None: all of them
    ext: Ext = field(default_factory=dict)  # fields without a counterpart in this struct
    known: bool = True  # whether its vendor documents such a type
    blocked_at: str = ""  # where the blocked domains stand, where that is not a field `blocked_domains`

    @property
    def blocked_pointer(self) -> str:
        return self.blocked_at or f"{self.at}/blocked_domains"


Tool = Function | Custom | Hosted


class Pick(Enum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


class ToolChoice(Struct, frozen=True):
    pick: Pick
    at: str
    name: str | None = None  # with NAMED
    namespace: str | None = None
    custom: bool = False
    hosted: str | None = None  # with NAMED: a hosted tool's kind
    allowed: tuple[str, ...] | None = None  # only these may be called
    allowed_hosted: frozenset[str] = frozenset()  # those of `allowed` that are kinds of hosted tools


class Switch(Enum):
    """The client's setting of thinking itself, apart from its effort."""

    ADAPTIVE = "adaptive"
    ENABLED = "enabled"
    DISABLED = "disabled"
    BETWEEN_TOOLS = "between_tools"


class Reasoning(Struct, frozen=True):
    at: str  # of the effort, or of the whole setting where there is no effort
    effort: str | None = None  # none minimal low medium high xhigh max
    budget: int | None = None
    budget_at: str = ""
    switch: Switch | None = None
    switch_at: str = ""
    show: str | None = (
        None  # how much reasoning to show, in the client's spelling: auto concise detailed summarized omitted updates
    )
    show_at: str = ""
    is_default: bool = False  # of the configuration: the client asks for nothing


class Shape(Enum):
    TEXT = "text"
    JSON = "json"
    SCHEMA = "schema"


class Format(Struct, frozen=True):
    shape: Shape
    at: str
    name: str | None = None
    description: str | None = None
    schema: Json = None
    strict: bool | None = None


class Sampling(Struct, frozen=True):
    """How the model chooses its tokens, how many answers it gives, and where each ends."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Attribution(Struct, frozen=True):
    """The end user of a request, and how its vendor bills it."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Json] | None = None
    service_tier: str | None = None  # in OpenAI's spelling


class ReplyExtras(Struct, frozen=True):
    """What the reply has besides the answer."""

    encrypted_reasoning: bool = True  # whether the client wants it (in the `include` of Responses)
    kept: bool = False  # the gateway keeps the reply, so it needs opaque reasoning even if the client does not
    search_sources: bool = False  # whether the client wants every address that a search found
    include_usage: bool = True  # whether the client wants usage in its stream


class VendorTerms(Struct, frozen=True):
    """What only one vendor understands."""

    not_a_reply: tuple[str, str] | None = None  # (field, what): the client requests this, which only its own can make
    continuation: str | None = None  # the token that its upstream gave with the reply so far
    drops_unbound: bool = False  # the upstream is to leave out reasoning that belongs to another conversation


NO_SAMPLING, NO_ATTRIBUTION = Sampling(), Attribution()
_EXTRAS, _VENDOR = ReplyExtras(), VendorTerms()


class Request(Struct, frozen=True):
    """What a client requests. Parsers pass the first six fields by position: from 16 keywords on a call is slow."""

    protocol: str  # the client's
    model: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel: bool | None = None
    max_tool_calls: int | None = None
    max_tokens: int | None = None
    sampling: Sampling = NO_SAMPLING
    reasoning: Reasoning | None = None
    format: Format | None = None
    verbosity: str | None = None
    cache: Cache | None = None  # a breakpoint after the last part that can have one
    cache_key: str | None = None
    attribution: Attribution = NO_ATTRIBUTION
    extras: ReplyExtras = _EXTRAS
    vendor: VendorTerms = _VENDOR
    stream: bool = False
    where: dict[str, str] = field(default_factory=dict)  # field, of a record of these too -> its pointer in the body
    ext: Ext = field(default_factory=dict)
    raw: dict[str, Json] = field(
        default_factory=dict
    )  # the client's body, for protocols whose replies repeat parts of it

    def pointer(self, name: str) -> str:
        """Return the JSON pointer of a field in the client's body; the fields of its records have unique names."""
        return self.where.get(name, "/" + name)


def escape_key(key: str) -> str:
    """Return a key as it is written in a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def unescape_key(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def split_pointer(pointer: str) -> list[str]:
    """Return the keys of a JSON pointer; none for the root, nor for text that does not begin with a slash."""
    return [unescape_key(token) for token in pointer.split("/")[1:]]
