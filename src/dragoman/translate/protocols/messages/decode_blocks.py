"""Decode the content blocks of a Messages reply into hub events."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.framing.jsonread import decode_or, read_json, replace_lone_surrogates
from dragoman.translate.hub.events import (
    MAX_CITATIONS,
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Event,
    HostedBlock,
    OpaqueAdded,
    Opened,
    TextBlock,
    ThinkingBlock,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, is_signature
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Citation
from dragoman.translate.protocols.messages.wire import (
    HOSTED_KINDS,
    HOSTED_RESULT,
    HOSTED_USES,
    Change,
    CitedSource,
    ContentBlock,
    FetchedPage,
    SearchHit,
    Wire,
    is_present,
    text_at,
)

_TEXT = TextBlock()
_THINKING = ThinkingBlock()
_block = msgspec.json.Decoder(ContentBlock)
_object = msgspec.json.Decoder(dict[str, object])
_place = msgspec.json.Decoder(CitedSource)
_hits = msgspec.json.Decoder(list[Raw])
_hit = msgspec.json.Decoder(SearchHit)
_page = msgspec.json.Decoder(FetchedPage)
_any = msgspec.json.Decoder(object)


class _Numbers(Struct, eq=False):
    """Block numbers in the order of opening; empty blocks take none."""

    _next: int = 0

    def take(self) -> int:
        self._next += 1
        return self._next - 1


class _Block(Protocol):
    def change(self, change: Change) -> Sequence[Event]: ...

    def close(self) -> Sequence[Event]: ...


class _Text:
    __slots__ = ("_citations", "_length", "_number", "_numbers")

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers
        self._number = -1  # opened by its first text; an empty block is left out
        self._length = 0
        self._citations: list[Raw] = []

    def begin(self, block: ContentBlock) -> Sequence[Event]:
        self._citations += block.citations or ()
        return self.change(Change(text=block.text))

    def change(self, change: Change) -> Sequence[Event]:
        text = change.text
        if text:
            self._length += len(text)
            if self._number >= 0:
                return (Delta(self._number, text),)
            self._number = self._numbers.take()
            return (Opened(self._number, _TEXT), Delta(self._number, text))
        if is_present(change.citation) and len(self._citations) <= MAX_CITATIONS:  # one too many fails
            self._citations.append(change.citation)
        return ()

    def close(self) -> Sequence[Event]:
        if self._number < 0:
            return ()
        cited = (CitationAdded(self._number, _read_citation(raw, self._length)) for raw in self._citations)
        return [*cited, Closed(self._number)]


class _Thinking:
    __slots__ = ("_issuer", "_number", "_numbers", "_signature")

    def __init__(self, numbers: _Numbers, issuer: Issuer) -> None:
        self._numbers = numbers
        self._issuer = issuer
        self._number = -1
        self._signature: list[str] = []

    def begin(self, block: ContentBlock) -> Sequence[Event]:
        return self.change(Change(thinking=block.thinking, signature=block.signature))

    def change(self, change: Change) -> Sequence[Event]:
        if change.signature:
            self._signature.append(change.signature)
        if not change.thinking:
            return ()
        return [*self._ensure_open(), Delta(self._number, change.thinking)]

    def close(self) -> Sequence[Event]:
        signature = "".join(self._signature)
        if not is_signature(signature):
            return () if self._number < 0 else (Closed(self._number),)
        opaque = Opaque(self._issuer.name, OpaqueForm.SIGNATURE, signature, self._issuer.model)
        opened = self._ensure_open()
        return [*opened, OpaqueAdded(self._number, opaque), Closed(self._number)]

    def _ensure_open(self) -> Sequence[Event]:
        if self._number >= 0:
            return ()
        self._number = self._numbers.take()
        return (Opened(self._number, _THINKING),)


class _Redacted:
    __slots__ = ("_number",)

    def __init__(self, numbers: _Numbers) -> None:
        self._number = numbers.take()

    def begin(self, block: ContentBlock, issuer: Issuer) -> Sequence[Event]:
        opaque = Opaque(issuer.name, OpaqueForm.REDACTED, block.data, issuer.model)
        return (Opened(self._number, _THINKING), OpaqueAdded(self._number, opaque))

    def change(self, change: Change) -> Sequence[Event]:
        return ()

    def close(self) -> Sequence[Event]:
        return (Closed(self._number),)


class _Call:
    __slots__ = ("_number", "_whole_input", "has_input", "name")

    def __init__(self, numbers: _Numbers, name: str) -> None:
        self.name = name
        self.has_input = False
        self._number = numbers.take()
        self._whole_input = ""  # input that came with the start, if no deltas follow

    def begin(self, block: ContentBlock) -> Sequence[Event]:
        if is_present(block.input):
            given = msgspec.json.format(replace_lone_surrogates(bytes(block.input)), indent=-1).decode()
            self._whole_input = "" if given in ("{}", '""') else given
            self.has_input = bool(self._whole_input)
        return (Opened(self._number, CallBlock(block.id, block.name)),)

    def change(self, change: Change) -> Sequence[Event]:
        if not change.partial_json:
            return ()
        self._whole_input = ""
        self.has_input = True
        return (Delta(self._number, change.partial_json),)

    def close(self) -> Sequence[Event]:
        if self._whole_input:
            return (Delta(self._number, self._whole_input), Closed(self._number))
        return (Closed(self._number),)


class _HostedUse(Struct, eq=False):
    """A vendor-run tool that is running; its block is sent together with the result."""

    block: ContentBlock
    _raw: Raw
    _input: list[str] = []

    def change(self, change: Change) -> Sequence[Event]:
        self._input.append(change.partial_json)
        return ()

    def close(self) -> Sequence[Event]:
        return ()

    def as_object(self) -> dict[str, object]:
        raw = read_json(_object, self._raw)
        if any(self._input):
            raw["input"] = decode_or(_object, "".join(self._input), {})
        return raw


class _CompleteBlock:
    """A block that is complete at its start; later changes add nothing."""

    __slots__ = ()

    def change(self, change: Change) -> Sequence[Event]:
        return ()

    def close(self) -> Sequence[Event]:
        return ()


class Blocks:
    """The blocks of one reply."""

    __slots__ = ("_issuer", "_ledger", "_numbers", "_open", "_uses", "acts", "calls")

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self.calls = False  # whether a tool of the client was called
        self.acts = False  # whether a block has begun that has no event yet, or never
        self._issuer = issuer
        self._ledger = ledger
        self._numbers = _Numbers()
        self._open: dict[int, _Block] = {}
        self._uses: dict[str, _HostedUse] = {}

    def open(self, index: int, raw: Raw) -> Sequence[Event]:
        closed = self.close(index)
        try:
            block = read_json(_block, raw)
        except (ValueError, RecursionError):
            return [*closed, *self._skip_unknown(index, "a block of unknown shape")]
        return [*closed, *self._begin_block(index, block, raw)]

    def change(self, index: int, change: Change) -> Sequence[Event]:
        block = self._open.get(index)
        return block.change(change) if block is not None else ()

    def close(self, index: int) -> Sequence[Event]:
        block = self._open.pop(index, None)
        return block.close() if block is not None else ()

    def unfinished_call(self) -> str | None:
        """Return the name of a call that was neither given any input nor closed: an empty input would be invented."""
        calls = (block for block in self._open.values() if isinstance(block, _Call))
        return next((call.name for call in calls if not call.has_input), None)

    def close_all(self) -> Sequence[Event]:
        events: list[Event] = []
        for index in sorted(self._open):
            events += self.close(index)
        for use in self._uses.values():
            events += self._hosted_events(_hosted_kind(use.block), use.block.id, [use.as_object()], None)
        self._uses.clear()
        return events

    def _begin_block(self, index: int, block: ContentBlock, raw: Raw) -> Sequence[Event]:
        match block.type:
            case "text":
                self._open[index] = text = _Text(self._numbers)
                return text.begin(block)
            case "thinking":
                self._open[index] = thinking = _Thinking(self._numbers, self._issuer)
                return thinking.begin(block)
            case "redacted_thinking":
                self._open[index] = redacted = _Redacted(self._numbers)
                return redacted.begin(block, self._issuer)
            case "tool_use":
                self.calls = True
                self._open[index] = call = _Call(self._numbers, block.name)
                return call.begin(block)
            case kind if kind in HOSTED_USES:
                self._open[index] = self._uses[block.id] = _HostedUse(block, raw)
                self.acts = True
                return ()
            case kind if kind.endswith(HOSTED_RESULT):
                self._open[index] = _CompleteBlock()
                return self._read_result(block, raw)
            case kind:
                return self._skip_unknown(index, repr(kind))

    def _skip_unknown(self, index: int, what: str) -> Sequence[Event]:
        self._open[index] = _CompleteBlock()
        self.acts = True
        self._ledger.record_dropped(f"/content/{index}", f"{what} exists only in Messages")
        return ()

    def _read_result(self, block: ContentBlock, raw: Raw) -> Sequence[Event]:
        use = self._uses.pop(block.tool_use_id, None)
        kind = HOSTED_KINDS.get(block.type.removesuffix(HOSTED_RESULT), block.type)
        as_object = [read_json(_object, raw)] if use is None else [use.as_object(), read_json(_object, raw)]
        read = _RESULT_READERS.get(kind)
        results = None if read is None else tuple(read(block.content))
        return self._hosted_events(kind, block.tool_use_id, as_object, results)

    def _hosted_events(
        self, kind: str, id: str, as_object: list[dict[str, object]], results: tuple[Citation, ...] | None
    ) -> Sequence[Event]:
        number = self._numbers.take()
        output, failed = _read_outcome(as_object[-1])
        hosted = HostedBlock(id, kind, _read_hosted_input(kind, as_object[0]), results, as_object, output, failed)
        return (Opened(number, hosted), Closed(number))


def _hosted_kind(block: ContentBlock) -> str:
    return "mcp" if block.type == "mcp_tool_use" else HOSTED_KINDS.get(block.name, block.name)


def _read_citation(raw: Raw, length: int) -> Citation:
    """Read a citation; it applies to the whole block."""
    record = read_json(_any, raw)
    try:
        place = read_json(_place, raw)
    except (ValueError, RecursionError):
        return Citation(start=0, end=length, raw=record)
    url = place.url or (place.source if place.source and place.source.startswith("http") else None)
    return Citation(url, place.title or place.document_title, place.cited_text, 0, length, record)


def _read_search_hits(content: Raw) -> Iterator[Citation]:
    try:
        hits = read_json(_hits, content) if is_present(content) else []
    except (ValueError, RecursionError):  # an error object instead of the list
        return
    for raw in hits:
        try:
            hit = read_json(_hit, raw)
        except (ValueError, RecursionError):
            continue
        yield Citation(url=hit.url, title=hit.title, raw=read_json(_any, raw))


def _read_page(content: Raw) -> Iterator[Citation]:
    """Return the page that was fetched, if it was."""
    try:
        page = read_json(_page, content) if is_present(content) else FetchedPage()
    except (ValueError, RecursionError):
        return
    if page.url:
        yield Citation(url=page.url, title=page.content.title)


_RESULT_READERS = {"web_search": _read_search_hits, "web_fetch": _read_page}


def _read_hosted_input(kind: str, use: Wire) -> Wire:
    """Return the input of a vendor-run tool, with the hub's keys."""
    given = use.get("input")
    given_input: Wire = {str(key): value for key, value in given.items()} if isinstance(given, dict) else {}
    if kind == "mcp":
        return {"server": text_at(use, "server_name"), "name": text_at(use, "name"), "arguments": given_input}
    if kind == "code_execution" and "code" not in given_input:
        return {**given_input, "code": text_at(given_input, "command")}
    return given_input


def _read_outcome(result: Wire) -> tuple[str | None, bool]:
    """Return what a tool printed or returned, and whether that is an error."""
    content = result.get("content")
    if isinstance(content, list):
        texts = [text_at(part, "text") for part in content if isinstance(part, dict)]
        return "".join(texts) or None, result.get("is_error") is True
    if not isinstance(content, dict):
        return None, False
    if "error_code" in content:
        return text_at(content, "error_code"), True
    printed = text_at(content, "stdout") + text_at(content, "stderr")
    return printed if "stdout" in content else None, content.get("return_code") not in (0, None)
