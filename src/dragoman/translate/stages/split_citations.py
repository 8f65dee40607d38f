"""Divide text whose citations say where they stand into blocks, for a client whose citations belong to whole blocks.

Only a reply that is known to its end can be divided: of a stream, the text was sent before its sources are known.
"""

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    TextBlock,
    ToolReturned,
    join_arrays,
)
from dragoman.translate.hub.request import Citation

MAX_BLOCKS = 1_000  # a reply that would have more of them stays as it is


class _Text(Struct):
    """A text block of the reply."""

    pieces: list[str] = []
    citations: list[Citation] = []
    logprobs: list[Raw] = []


class _Passage(Struct):
    """A part of a text with the citations that belong to it."""

    start: int
    end: int
    citations: list[Citation] = []


def split_citations(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events of a whole reply with a text block for each cited passage.

    Passages that overlap are one block. A citation that names no place belongs to the last block of its text.
    """
    if CitationAdded not in map(type, events):
        return events  # as nearly always
    if not any(type(event) is CitationAdded and event.citation.start is not None for event in events):
        return events
    texts = _collect_texts(events)
    passages = {block: _divide("".join(text.pieces), text.citations) for block, text in texts.items() if text.citations}
    if type(events[-1]) is Failed or sum(map(len, passages.values())) > MAX_BLOCKS:
        return events
    numbers: dict[int, int] = {}
    divided: list[Event] = []
    count = 0
    for event in events:
        if type(event) is Opened and event.block in passages:
            divided += _write_passages(event, texts[event.block], passages[event.block], count)
            count += len(passages[event.block])
        elif type(event) is Opened:
            numbers[event.block] = count
            divided.append(replace(event, block=count))
            count += 1
        elif not isinstance(event, Delta | OpaqueAdded | CitationAdded | ToolReturned | Closed):
            divided.append(event)
        elif event.block in numbers:
            divided.append(replace(event, block=numbers[event.block]))
    return divided


def _collect_texts(events: Iterable[Event]) -> dict[int, _Text]:
    texts: dict[int, _Text] = {}
    for event in events:
        if type(event) is Opened and type(event.what) is TextBlock:
            texts[event.block] = _Text()
        elif type(event) is Delta and event.block in texts:
            texts[event.block].pieces.append(event.text)
            texts[event.block].logprobs += [] if event.logprobs is None else [event.logprobs]
        elif type(event) is CitationAdded and event.block in texts:
            texts[event.block].citations.append(event.citation)
    return texts


def _divide(text: str, citations: Iterable[Citation]) -> list[_Passage]:
    """Return the passages that make up a text, cited and not, in order."""
    placed: list[_Passage] = []
    unplaced: list[Citation] = []
    for citation in citations:
        start, end = citation.start, len(text) if citation.end is None else min(citation.end, len(text))
        if start is not None and 0 <= start < end:
            placed.append(_Passage(start, end, [citation]))
        else:
            unplaced.append(citation)
    passages = _fill_gaps(text, _join_overlapping(placed))
    passages[-1].citations += unplaced
    for passage in passages:
        _place_citations(passage, text)
    return passages


def _join_overlapping(placed: list[_Passage]) -> list[_Passage]:
    joined: list[_Passage] = []
    for passage in sorted(placed, key=lambda passage: passage.start):
        if joined and passage.start < joined[-1].end:
            joined[-1].end = max(joined[-1].end, passage.end)
            joined[-1].citations += passage.citations
        else:
            joined.append(passage)
    return joined


def _fill_gaps(text: str, cited: list[_Passage]) -> list[_Passage]:
    """Add what stands between the cited passages. White space goes with a neighbour: Anthropic takes no block of it."""
    whole: list[_Passage] = []
    end = 0
    for passage in (*cited, _Passage(len(text), len(text))):
        if text[end : passage.start].strip():
            whole.append(_Passage(end, passage.start))
        elif whole:
            whole[-1].end = passage.start
        else:
            passage.start = 0
        if passage.end > passage.start or not whole:
            whole.append(passage)
        end = passage.end
    return whole


def _place_citations(passage: _Passage, text: str) -> None:
    """Count the places of citations from the start of their passage; one that covers it needs none."""
    inside = text[passage.start : passage.end]
    first = len(inside) - len(inside.lstrip())
    last = len(inside.rstrip())
    for index, citation in enumerate(passage.citations):
        if citation.start is None:
            continue
        start, end = citation.start - passage.start, None if citation.end is None else citation.end - passage.start
        covers = start <= first and (end is None or end >= last)
        place = (None, None) if covers else (start, end)
        passage.citations[index] = replace(citation, start=place[0], end=place[1])


def _write_passages(opened: Opened, text: _Text, passages: Sequence[_Passage], first: int) -> list[Event]:
    whole, logprobs = "".join(text.pieces), join_arrays(text.logprobs)
    written: list[Event] = []
    for number, passage in enumerate(passages, first):
        written.append(replace(opened, block=number))
        written.append(Delta(number, whole[passage.start : passage.end], logprobs if number == first else None))
        written += [CitationAdded(number, citation) for citation in passage.citations]
        written.append(Closed(number))
    return written
