"""Encode whole blocks of a reply as content blocks of a message."""

import msgspec

from dragoman.hub.events import (
    CallBlock,
    Ended,
    HostedBlock,
    RefusalBlock,
    Stop,
    TextBlock,
    ThinkingBlock,
)
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import encode_envelope
from dragoman.hub.ports import ReplyContext
from dragoman.hub.reply import Piece, Reply
from dragoman.hub.request import Citation
from dragoman.protocols.messages.wire import Wire, shown, text_at

_CUT = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)  # what may end a reply within a call


def hosted_blocks(hosted: HostedBlock, asked: ReplyContext, at: str, ledger: Ledger) -> list[Wire]:
    """Use and result; nothing where Messages has no such tool."""
    if isinstance(hosted.raw, list) and all(_is_block(item) for item in hosted.raw):
        return list(hosted.raw)
    match hosted.kind:
        case "web_search":
            ledger.note_approximated(at, "search results carry no encrypted content")
            return _search(hosted, _own_id(hosted, "srvtoolu_", asked))
        case "code_execution":
            ledger.note_approximated(at, "of an execution, code and output are told")
            return _execution(hosted, _own_id(hosted, "srvtoolu_", asked))
        case "mcp":
            ledger.note_approximated(at, "of an MCP call, arguments and text are told")
            return _remote(hosted, _own_id(hosted, "mcptoolu_", asked))
    ledger.note_dropped(at, f"what {hosted.kind!r} did has no equal in Messages")
    return []


def _own_id(hosted: HostedBlock, prefix: str, asked: ReplyContext) -> str:
    return hosted.id if hosted.id.startswith(prefix) else asked.new_id(prefix)


def _search(hosted: HostedBlock, id: str) -> list[Wire]:
    found = [
        {"type": "web_search_result", "url": hit.url or "", "title": hit.title or "", "encrypted_content": ""}
        for hit in hosted.results or ()
    ]
    use: Wire = {"type": "server_tool_use", "id": id, "name": "web_search", "input": hosted.input}
    return [use, {"type": "web_search_tool_result", "tool_use_id": id, "content": found}]


def _execution(hosted: HostedBlock, id: str) -> list[Wire]:
    code = {"code": text_at(hosted.input, "code")}
    printed = hosted.output or ""
    done: Wire = {
        "type": "code_execution_result",
        "stdout": "" if hosted.failed else printed,
        "stderr": printed if hosted.failed else "",
        "return_code": int(hosted.failed),
        "content": [],
    }
    use: Wire = {"type": "server_tool_use", "id": id, "name": "code_execution", "input": code}
    return [use, {"type": "code_execution_tool_result", "tool_use_id": id, "content": done}]


def _remote(hosted: HostedBlock, id: str) -> list[Wire]:
    given = hosted.input.get("arguments")
    use: Wire = {
        "type": "mcp_tool_use",
        "id": id,
        "name": text_at(hosted.input, "name"),
        "server_name": text_at(hosted.input, "server"),
        "input": given if isinstance(given, dict) else {},
    }
    content = [{"type": "text", "text": hosted.output}] if hosted.output else []
    return [use, {"type": "mcp_tool_result", "tool_use_id": id, "is_error": hosted.failed, "content": content}]


def _is_block(item: object) -> bool:
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and kind.endswith(("_tool_use", "_tool_result"))


def write_blocks(piece: Piece, reply: Reply, asked: ReplyContext, at: str, ledger: Ledger) -> list[Wire]:
    match piece.what:
        case TextBlock() | RefusalBlock():
            records = [write_citation(citation, at, ledger) for citation in piece.citations]
            citations = [record for record in records if record is not None]
            if not piece.text and not citations:
                return []
            return [{**text_block(piece.text), "citations": citations} if citations else text_block(piece.text)]
        case ThinkingBlock():
            return _thinking(piece)
        case CallBlock(id=id, name=name):
            return _call(write_call_id(id, asked), name, piece.text, reply, at, ledger)
        case HostedBlock() as hosted:
            return hosted_blocks(hosted, asked, at, ledger)


def _thinking(piece: Piece) -> list[Wire]:
    signature = encode_envelope(piece.opaque) if piece.opaque is not None else ""
    if piece.text:
        return [{"type": "thinking", "thinking": piece.text, "signature": signature}]
    return [{"type": "redacted_thinking", "data": signature}] if signature else []


def _call(id: str, name: str, arguments: str, reply: Reply, at: str, ledger: Ledger) -> list[Wire]:
    try:
        input = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw]) if arguments.strip() else {}
    except (ValueError, RecursionError):
        if isinstance(reply.end, Ended) and reply.end.stop in _CUT:
            ledger.note_dropped(at, f"the call of {name!r} was cut off and its input cannot be read")
            return []
        raise RequestError(
            Failure(Kind.CORRUPT, f"the model called {name!r} with input that is not a JSON object")
        ) from None
    return [{"type": "tool_use", "id": id, "name": name, "input": input}]


def write_call_id(id: str, asked: ReplyContext) -> str:
    return shown(id) if id else asked.new_id("toolu_")


def write_citation(citation: Citation, at: str, ledger: Ledger) -> Wire | None:
    raw = citation.raw
    if isinstance(raw, dict) and str(raw.get("type")).endswith("_location"):
        return raw
    if citation.url is None:
        ledger.note_dropped(f"{at}/citations", "Messages cites web pages only by their address")
        return None
    ledger.note_approximated(f"{at}/citations", "a citation belongs to its whole block and carries no encrypted index")
    return {
        "type": "web_search_result_location",
        "url": citation.url,
        "title": citation.title,
        "encrypted_index": "",
        "cited_text": citation.quoted or "",
    }


def text_block(text: str) -> Wire:
    return {"type": "text", "text": text}
