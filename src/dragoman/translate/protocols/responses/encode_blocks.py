"""Encode hub blocks as output items, with the names and the frames of their events."""

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.hub.events import Block, CallBlock, HostedBlock, RefusalBlock, TextBlock, ThinkingBlock
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from dragoman.translate.hub.request import Citation, Json
from dragoman.translate.hub.server_tools import SearchFound, ToolFailure, ToolOutcome, WebPage
from dragoman.translate.protocols.responses.wire import HOSTED_ITEMS, VENDOR, Item, text_at

_OWN_ANNOTATIONS = frozenset(("url_citation", "file_citation", "container_file_citation", "file_path"))

HOSTED_STEPS = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "completed"),
    "mcp_call": ("in_progress", "completed"),
    "mcp_list_tools": ("in_progress", "completed"),
}


class ItemEvents(Struct, frozen=True):
    """The events of one kind of item."""

    prefix: str  # of the item's id
    delta: str
    done: str
    field: str  # of the done event, which holds the whole text
    part: str = ""  # the events that open and close the part, without .added and .done
    index: str = ""  # the field that numbers the part


TEXT = ItemEvents(
    "msg_", "response.output_text.delta", "response.output_text.done", "text", "response.content_part", "content_index"
)
REFUSAL = ItemEvents(
    "msg_", "response.refusal.delta", "response.refusal.done", "refusal", "response.content_part", "content_index"
)
SUMMARY = ItemEvents(
    "rs_",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "text",
    "response.reasoning_summary_part",
    "summary_index",
)
THOUGHT = ItemEvents(
    "rs_",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "text",
    "response.content_part",
    "content_index",
)
FUNCTION = ItemEvents(
    "fc_", "response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments"
)
CUSTOM = ItemEvents("ctc_", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", "input")


def _choose_events(what: Block) -> ItemEvents:
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
            raise ValueError("a hosted block has no deltas")


class OpenItem:
    """An output item, from the opening of its block to its end."""

    __slots__ = (
        "_length",
        "_measured",
        "annotations",
        "citations",
        "events",
        "head",
        "id",
        "index",
        "logprobs",
        "opaque",
        "tail",
        "text",
        "what",
    )

    def __init__(self, what: Block, index: int, mint: Callable[[str], str]) -> None:
        if type(what) is CallBlock and not what.id:
            what = replace(what, id=mint("call_"))  # a client cannot answer a call without an id
        self.what = what
        self.events = _choose_events(what)
        self.index = index
        self.id = mint(self.events.prefix)
        self.text: list[str] = []
        self._length = 0  # of the first `_measured` pieces of text
        self._measured = 0
        self.annotations: list[Json] = []
        self.citations: list[Citation] = []  # of the whole text, whose length is known at its end
        self.logprobs: list[Raw] = []
        self.opaque: Opaque | None = None
        self.head: bytes | None = None  # the bytes before a delta's text; None until the part is opened
        self.tail = b',"logprobs":[],"sequence_number":' if self.events is TEXT else b',"sequence_number":'

    def length(self) -> int:
        """Return the number of characters; each piece is measured once."""
        self._length += sum(map(len, self.text[self._measured :]))
        self._measured = len(self.text)
        return self._length

    @property
    def position(self) -> Item:
        """Return the fields that locate the item in its events."""
        place: Item = {"item_id": self.id, "output_index": self.index}
        if self.events.index:
            place[self.events.index] = 0
        return place

    def open_part(self) -> None:
        """Prepare the constant bytes of the item's deltas."""
        fields = msgspec.json.encode({"type": self.events.delta, **self.position})
        self.head = b"event: %b\ndata: %b,%b" % (self.events.delta.encode(), fields[:-1], b'"delta":')

    def part(self, text: str) -> Item:
        if self.events is TEXT:
            return {"type": "output_text", "text": text, "annotations": self.annotations, "logprobs": self.logprobs}
        if self.events is REFUSAL:
            return {"type": "refusal", "refusal": text}
        return {"type": "summary_text" if self.events is SUMMARY else "reasoning_text", "text": text}

    def item(self, status: str, text: str, parts: list[Json]) -> Item:
        what = self.what
        if type(what) is ThinkingBlock:  # compared: a struct's class pattern that does not fit is slow
            item: Item = {"id": self.id, "type": "reasoning", "summary": [] if what.raw else parts}
            if what.raw:
                item["content"] = parts
            if self.opaque is not None:
                # The value for `encrypted_content`: OpenAI's own as it is, others in an envelope with the signed text.
                is_own = self.opaque.issuer == VENDOR and self.opaque.form is OpaqueForm.ENCRYPTED
                item["encrypted_content"] = self.opaque.payload if is_own else encode_envelope(self.opaque, text)
            return item
        if type(what) is CallBlock:
            item = {
                "id": self.id,
                "type": "custom_tool_call" if what.custom else "function_call",
                "status": status,
                "call_id": what.id,
                "name": what.name,
                self.events.field: text,
            }
            if what.namespace is not None:
                item["namespace"] = what.namespace
            return item
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts}

    def encode_initial(self) -> Item:
        """Return the item as it is announced, without content."""
        return self.item("in_progress", "", [])

    def encode_final(self, status: str) -> Item:
        """Return the item as it ended; a reasoning item without text has an empty summary."""
        text = "".join(self.text)
        parts: list[Json] = [self.part(text)] if self.events.part and self.head is not None else []
        return self.item(status, text, parts)


