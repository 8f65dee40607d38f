"""Encode hub blocks as output items, with the names and the frames of their events."""

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.hub.events import Block, CallBlock, HostedBlock, RefusalBlock, TextBlock, ThinkingBlock
from dragoman.hub.opaque import Form, Opaque, encode_envelope
from dragoman.hub.request import Citation, Json
from dragoman.protocols.responses.wire import HOSTED_ITEMS, VENDOR, Item, text_at

_OWN_ANNOTATIONS = frozenset(("url_citation", "file_citation", "container_file_citation", "file_path"))


def own_item(block: HostedBlock) -> Item | None:
    """The item that this protocol's own upstream sent; None if the block comes from another protocol."""
    raw = block.raw
    return raw if isinstance(raw, dict) and HOSTED_ITEMS.get(text_at(raw, "type")) == block.kind else None


def like_item(block: HostedBlock, mint: Callable[[str], str]) -> Item | None:
    """The nearest item for another vendor's activity; None if this protocol has nothing like it."""
    match block.kind:
        case "web_search":
            return {"id": mint("ws_"), "type": "web_search_call", "status": "completed", "action": _action(block)}
        case "code_execution":
            return {
                "id": mint("ci_"),
                "type": "code_interpreter_call",
                "status": "completed",
                "code": text_at(block.input, "code"),
                "container_id": "",
                "outputs": None if block.output is None else [{"type": "logs", "logs": block.output}],
            }
        case "mcp":
            return {
                "id": mint("mcp_"),
                "type": "mcp_call",
                "status": "completed",
                "server_label": text_at(block.input, "server"),
                "name": text_at(block.input, "name"),
                "arguments": msgspec.json.encode(block.input.get("arguments", {})).decode(),
                "error": block.output if block.failed else None,
                "output": None if block.failed else block.output,
            }
    return None


def _action(block: HostedBlock) -> Item:
    query = text_at(block.input, "query")
    action: Item = {"type": "search", "query": query, "queries": [query] if query else []}
    if block.results is not None:
        action["sources"] = [{"type": "url", "url": found.url} for found in block.results if found.url]
    return action


class Manner(Struct, frozen=True):
    """How one kind of block is told."""

    prefix: str  # of the item's id
    delta: str
    done: str
    field: str  # of the done event: where it repeats the whole
    part: str = ""  # the events that open and close the part the text stands in, without .added and .done
    index: str = ""  # what numbers that part


TEXT = Manner(
    "msg_", "response.output_text.delta", "response.output_text.done", "text", "response.content_part", "content_index"
)
REFUSAL = Manner(
    "msg_", "response.refusal.delta", "response.refusal.done", "refusal", "response.content_part", "content_index"
)
SUMMARY = Manner(
    "rs_",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "text",
    "response.reasoning_summary_part",
    "summary_index",
)
THOUGHT = Manner(
    "rs_",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "text",
    "response.content_part",
    "content_index",
)
FUNCTION = Manner("fc_", "response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments")
CUSTOM = Manner("ctc_", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", "input")


def manner_of(what: Block) -> Manner:
    match what:
        case TextBlock():
            return TEXT
        case RefusalBlock():
            return REFUSAL
        case ThinkingBlock(raw=raw):
            return THOUGHT if raw else SUMMARY
        case CallBlock(custom=custom):
            return CUSTOM if custom else FUNCTION
        case HostedBlock():
            raise ValueError("a hosted block is told whole")


class Writing:
    """One item, from the opening of its block to its end."""

    __slots__ = (
        "_length",
        "_measured",
        "annotations",
        "citations",
        "head",
        "id",
        "index",
        "logprobs",
        "manner",
        "opaque",
        "tail",
        "text",
        "what",
    )

    def __init__(self, what: Block, index: int, mint: Callable[[str], str]) -> None:
        if isinstance(what, CallBlock) and not what.id:
            what = replace(what, id=mint("call_"))  # a client cannot answer a call without an id
        self.what = what
        self.manner = manner_of(what)
        self.index = index
        self.id = mint(self.manner.prefix)
        self.text: list[str] = []
        self._length = 0  # of the first `_measured` pieces of text
        self._measured = 0
        self.annotations: list[Json] = []
        self.citations: list[Citation] = []  # whose bounds are those of the whole text, known at its end
        self.logprobs: list[Raw] = []
        self.opaque: Opaque | None = None
        self.head: bytes | None = None  # what stands before a delta's text; None until its part is opened
        self.tail = b',"logprobs":[],"sequence_number":' if self.manner is TEXT else b',"sequence_number":'

    def length(self) -> int:
        """Return how many characters of text there are, without looking at a piece twice."""
        self._length += sum(map(len, self.text[self._measured :]))
        self._measured = len(self.text)
        return self._length

    @property
    def place(self) -> Item:
        """Where the item's events belong."""
        place: Item = {"item_id": self.id, "output_index": self.index}
        if self.manner.index:
            place[self.manner.index] = 0
        return place

    def begin(self) -> None:
        """Makes the constant bytes of its deltas."""
        fields = msgspec.json.encode({"type": self.manner.delta, **self.place})
        self.head = b"event: %b\ndata: %b,%b" % (self.manner.delta.encode(), fields[:-1], b'"delta":')

    def part(self, text: str) -> Item:
        if self.manner is TEXT:
            return {"type": "output_text", "text": text, "annotations": self.annotations, "logprobs": self.logprobs}
        if self.manner is REFUSAL:
            return {"type": "refusal", "refusal": text}
        return {"type": "summary_text" if self.manner is SUMMARY else "reasoning_text", "text": text}

    def item(self, status: str, text: str, parts: list[Json]) -> Item:
        match self.what:
            case ThinkingBlock(raw=raw):
                item: Item = {"id": self.id, "type": "reasoning", "summary": [] if raw else parts}
                if raw:
                    item["content"] = parts
                if self.opaque is not None:
                    item["encrypted_content"] = _slot(self.opaque, text)
                return item
            case CallBlock(id=call_id, name=name, custom=custom, namespace=namespace):
                item = {
                    "id": self.id,
                    "type": "custom_tool_call" if custom else "function_call",
                    "status": status,
                    "call_id": call_id,
                    "name": name,
                    self.manner.field: text,
                }
                if namespace is not None:
                    item["namespace"] = namespace
                return item
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts}

    def begun(self) -> Item:
        """The item as it is announced: nothing in it yet."""
        return self.item("in_progress", "", [])

    def finished(self, status: str) -> Item:
        """The item as it ended; a reasoning item of which no text was shown has an empty summary."""
        text = "".join(self.text)
        parts: list[Json] = [self.part(text)] if self.manner.part and self.head is not None else []
        return self.item(status, text, parts)


def _slot(opaque: Opaque, text: str) -> str:
    """Its own vendor's value needs no envelope in its own slot; a signature travels with the text it vouches for."""
    own = opaque.issuer == VENDOR and opaque.form is Form.ENCRYPTED
    return opaque.payload if own else encode_envelope(opaque, text)


def annotation_of(citation: Citation, length: int) -> Item | None:
    """The annotation for a citation; None if it cites what this protocol cannot name."""
    raw = citation.raw
    if isinstance(raw, dict) and isinstance(type_ := raw.get("type"), str) and type_ in _OWN_ANNOTATIONS:
        return raw
    if citation.url is None:
        return None
    return {
        "type": "url_citation",
        "url": citation.url,
        "title": citation.title or "",
        "start_index": citation.start if citation.start is not None else 0,
        "end_index": citation.end if citation.end is not None else length,
    }


def is_own(annotation: Item, citation: Citation) -> bool:
    return annotation is citation.raw
