"""Encode whole blocks of a reply as content blocks of a message."""

from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.events import (
    CallBlock,
    Ended,
    HostedBlock,
    Piece,
    RefusalBlock,
    Reply,
    Stop,
    TextBlock,
    ThinkingBlock,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import UNSIGNED, encode_envelope
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.hub.request import Citation, CitedDocument
from dragoman.translate.hub.server_tools import (
    SearchFound,
    SearchResult,
    SourceText,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
    seal_source,
)
from dragoman.translate.protocols.messages.wire import (
    DIRECT_CALLER,
    MAX_CALL_ID,
    Wire,
    encode_call_id,
    encode_use_id,
    text_at,
)

_FAILED = ToolFailure(ToolErrorCode.UNAVAILABLE, "")  # vendors other than Anthropic give no code
_CUT_STOPS = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)  # may end a reply in the middle of a call


def encode_hosted(hosted: HostedBlock, context: ReplyContext, at: str, ledger: Ledger) -> list[Wire]:
    """Return the use and result blocks; none if Messages has no such tool."""
    if hosted.is_ours:
        id = choose_use_id(hosted, context, at, ledger)
        use = [] if hosted.is_resumed else [encode_use(hosted, id)]
        return use if hosted.outcome is None else [*use, encode_outcome(hosted.kind, id, hosted.outcome)]
    if isinstance(hosted.raw, list) and all(_is_block(item) for item in hosted.raw):
        return list(hosted.raw)
    match hosted.kind:
        case "web_search":
            ledger.record_approximated(at, "only titles and URLs of the search results are sent")
            return _encode_search(hosted, choose_id(hosted, "srvtoolu_", context))
        case "web_fetch":
            ledger.record_approximated(at, "only the address of a page is sent")
            return _encode_opened(hosted, choose_id(hosted, "srvtoolu_", context), context)
        case "code_execution":
            ledger.record_approximated(at, "only code and output of an execution are sent")
            return _encode_execution(hosted, choose_id(hosted, "srvtoolu_", context))
        case "mcp":
            ledger.record_approximated(at, "only arguments and text of an MCP call are sent")
            return _encode_mcp(hosted, choose_id(hosted, "mcptoolu_", context))
    ledger.record_dropped(at, f"what {hosted.kind!r} did has no equivalent in Messages")
    return []


def encode_use(hosted: HostedBlock, id: str) -> Wire:
    """Write the call of a server tool."""
    return {"type": "server_tool_use", "id": id, "name": hosted.kind, "input": hosted.input, "caller": DIRECT_CALLER}


def encode_outcome(kind: str, id: str, outcome: ToolOutcome) -> Wire:
    """Write what a tool of the gateway returned.

    What the client is not shown of it travels in `encrypted_content`: of its sources or, where there is none, of the
    whole block.
    """
    content: object
    match outcome:
        case SearchFound(results=[_, *_] as results, text=prose):
            sources = [SourceText(item.text, item.published) for item in results]
            sources[0] = replace(sources[0], prose=prose)
            found = [_encode_found(item, source) for item, source in zip(results, sources, strict=True)]
            return _result_block(kind, id, found)
        case SearchFound(text=prose):
            content, source = [], SourceText(prose=prose)
        case WebPage(truncated=truncated):
            content, source = _encode_page(outcome), SourceText(truncated=truncated)
        case ToolFailure(code=code, message=message):
            content = {"type": f"{kind}_tool_result_error", "error_code": code.value}
            source = SourceText(message)
    block = _result_block(kind, id, content)
    return block if outcome is _FAILED else block | {"encrypted_content": seal_source(source)}


def _result_block(kind: str, id: str, content: object) -> Wire:
    return {"type": f"{kind}_tool_result", "tool_use_id": id, "content": content, "caller": DIRECT_CALLER}


def _encode_found(item: SearchResult, source: SourceText) -> Wire:
    return {
        "type": "web_search_result",
        "url": item.url,
        "title": item.title,
        "encrypted_content": seal_source(source),
        "page_age": _page_age(item.published),
    }


def _page_age(published: str | None) -> str | None:
    """Return when a page was published, if that is a date; some services write words such as "3 days ago"."""
    if not published:
        return None
    try:
        datetime.fromisoformat(published)
    except ValueError:
        from email.utils import parsedate  # 2 MB

        fields = parsedate(published)
        return None if fields is None else "{:04}-{:02}-{:02}".format(*fields[:3])
    return published


def _encode_page(page: WebPage) -> Wire:
    source: Wire = {"type": "text", "media_type": "text/plain", "data": page.text}
    if page.pdf is not None:
        source = {"type": "base64", "media_type": "application/pdf", "data": page.pdf}
    citations: Wire = {"enabled": page.is_citable}
    document: Wire = {"type": "document", "title": page.title, "source": source, "citations": citations}
    return {"type": "web_fetch_result", "url": page.url, "retrieved_at": page.retrieved_at, "content": document}


def choose_use_id(hosted: HostedBlock, context: ReplyContext, at: str, ledger: Ledger) -> str:
    """Return the id of a use that the gateway runs; the client's own, if it has shown the use itself."""
    if hosted.is_resumed:
        return hosted.id
    place, new_id = hosted.place, context.new_id("srvtoolu_")
    if place is None:
        return new_id
    if len(place.id) > MAX_CALL_ID:
        ledger.record_approximated(at, f"later turns have another id of this call: it is longer than {MAX_CALL_ID}")
        place = replace(place, id="")
    return encode_use_id(place, new_id)


