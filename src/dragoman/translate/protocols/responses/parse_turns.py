"""Parse `instructions` and the `input` items of a Responses request into turns, and tools among the items.

An item's `id` and `status` have a meaning only in this protocol, so leaving them out is no loss.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from dragoman.translate.caching.breakpoints import read_breakpoint
from dragoman.translate.framing.fields import BadField, Fields, unread_fields
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import OpaqueForm, read_opaque
from dragoman.translate.hub.request import (
    Audio,
    Citation,
    Document,
    Ext,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Media,
    Part,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.server_tools import (
    SearchFound,
    SearchResult,
    ServerToolUse,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
    is_sealed_use,
    read_sealed_use,
)
from dragoman.translate.protocols.responses.state_items import is_own_compaction, open_compaction
from dragoman.translate.protocols.responses.wire import SEARCH_ITEM, VENDOR, Item, text_at

_ROLES = {role.value: role for role in Role}
# Looked up once: on Python 3.11, each look-up of a member is slow.
_SYSTEM, _USER, _ASSISTANT = Role.SYSTEM, Role.USER, Role.ASSISTANT
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_SERVER_STATE = {
    "item_reference": "a reference to a stored item; send the item itself",
    "compaction_summary": "a compacted context that only its vendor can read; send the items themselves",
    "compaction_trigger": "a request to compact the context; it must be the last item, and needs a store",
}
_DAMAGED = "a compacted context that was changed on its way; send the value of encrypted_content exactly as you got it"
_COMPACTED_ELSEWHERE = "a compacted context that only its vendor can read; send the items themselves"
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_MEDIA_BY_SUFFIX = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv"}
_NOT_KEPT = "[What this call returned was not kept. Call the tool again if it is needed.]"


class Conversation:
    """The turns of a request; consecutive items of the assistant are one turn."""

    def __init__(self, ledger: Ledger, ext: Ext) -> None:
        self.turns: list[Turn] = []
        self.tools: list[Fields] = []  # that stand among the items
        self._ledger = ledger
        self._ext = ext  # of the request
        self._reply_parts: list[Part] = []
        self._reply_at = ""
        self._outputs: dict[tuple[str, int], Fields] = {}  # the last of each call, found by its id and number
        self._calls: defaultdict[str, int] = defaultdict(int)  # by id: some servers use the same ids in every step

    def read(self, fields: Fields) -> None:
        instructions = fields.text("instructions")
        if instructions:
            at = fields.pointer("instructions")
            self.turns.append(Turn(_SYSTEM, (Text(instructions, at),), at))
        input_ = fields.text_or_objects("input")
        if input_ is None:
            raise BadField(fields.pointer("input"), "is required")
        if not input_:
            raise fields.bad("input", "must hold some text or at least one item")
        if isinstance(input_, str):
            at = fields.pointer("input")
            self.turns.append(Turn(_USER, (Text(input_, at),), at))
            return
        self._find_outputs(input_)
        for item in input_:
            self._read_item(item)
        self._end_reply()

    def _find_outputs(self, items: list[Fields]) -> None:
        calls = defaultdict[str, int](int)
        for item in items:
            type_ = item.text("type")
            if type_ in _CALLS:
                calls[item.need_text("call_id")] += 1
            elif type_ in _OUTPUTS:
                call_id = item.need_text("call_id")
                call = call_id, calls[call_id]
                if call in self._outputs:
                    earlier = self._outputs[call].at
                    self._ledger.record_dropped(earlier, "a later output of the same call takes its place")
                self._outputs[call] = item

    def _read_item(self, item: Fields) -> None:
        type_ = item.text("type") or ("message" if item.has("role") else "item_reference")
        if type_ in _SERVER_STATE:
            raise BadRequest(item.at, f"{item.at} is {_SERVER_STATE[type_]}.")
        for bookkeeping in ("id", "status"):
            item.raw(bookkeeping)
        match type_:
            case "message":
                self._read_message(item)
            case "reasoning":
                self._add_reply_parts(item, _read_reasoning(item))
            case "function_call" | "custom_tool_call":
                custom = type_ == "custom_tool_call"
                call_id, name = item.need_text("call_id"), item.need_text("name")
                self._calls[call_id] += 1
                arguments = item.text("input", "") if custom else _read_arguments(item)
                namespace = item.text("namespace")
                if item.raw("caller") not in (None, {"type": "direct"}):
                    ext = unread_fields(item) | {"caller": item.raw("caller")}
                else:
                    ext = unread_fields(item)
                self._add_reply_parts(item, ToolCall(call_id, name, arguments, item.at, custom, namespace, ext=ext))
            case "function_call_output" | "custom_tool_call_output":
                self._read_output(item)
            case "compaction":
                self._read_compaction(item)
            case "additional_tools":
                item.text("role")
                self.tools += item.need_objects("tools")
                self._keep_unread(item)
            case _:
                self._read_foreign(type_, item)

    def _read_message(self, item: Fields) -> None:
        role = _ROLES.get(item.need_text("role"))
        if role is None:
            raise item.bad("role", "must be user, assistant, system or developer")
        parts = _parse_content(item, "content")
        if role is _ASSISTANT:
            self._add_reply_parts(item, *parts)
            self._keep_unread(item)
        else:
            self._add_turn(Turn(role, parts, item.at, unread_fields(item)))

    def _read_output(self, item: Fields) -> None:
        call_id = item.need_text("call_id")
        # The last output is placed where the first one stood, next to its call.
        last = self._outputs.pop((call_id, self._calls[call_id]), None)
        if last is not None:
            self._add_turn(Turn(_USER, (_read_result(last, call_id),), item.at))

    def _read_compaction(self, item: Fields) -> None:
        token = item.need_text("encrypted_content")
        summary = open_compaction(token)
        if summary is None:
            raise BadRequest(item.at, f"{item.at} is {_DAMAGED if is_own_compaction(token) else _COMPACTED_ELSEWHERE}.")
        self._add_turn(Turn(_USER, (Text(summary.text_for_model, item.at),), item.at, unread_fields(item)))

    def _read_foreign(self, type_: str, item: Fields) -> None:
        # A foreign item as it came, with its id and status.
        bookkeeping_fields = {key: item.raw(key) for key in ("id", "status") if item.has(key)}
        raw = {"type": type_, **bookkeeping_fields, **item.rest()}
        foreign = Foreign(type_, raw, item.at)
        token = raw.get("encrypted_content") if type_ == SEARCH_ITEM else None
        if isinstance(token, str) and is_sealed_use(token):
            del raw["encrypted_content"]
            foreign = Foreign(type_, raw, item.at, use=read_sealed_use(token, text_at(raw, "id")))
        if type_.endswith(("_output", "_response", "_update")):
            self._add_turn(Turn(_USER, (foreign,), item.at))
        else:
            self._add_reply_parts(item, foreign)

    def _add_reply_parts(self, item: Fields, *parts: Part) -> None:
        if not self._reply_parts:
            self._reply_at = item.at
        self._reply_parts += parts

    def _keep_unread(self, item: Fields) -> None:
        """Keep the unread fields of an item that has no part to hold them."""
        for key, value in unread_fields(item).items():
            self._ext[f"{item.at[1:]}/{key}"] = value

    def _add_turn(self, turn: Turn) -> None:
        self._end_reply()
        self.turns.append(turn)

    def _end_reply(self) -> None:
        if self._reply_parts:
            self.turns.append(Turn(_ASSISTANT, tuple(self._reply_parts), self._reply_at))
            self._reply_parts = []


def _read_reasoning(item: Fields) -> Thinking:
    summary = _read_texts(item, "summary")
    content = _read_texts(item, "content")
    token = item.text("encrypted_content")
    opaque = read_opaque(token, OpaqueForm.ENCRYPTED, VENDOR) if token else None
    raw = not summary and bool(content)
    text = "\n\n".join(content if raw else summary)
    ext = unread_fields(item)
    if summary and content:
        ext["content"] = item.raw("content")
    if opaque is not None and opaque.text:
        text = opaque.text  # the exact text that was signed
    return Thinking(text, item.at, opaque, raw, ext)


def _read_texts(item: Fields, key: str) -> list[str]:
    return [part.need_text("text") for part in item.objects(key) or []]


def _read_arguments(item: Fields) -> str:
    value = item.raw("arguments")
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return item.text("arguments") or "{}"


def _read_result(item: Fields, call_id: str) -> ToolResult:
    custom = item.text("type") == "custom_tool_call_output"
    parts = tuple(_read_result_parts(item))
    for bookkeeping in ("id", "status"):
        item.raw(bookkeeping)
    return ToolResult(call_id, parts, item.at, custom=custom, ext=unread_fields(item))


def _read_result_parts(item: Fields) -> Iterator[Text | Image | Document | Foreign]:
    for part in _parse_content(item, "output"):
        if isinstance(part, Text | Image | Document | Foreign):
            yield part
        else:
            raise BadField(part.at, "is not allowed in a tool output")


def _parse_content(fields: Fields, key: str) -> tuple[Part, ...]:
    """Parse content, a string or an array of parts."""
    content = fields.text_or_objects(key)
    if isinstance(content, str):
        return (Text(content, fields.pointer(key)),) if content else ()
    return tuple(_parse_part(part) for part in content or ())


def _parse_part(part: Fields) -> Part:
    match part.text("type"):
        case "input_text" | "output_text" | "text":
            annotations = part.objects("annotations") or []
            logprobs = part.raw("logprobs")
            cache = read_breakpoint(part)
            text = part.need_text("text")
            ext = unread_fields(part) | ({"logprobs": logprobs} if logprobs else {})
            return Text(text, part.at, tuple(_read_citation(annotation) for annotation in annotations), cache, ext)
        case "refusal":
            return Refusal(part.need_text("refusal"), part.at, unread_fields(part))
        case "input_image":
            return _read_image(part)
        case "input_file":
            return _read_file(part)
        case "input_audio":
            audio = part.need_obj("input_audio")
            source = Inline(f"audio/{audio.need_text('format')}", audio.need_text("data"))
            return Audio(source, part.at, unread_fields(part, audio))
        case other:
            return Foreign(str(other), {"type": other, **part.rest()}, part.at)


def _read_citation(annotation: Fields) -> Citation:
    raw = annotation.rest()
    return Citation(
        url=annotation.text("url"),
        title=annotation.text("title") or annotation.text("filename"),
        start=annotation.integer("start_index"),
        end=annotation.integer("end_index"),
        raw=raw,
    )


def _read_image(part: Fields) -> Image:
    url, file_id = part.text("image_url"), part.text("file_id")
    source: Media
    if file_id is not None:
        source = FileId(file_id)
    elif url is not None:
        source = _read_media(url, part.pointer("image_url"))
    else:
        raise BadField(part.at, "needs image_url or file_id")
    detail = part.text("detail")
    return Image(
        source,
        part.at,
        detail=None if detail == "auto" else detail,
        detail_at=part.pointer("detail") if detail not in (None, "auto") else "",
        cache=read_breakpoint(part),
        ext=unread_fields(part),
    )


def _read_file(part: Fields) -> Document:
    file_id, url, data = part.text("file_id"), part.text("file_url"), part.text("file_data")
    title = part.text("filename")
    source: Media
    if file_id is not None:
        source = FileId(file_id)
    elif data is not None:
        source = _read_file_data(data, title)
    elif url is not None:
        source = Link(url)
    else:
        raise BadField(part.at, "needs file_id, file_data or file_url")
    detail, cache = part.text("detail"), read_breakpoint(part)
    ext = unread_fields(part) | ({"detail": detail} if detail not in (None, "auto") else {})
    return Document(source, part.at, title, cache, ext)


def _read_media(url: str, at: str) -> Media:
    if url[:5].lower() != "data:":
        return Link(url)
    found = _DATA_URL.match(url)
    if found is None:
        raise BadField(at, "must be a web address or a base64 data URL")
    return Inline(found[1].lower() or "application/octet-stream", url[found.end() :])


def _read_file_data(data: str, title: str | None) -> Inline:
    found = _DATA_URL.match(data)
    if found:
        return Inline(found[1].lower() or "application/octet-stream", data[found.end() :])
    suffix = (title or "").rpartition(".")[2].lower()
    return Inline(_MEDIA_BY_SUFFIX.get(suffix, "application/pdf"), data)


def read_tool_uses(parts: Sequence[Part]) -> dict[int, ServerToolUse | None]:
    """Return the searches and opened pages among the parts of a turn, by index."""
    return {
        index: part.use or _read_use(part.raw, part.at)
        for index, part in enumerate(parts)
        if isinstance(part, Foreign) and part.what == SEARCH_ITEM and isinstance(part.raw, dict)
    }


def _read_use(item: Item, at: str) -> ServerToolUse:
    raw_action = item.get("action")
    action = raw_action if isinstance(raw_action, dict) else {}
    id = text_at(item, "id") or "ws" + at.replace("/", "_")  # some clients leave it out
    url = text_at(action, "url")
    if url:  # open_page, find_in_page
        pattern = text_at(action, "pattern")
        about = f"[Looked for {pattern!r}.]\n{_NOT_KEPT}" if pattern else _NOT_KEPT
        outcome = _read_failure(item) or WebPage(url, url, about)
        return ServerToolUse(id, "web_fetch", {"url": url}, outcome)
    return ServerToolUse(id, "web_search", {"query": _read_query(action)}, _read_failure(item) or _read_found(action))


def _read_query(action: Item) -> str:
    queries = action.get("queries")
    several = [query for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
    return text_at(action, "query") or "; ".join(several)


def _read_failure(item: Item) -> ToolOutcome | None:
    if item.get("status") != "failed":
        return None
    return ToolFailure(ToolErrorCode.UNAVAILABLE, "The call failed.")


def _read_found(action: Item) -> SearchFound:
    sources = action.get("sources")
    listed = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    urls = [url for source in listed if (url := text_at(source, "url"))]
    return SearchFound(tuple(SearchResult(url, url) for url in urls), None if urls else _NOT_KEPT)
