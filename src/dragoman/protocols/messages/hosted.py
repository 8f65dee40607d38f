"""What vendor-run tools did: blocks of a reply come in and their meaning goes out, and the other way round."""

from collections.abc import Mapping

from dragoman.hub.events import HostedBlock
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import ReplyContext

Wire = dict[str, object]


def hosted_input(kind: str, use: Wire) -> Wire:
    """What a tool was asked to do, in the hub's words."""
    given = use.get("input")
    asked: Wire = {str(key): value for key, value in given.items()} if isinstance(given, dict) else {}
    if kind == "mcp":
        return {"server": _text(use, "server_name"), "name": _text(use, "name"), "arguments": asked}
    if kind == "code_execution" and "code" not in asked:
        return {**asked, "code": _text(asked, "command")}
    return asked


def outcome(result: Wire) -> tuple[str | None, bool]:
    """What a tool printed or returned, and whether that is an error."""
    content = result.get("content")
    if isinstance(content, list):
        texts = [_text(part, "text") for part in content if isinstance(part, dict)]
        return "".join(texts) or None, result.get("is_error") is True
    if not isinstance(content, dict):
        return None, False
    if "error_code" in content:
        return _text(content, "error_code"), True
    printed = _text(content, "stdout") + _text(content, "stderr")
    return printed if "stdout" in content else None, content.get("return_code") not in (0, None)


def hosted_blocks(hosted: HostedBlock, asked: ReplyContext, at: str, ledger: Ledger) -> list[Wire]:
    """Use and result; nothing where Messages has no such tool."""
    if isinstance(hosted.raw, list) and all(_is_block(item) for item in hosted.raw):
        return list(hosted.raw)
    match hosted.kind:
        case "web_search":
            ledger.approximated(at, "search results carry no encrypted content")
            return _search(hosted, _own_id(hosted, "srvtoolu_", asked))
        case "code_execution":
            ledger.approximated(at, "of an execution, code and output are told")
            return _execution(hosted, _own_id(hosted, "srvtoolu_", asked))
        case "mcp":
            ledger.approximated(at, "of an MCP call, arguments and text are told")
            return _remote(hosted, _own_id(hosted, "mcptoolu_", asked))
    ledger.dropped(at, f"what {hosted.kind!r} did has no equal in Messages")
    return []


def _own_id(hosted: HostedBlock, prefix: str, asked: ReplyContext) -> str:
    return hosted.id if hosted.id.startswith(prefix) else asked.mint(prefix)


def _search(hosted: HostedBlock, id: str) -> list[Wire]:
    found = [
        {"type": "web_search_result", "url": hit.url or "", "title": hit.title or "", "encrypted_content": ""}
        for hit in hosted.results or ()
    ]
    use: Wire = {"type": "server_tool_use", "id": id, "name": "web_search", "input": hosted.input}
    return [use, {"type": "web_search_tool_result", "tool_use_id": id, "content": found}]


def _execution(hosted: HostedBlock, id: str) -> list[Wire]:
    code = {"code": _text(hosted.input, "code")}
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
        "name": _text(hosted.input, "name"),
        "server_name": _text(hosted.input, "server"),
        "input": given if isinstance(given, dict) else {},
    }
    content = [{"type": "text", "text": hosted.output}] if hosted.output else []
    return [use, {"type": "mcp_tool_result", "tool_use_id": id, "is_error": hosted.failed, "content": content}]


def _is_block(item: object) -> bool:
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and kind.endswith(("_tool_use", "_tool_result"))


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""