def encode_annotation(citation: Citation, length: int) -> Item | None:
    """Return the annotation for a citation; None if it has no address."""
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


class HostedItem(Struct, eq=False):
    """An item of a tool that ran on the server's side. One that the vendor ran is complete from the start."""

    index: int
    item: Item
    block: HostedBlock
    sealed: str | None = None  # what a tool of the gateway has returned, for later turns

    def encode_final(self, status: str) -> Item:
        return self.item if self.sealed is None else {**self.item, "encrypted_content": self.sealed}


def begin_server_item(block: HostedBlock, mint: Callable[[str], str]) -> Item:
    """Return the item of a tool that the gateway runs, before it has run."""
    action: Item = {"type": "open_page", "url": text_at(block.input, "url")}
    if block.kind == "web_search":
        action = _encode_search(text_at(block.input, "query"))
    return {"id": mint("ws_"), "type": "web_search_call", "status": "in_progress", "action": action}


def end_server_item(item: Item, outcome: ToolOutcome, *, sources: bool) -> Item:
    """Return the item after the tool has run; `sources`: the client wants the addresses of the results."""
    if isinstance(outcome, ToolFailure):
        return {**item, "status": "failed"}
    action = item["action"]
    if sources and isinstance(outcome, SearchFound) and isinstance(action, dict):
        action = {**action, "sources": [{"type": "url", "url": found.url} for found in outcome.results]}
    elif isinstance(outcome, WebPage):
        action = {"type": "open_page", "url": outcome.url}
    return {**item, "status": "completed", "action": action}


def restore_item(block: HostedBlock) -> Item | None:
    """Return the item as a Responses upstream sent it; None if the block comes from another protocol."""
    raw = block.raw
    return raw if isinstance(raw, dict) and text_at(raw, "type") in HOSTED_ITEMS else None


def encode_hosted_item(block: HostedBlock, mint: Callable[[str], str], *, sources: bool) -> Item | None:
    """Return the nearest item for another vendor's tool; None if Responses has none."""
    match block.kind:
        case "web_search" | "web_fetch":
            status = "failed" if block.failed else "completed"
            action = _encode_action(block, sources and not block.failed)
            return {"id": mint("ws_"), "type": "web_search_call", "status": status, "action": action}
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
        case "image_generation":
            return {"id": mint("ig_"), "type": "image_generation_call", "status": "completed", "result": block.output}
    return None


def _encode_action(block: HostedBlock, sources: bool) -> Item:
    urls = [found.url for found in block.results or () if found.url]
    if block.kind == "web_fetch":
        return {"type": "open_page", "url": urls[0] if urls else text_at(block.input, "url")}
    action = _encode_search(text_at(block.input, "query"))
    if sources and block.results is not None:
        action["sources"] = [{"type": "url", "url": url} for url in urls]
    return action


def _encode_search(query: str) -> Item:
    return {"type": "search", "query": query, "queries": [query] if query else []}
