"""Encode tools that ran on the server's side as output items, with the events of their lifecycle."""

from collections.abc import Callable

import msgspec

from dragoman.hub.events import HostedBlock
from dragoman.hub.server_tools import Page, SearchFound, ToolFailure, ToolOutcome
from dragoman.protocols.responses.wire import HOSTED_ITEMS, Item, text_at

HOSTED_STEPS = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "completed"),
    "mcp_call": ("in_progress", "completed"),
    "mcp_list_tools": ("in_progress", "completed"),
}


class HostedItem:
    """An item of a tool that ran on the server's side. One that the vendor ran is complete from the start."""

    __slots__ = ("index", "item")

    def __init__(self, index: int, item: Item) -> None:
        self.index = index
        self.item = item

    def final(self, status: str) -> Item:
        return self.item


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
    elif isinstance(outcome, Page):
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
