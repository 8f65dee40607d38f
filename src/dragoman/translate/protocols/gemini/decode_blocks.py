"""Turn the parts of a Gemini reply into blocks of events, and Google's grounding metadata into citations.

A signature belongs to the part that it stands on. It becomes the opaque value of a thinking block right before that
part, which is empty unless thoughts precede it.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.framing.jsonread import decode_or
from dragoman.translate.hub.events import (
    MAX_CALLS,
    Block,
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
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Citation, Function
from dragoman.translate.protocols.gemini.wire import (
    NAME_PREFIX,
    PLACEHOLDERS,
    Candidate,
    ExecutionResult,
    FunctionCall,
    InlineData,
    ReplyPart,
)

_TEXT = TextBlock()
_THINKING = ThinkingBlock()
_media = msgspec.json.Decoder(InlineData)
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
# Parts of tools that Google runs beside functions: they must return as they came.
_REPLAYED = {"tool_call": "toolCall", "tool_response": "toolResponse"}


class _Web(Struct):
    uri: str | None = None
    title: str | None = None


class _Source(Struct, rename="camel"):
    web: _Web | None = None
    retrieved_context: _Web | None = None


class _Segment(Struct, rename="camel"):
    start_index: int | None = None  # bytes of UTF-8, over the whole text of the reply
    end_index: int | None = None
    text: str | None = None


class _Support(Struct, rename="camel"):
    segment: _Segment | None = None
    grounding_chunk_indices: list[int] | None = None


class Grounding(Struct, rename="camel"):
    web_search_queries: list[str] | None = None
    grounding_chunks: list[_Source] | None = None
    grounding_supports: list[_Support] | None = None


_GROUNDING = msgspec.json.Decoder(Grounding)


class ReplyBlocks:
    """The blocks of one reply so far."""

    __slots__ = (
        "_block", "_bytes_before", "_code", "_declared", "_issuer", "_ledger", "_open_kind", "_texts", "_used_ids",
        "acts", "calls", "count", "reply_id",
    )  # fmt: skip

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self.reply_id = ""  # from which ids of calls are made
        self.count = 0
        self.calls = 0
        self.acts = False  # whether a part has come that has no event yet, or never
        self._open_kind: Block | None = None  # the kind of the open text or thinking block, and its number
        self._block = 0
        self._used_ids: set[str] = set()
        self._declared: set[str] | None = None  # the names of tools, once one is looked for
        self._code = ""  # that Google runs, until its result arrives
        self._texts: list[str] = []  # of the open text block
        self._bytes_before = 0  # of text, in the blocks before it

    def read_part(self, part: ReplyPart, events: list[Event]) -> None:
        text, signature = part.text, part.thought_signature
        is_plain = not part.thought and not signature and part.function_call is None
        if text and is_plain and self._open_kind is _TEXT:  # as nearly all parts of a stream
            events.append(Delta(self._block, text))
            self._texts.append(text)
            return
        signature = signature or ""
        if part.function_call is not None:
            self._read_call(part.function_call, signature, events)
        elif part.text is not None:
            self._read_text(part.text, bool(part.thought), signature, events)
        else:
            self._read_other(part, events)

    def _read_other(self, part: ReplyPart, events: list[Event]) -> None:
        self.acts = True
        if _is_set(part.inline_data):
            self._add_media(part.inline_data, events)
        if _is_set(part.file_data):
            self._ledger.record_dropped("/candidates/0/content/parts", "generated files are not translated")
        if part.executable_code is not None:
            self._code = part.executable_code.code
        if part.code_execution_result is not None:
            self._add_execution(part.code_execution_result, events)
        for field, key in _REPLAYED.items():
            if _is_set(raw := getattr(part, field)):
                signed = {"thoughtSignature": part.thought_signature} if part.thought_signature else {}
                self._add_replayed(msgspec.json.encode({key: raw, **signed}).decode(errors="replace"), events)

    def _add_media(self, raw: msgspec.Raw, events: list[Event]) -> None:
        media = decode_or(_media, raw, InlineData())
        if not media.mime_type.startswith("image/"):
            self._ledger.record_dropped("/candidates/0/content/parts", "of generated media only images are translated")
            return
        self.close_block(events)
        image = HostedBlock(
            self._make_id(None), "image_generation", {"media_type": media.mime_type}, None, None, media.data
        )
        events.append(Closed(self._add_block(image, events)))

    def _add_execution(self, result: ExecutionResult, events: list[Event]) -> None:
        self.close_block(events)
        failed = result.outcome not in ("", "OUTCOME_OK")
        ran = HostedBlock(
            self._make_id(None), "code_execution", {"code": self._code}, None, None, result.output, failed
        )
        events.append(Closed(self._add_block(ran, events)))
        self._code = ""

    def _add_replayed(self, part: str, events: list[Event]) -> None:
        """Keep a part for the next request, in a block of reasoning that shows nothing."""
        self.close_block(events)
        block = self._add_block(_THINKING, events)
        opaque = Opaque(self._issuer.name, OpaqueForm.DETAIL, part, self._issuer.model)
        events += (OpaqueAdded(block, opaque), Closed(block))

    def _read_text(self, text: str, thought: bool, signature: str, events: list[Event]) -> None:
        if thought:
            if text:
                events.append(Delta(self._open_block(_THINKING, events), text))
            if signature:
                self._add_signature(signature, events)
            return
        if signature:
            if self._open_kind is _TEXT or not text:
                self._drop_signature()
            else:
                self._add_signature(signature, events)
        if text:
            events.append(Delta(self._open_block(_TEXT, events), text))
            self._texts.append(text)

    def _drop_signature(self) -> None:
        self._ledger.record_dropped(
            "/candidates/0/content/parts/thoughtSignature", "the signature of text that was already sent has no place"
        )

    def _add_signature(self, signature: str, events: list[Event], *, of_call: bool = False) -> None:
        """Close the open thinking block with this signature, or add a block that holds nothing else."""
        if signature in PLACEHOLDERS:
            return
        block = self._open_block(_THINKING, events)
        opaque = Opaque(self._issuer.name, OpaqueForm.SIGNATURE, signature, self._issuer.model, of_call=of_call)
        events += (OpaqueAdded(block, opaque), Closed(block))
        self._open_kind = None

    def _read_call(self, call: FunctionCall, signature: str, events: list[Event]) -> None:
        if self.calls > MAX_CALLS:  # the reply has failed; the rest of a long list is not worth reading
            return
        if signature:
            self._add_signature(signature, events, of_call=True)
        self.close_block(events)
        name = self._find_name(call.name) if call.name.startswith(NAME_PREFIX) else call.name
        block = self._add_block(CallBlock(self._make_id(call.id), name), events)
        self.calls += 1
        events += (Delta(block, _read_arguments(call)), Closed(block))

    def _find_name(self, name: str) -> str:
        """Return a name without the model's internal namespace if that leaves the name of a tool."""
        if self._declared is None:
            self._declared = {tool.name for tool in self._issuer.tools if isinstance(tool, Function)}
        plain = name.removeprefix(NAME_PREFIX)
        return plain if plain in self._declared and name not in self._declared else name

    def _make_id(self, id: str | None) -> str:
        """Return an id that no other call of the reply has; models before Gemini 3 give none."""
        made = id or f"call_{_NOT_IN_IDS.sub('', self.reply_id)}_{self.calls}"
        if made in self._used_ids:
            made = f"{made}_{self.calls}"
        self._used_ids.add(made)
        return made

    def _open_block(self, what: Block, events: list[Event]) -> int:
        if self._open_kind is not what:
            self.close_block(events)
            self._block = self._add_block(what, events)
            self._open_kind = what
        return self._block

    def close_block(self, events: list[Event]) -> None:
        if self._open_kind is not None:
            events.append(Closed(self._block))
            self._open_kind = None
        if self._texts:
            self._bytes_before += len("".join(self._texts).encode(errors="surrogatepass"))
            self._texts = []

    def _add_block(self, what: Block, events: list[Event]) -> int:
        block = self.count
        self.count += 1
        events.append(Opened(block, what))
        return block

    def add_logprobs(self, candidate: Candidate, events: list[Event]) -> None:
        """Put the log probabilities of a chunk on its text."""
        logprobs = _read_logprobs(candidate.logprobs_result)
        last = events[-1] if events else None
        if logprobs is not None and isinstance(last, Delta) and self._open_kind is _TEXT:
            events[-1] = replace(last, logprobs=logprobs)
        elif logprobs is not None:
            self._ledger.record_dropped("/candidates/0/logprobsResult", "there is no text that it belongs to")

    def add_grounding(self, grounding: Grounding, events: list[Event]) -> None:
        """Cite the sources on the text, which is still open, and report the search after it."""
        if any(self._is_past(support) for support in grounding.grounding_supports or ()):
            where = "/candidates/0/groundingMetadata/groundingSupports"
            self._ledger.record_dropped(where, "the block of the text that is cited ended before its sources came")
        if self._open_kind is _TEXT:
            citations = _locate_citations(grounding, "".join(self._texts), self._bytes_before)
            events += [CitationAdded(self._block, citation) for citation in citations]
        sources = tuple(source for source in _list_sources(grounding) if source.url)
        queries = grounding.web_search_queries or []
        if queries or sources:
            self.close_block(events)
            found = HostedBlock(self._make_id(None), "web_search", {"query": "; ".join(queries)}, sources)
            events.append(Closed(self._add_block(found, events)))

    def _is_past(self, support: _Support) -> bool:
        """Whether the text that a source supports is in a block that has ended."""
        end = None if support.segment is None else support.segment.end_index
        return self._open_kind is not _TEXT or (end is not None and end <= self._bytes_before)