def choose_id(hosted: HostedBlock, prefix: str, context: ReplyContext) -> str:
    return hosted.id if hosted.id.startswith(prefix) else context.new_id(prefix)


def _encode_search(hosted: HostedBlock, id: str) -> list[Wire]:
    found = [
        {
            "type": "web_search_result",
            "url": hit.url or "",
            "title": hit.title or hit.url or "",
            "encrypted_content": seal_source(SourceText(hit.quoted or "")),
            "page_age": None,
        }
        for hit in hosted.results or ()
    ]
    if hosted.failed:
        return [encode_use(hosted, id), encode_outcome(hosted.kind, id, _FAILED)]
    return [encode_use(hosted, id), _result_block(hosted.kind, id, found)]


def _encode_opened(hosted: HostedBlock, id: str, context: ReplyContext) -> list[Wire]:
    """Write a page that another vendor opened, of which nothing but the address is known."""
    url = text_at(hosted.input, "url")
    at = datetime.fromtimestamp(context.now(), UTC).isoformat(timespec="seconds")
    outcome = _FAILED if hosted.failed else WebPage(url, url, retrieved_at=at)
    return [encode_use(replace(hosted, input={"url": url}), id), encode_outcome(hosted.kind, id, outcome)]


def _encode_execution(hosted: HostedBlock, id: str) -> list[Wire]:
    code = {"code": text_at(hosted.input, "code")}
    printed = hosted.output or ""
    done: Wire = {
        "type": "code_execution_result",
        "stdout": "" if hosted.failed else printed,
        "stderr": printed if hosted.failed else "",
        "return_code": int(hosted.failed),
        "content": [],
    }
    use = encode_use(replace(hosted, input=code), id)
    return [use, {"type": "code_execution_tool_result", "tool_use_id": id, "content": done}]


def _encode_mcp(hosted: HostedBlock, id: str) -> list[Wire]:
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


class WholeReply(Struct, frozen=True):
    """A reply that is encoded as one message, for which request, and where its losses are recorded."""

    reply: Reply
    context: ReplyContext
    ledger: Ledger


def encode_blocks(piece: Piece, whole: WholeReply, at: str) -> list[Wire]:
    context, ledger = whole.context, whole.ledger
    match piece.what:
        case TextBlock() | RefusalBlock():
            if not piece.citations:
                return [text_block(piece.text)] if piece.text else []
            records = [encode_citation(citation, at, ledger) for citation in piece.citations]
            citations = [record for record in records if record is not None]
            if not piece.text and not citations:
                return []
            return [{**text_block(piece.text), "citations": citations} if citations else text_block(piece.text)]
        case ThinkingBlock():
            signature = None if piece.opaque is None else encode_envelope(piece.opaque)
            if piece.text:
                return [{"type": "thinking", "thinking": piece.text, "signature": signature or UNSIGNED}]
            return [] if signature is None else [{"type": "redacted_thinking", "data": signature}]
        case CallBlock() as call:
            return _encode_call(call, piece.text, whole, at)
        case HostedBlock() as hosted:
            return encode_hosted(hosted, context, at, ledger)


def _encode_call(call: CallBlock, arguments: str, whole: WholeReply, at: str) -> list[Wire]:
    id, name, end = choose_call_id(call.id, whole.context), call.name, whole.reply.end
    try:
        input = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw]) if arguments.strip() else {}
    except (ValueError, RecursionError):
        if isinstance(end, Ended) and end.stop in _CUT_STOPS:
            whole.ledger.record_dropped(at, f"the call of {name!r} was cut off and its input cannot be read")
            return []
        raise RequestError(
            Failure(Kind.CORRUPT, f"the model called {name!r} with input that is not a JSON object")
        ) from None
    return [call_block(id, name, input)]


def choose_call_id(id: str, context: ReplyContext) -> str:
    return encode_call_id(id) if id else context.new_id("toolu_")


def encode_citation(citation: Citation, at: str, ledger: Ledger) -> Wire | None:
    raw = citation.raw
    if isinstance(raw, dict) and str(raw.get("type")).endswith("_location"):
        return raw
    if citation.url is None:
        ledger.record_dropped(f"{at}/citations", "Messages cites web pages only by their address")
        return None
    if citation.start is not None or citation.end is not None:
        ledger.record_approximated(f"{at}/citations", "a citation belongs to its whole block")
    if citation.document is not None:
        return _encode_place(citation, citation.document, at, ledger)
    return {
        "type": "web_search_result_location",
        "url": citation.url,
        "title": citation.title or citation.url,
        "encrypted_index": seal_source(SourceText(citation.quoted or "")),
        "cited_text": citation.quoted or "",
    }


def _encode_place(citation: Citation, place: CitedDocument, at: str, ledger: Ledger) -> Wire:
    """Write a citation of a fetched page, which is a document."""
    record: Wire = {
        "type": "page_location" if place.is_pdf else "char_location",
        "cited_text": citation.quoted or "",
        "document_index": place.number,
        "document_title": citation.title,
        "file_id": None,
    }
    if not place.is_pdf:
        return {**record, "start_char_index": place.start, "end_char_index": place.end}
    ledger.record_invented(f"{at}/citations", "it is not known which page of a PDF is cited; the first is named")
    return {**record, "start_page_number": 1, "end_page_number": 2}


def text_block(text: str) -> Wire:
    return {"type": "text", "text": text, "citations": None}


def call_block(id: str, name: str, input: object) -> Wire:
    return {"type": "tool_use", "id": id, "name": name, "input": input, "caller": DIRECT_CALLER}
