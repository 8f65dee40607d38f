"""What vendor-run tools did: output items come in and hosted blocks go out, and the other way round."""

from collections.abc import Callable, Iterator

import msgspec

from dragoman.hub.events import HostedBlock
from dragoman.hub.request import Citation, Json
from dragoman.protocols.responses.wire import HOSTED_ITEMS

Item = dict[str, Json]


def read_hosted(type_: str, item: Item) -> HostedBlock:
    """A finished hosted item, whole; `raw` serves a client of this same protocol."""
    id_ = item.get("id")
    read = _READERS.get(type_)
    input_, results = read(item) if read else ({}, None)
    output, failed = _outcome(type_, item)
    return HostedBlock(id_ if isinstance(id_, str) else "", HOSTED_ITEMS[type_], input_, results, item, output, failed)


def own_item(block: HostedBlock) -> Item | None:
    """The item that this protocol's own upstream sent; None if the block comes from another protocol."""
    raw = block.raw
    return raw if isinstance(raw, dict) and HOSTED_ITEMS.get(_text(raw, "type")) == block.kind else None


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
                "code": _text(block.input, "code"),
                "container_id": "",
                "outputs": None if block.output is None else [{"type": "logs", "logs": block.output}],
            }
        case "mcp":
            return {
                "id": mint("mcp_"),
                "type": "mcp_call",
                "status": "completed",
                "server_label": _text(block.input, "server"),
                "name": _text(block.input, "name"),
                "arguments": msgspec.json.encode(block.input.get("arguments", {})).decode(),
                "error": block.output if block.failed else None,
                "output": None if block.failed else block.output,
            }
    return None


def _action(block: HostedBlock) -> Item:
    query = _text(block.input, "query")
    action: Item = {"type": "search", "query": query, "queries": [query] if query else []}
    if block.results is not None:
        action["sources"] = [{"type": "url", "url": found.url} for found in block.results if found.url]
    return action


def _read_search(item: Item) -> tuple[Item, tuple[Citation, ...] | None]:
    action = item.get("action")
    if not isinstance(action, dict):
        return {}, None
    queries = action.get("queries")
    query = action.get("query") or (queries[0] if isinstance(queries, list) and queries else None)
    told = {"query": query, "url": action.get("url"), "pattern": action.get("pattern")}
    sources = action.get("sources")
    return {key: value for key, value in told.items() if isinstance(value, str)}, (
        tuple(_found(sources)) if isinstance(sources, list) else None
    )


def _found(sources: list[Json]) -> Iterator[Citation]:
    for source in sources:
        if isinstance(source, dict) and isinstance(url := source.get("url"), str):
            title = source.get("title")
            yield Citation(url=url, title=title if isinstance(title, str) else None)


def _read_code(item: Item) -> tuple[Item, None]:
    return {"code": _text(item, "code")}, None


def _read_mcp(item: Item) -> tuple[Item, None]:
    arguments = _text(item, "arguments")
    try:
        parsed: Json = msgspec.json.decode(arguments) if arguments else {}
    except (ValueError, RecursionError):
        parsed = arguments
    return {"server": _text(item, "server_label"), "name": _text(item, "name"), "arguments": parsed}, None


def _outcome(type_: str, item: Item) -> tuple[str | None, bool]:
    """What the tool printed or returned, and whether that is an error."""
    match type_:
        case "code_interpreter_call":
            outputs = item.get("outputs")
            told = outputs if isinstance(outputs, list) else []
            logs = [_text(output, "logs") for output in told if isinstance(output, dict)]
            return ("".join(logs) if logs else None), item.get("status") == "failed"
        case "mcp_call":
            failure = item.get("error")
            if failure is not None:
                return (failure if isinstance(failure, str) else msgspec.json.encode(failure).decode()), True
            output = item.get("output")
            return (output if isinstance(output, str) else None), False
    return None, False


def _text(item: Item, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


_READERS: dict[str, Callable[[Item], tuple[Item, tuple[Citation, ...] | None]]] = {
    "web_search_call": _read_search,
    "code_interpreter_call": _read_code,
    "mcp_call": _read_mcp,
}