def _is_set(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


def _read_arguments(call: FunctionCall) -> str:
    """Return the arguments as JSON text on one line; without any, those of a call with none."""
    if not _is_set(call.args):
        return "{}"
    return msgspec.json.format(bytes(call.args), indent=-1).decode(errors="replace")


def read_grounding(raw: Raw) -> Grounding | None:
    """Return the metadata; None if there is none, or none that can be read."""
    if not bytes(raw) or bytes(raw) == b"null":
        return None
    return decode_or(_GROUNDING, raw, None)


def _list_sources(grounding: Grounding) -> tuple[Citation, ...]:
    found = [source.web or source.retrieved_context or _Web() for source in grounding.grounding_chunks or ()]
    return tuple(Citation(url=web.uri, title=web.title) for web in found)


def _locate_citations(grounding: Grounding, text: str, bytes_before: int) -> Iterator[Citation]:
    """Yield the citations of a block in order; `bytes_before`: the length of the reply's text before this block."""
    sources, encoded = _list_sources(grounding), text.encode(errors="surrogatepass")
    count_characters = _CharacterCounter(encoded).count
    for support in grounding.grounding_supports or ():
        segment = support.segment or _Segment()
        start = max(0, (segment.start_index or 0) - bytes_before)
        end = len(encoded) if segment.end_index is None else segment.end_index - bytes_before
        if end <= 0:
            continue  # of an earlier block, which is closed
        first, last = count_characters(start), count_characters(end)
        for index in support.grounding_chunk_indices or ():
            if 0 <= index < len(sources) and sources[index].url:
                yield msgspec.structs.replace(sources[index], start=first, end=last)


_CONTINUATION = bytes(range(0x80, 0xC0))  # the bytes of UTF-8 that begin no character
_COUNTED_BYTES = 1024


class _CharacterCounter:
    """Counts the characters before an offset in UTF-8; each count looks at a part of the text only."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        parts = (encoded[at : at + _COUNTED_BYTES] for at in range(0, len(encoded), _COUNTED_BYTES))
        self._before = [0, *accumulate(map(_count_beginnings, parts))]

    def count(self, end: int) -> int:
        """Return how many whole characters end at this offset or before it."""
        end = min(end, len(self._encoded))
        while 0 < end < len(self._encoded) and self._encoded[end] in _CONTINUATION:
            end -= 1  # within a character
        at = end // _COUNTED_BYTES
        return self._before[at] + _count_beginnings(self._encoded[at * _COUNTED_BYTES : end])


def _count_beginnings(encoded: bytes) -> int:
    return len(encoded.translate(None, _CONTINUATION))


class _Token(Struct, rename="camel"):
    token: str = ""
    log_probability: float = 0.0


class _Alternatives(Struct):
    candidates: list[_Token] = []


class _Logprobs(Struct, rename="camel"):
    chosen_candidates: list[_Token] = []
    top_candidates: Sequence[_Alternatives] = ()


_LOGPROBS = msgspec.json.Decoder(_Logprobs)


def _read_logprobs(raw: Raw) -> Raw | None:
    """Return the log probabilities as the hub has them; None if there are none that can be read."""
    if not bytes(raw) or bytes(raw) == b"null":
        return None
    try:
        found = _LOGPROBS.decode(raw)
    except (ValueError, RecursionError):
        return None
    tokens = [
        {
            **_write_token(chosen),
            "top_logprobs": [_write_token(other) for other in found.top_candidates[index].candidates]
            if index < len(found.top_candidates)
            else [],
        }
        for index, chosen in enumerate(found.chosen_candidates)
    ]
    return Raw(msgspec.json.encode(tokens)) if tokens else None


def _write_token(token: _Token) -> dict[str, object]:
    text = token.token
    return {"token": text, "logprob": token.log_probability, "bytes": list(text.encode(errors="replace"))}
