"""Turn Markdown links to sources that the model was shown into citations; the text itself is never changed."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from msgspec import Raw
from msgspec.structs import replace

from dragoman.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    TextBlock,
    ToolReturned,
)
from dragoman.hub.request import Citation
from dragoman.hub.server_tools import Page, SearchFound, SearchResult, ToolOutcome

MAX_LINK = 2048  # characters that are held back while they may become a link
MAX_QUOTED = 150

_LABEL = r"\[[^\[\]]+\]"
_URL = r"https?://(?:[^()\s]|\([^()\s]*\))"
_LINK = re.compile(rf"{_LABEL}\(({_URL}+)(?:\s+\"[^\"]*\")?\)")
# Every text that becomes a link when the right text follows.
_BEGINNING = re.compile(
    rf"\[[^\[\]]*|{_LABEL}(?:\((?:h|ht|htt|https?|https?:|https?:/|{_URL}*(?:\([^()\s]*)?|{_URL}+\s+(?:\"[^\"]*\"?)?)?)?"
)


class Sources:
    """The web addresses that the model was shown."""

    def __init__(self) -> None:
        self._by_url: dict[str, SearchResult] = {}

    def add(self, outcome: ToolOutcome) -> None:
        match outcome:
            case SearchFound(results=results):
                for result in results:
                    self._add(result)
            case Page(url=url, title=title, text=text):
                self._add(SearchResult(url, title, text))
            case _:
                pass

    def find(self, url: str) -> SearchResult | None:
        return self._by_url.get(url) or self._by_url.get(_normalise(url))

    def _add(self, result: SearchResult) -> None:
        self._by_url.setdefault(result.url, result)
        self._by_url.setdefault(_normalise(result.url), result)


class CiteLinks:
    """Adds a citation for each link to a source.

    `apart`: the link becomes a text block of its own, as Messages wants it; else the citation says where in the block's
    text the link stands, in characters.
    """

    def __init__(self, sources: Sources, *, apart: bool) -> None:
        self._sources = sources
        self._apart = apart
        self._held: dict[int, str] = {}  # text block -> the end of its text that may begin a link
        self._length: dict[int, int] = {}  # text block -> characters passed on
        self._numbers: dict[int, int] = {}  # block -> the number it is passed on with
        self._closed: set[int] = set()  # text blocks of which the part before a link is closed
        self._next = 0

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Opened(block=block, what=TextBlock()):
                self._held[block], self._length[block] = "", 0
                self._closed.add(block)  # opened when there is text
                return ()
            case Opened(block=block, what=what):
                return (Opened(self._number(block), what),)
            case Delta(block=block, text=text, logprobs=logprobs) if block in self._held:
                if not text:
                    return ()
                if not self._held[block] and "[" not in text:
                    return [*self._reopen(block), self._pass(block, text, logprobs)]
                return self._scan(block, self._held[block] + text)
            case Closed(block=block) if block in self._held:
                rest = self._held.pop(block)
                out: list[Event] = [*self._reopen(block), self._pass(block, rest)] if rest else []
                if block in self._closed and not self._length[block]:
                    out += self._reopen(block)  # an empty block stays one
                if block not in self._closed:
                    out.append(Closed(self._numbers[block]))
                return out
            case CitationAdded(block=block) if block in self._held:
                return [*self._reopen(block), CitationAdded(self._numbers[block], event.citation)]
            case Failed():
                return [*self._release(), event]
            case _:
                return (self._moved(event),)

    def finish(self) -> Sequence[Event]:
        return self._release()

    def _release(self) -> list[Event]:
        """Return the text that is held of blocks which will not be closed."""
        out: list[Event] = []
        for block, rest in self._held.items():
            out += self._plain(block, rest)
        self._held.clear()
        return out

    def _scan(self, block: int, text: str) -> list[Event]:
        out: list[Event] = []
        place = 0  # everything before it is passed on
        start = text.find("[")
        while start >= 0:
            end = start + MAX_LINK
            link = _LINK.match(text, start, end)
            source = None if link is None else self._sources.find(link.group(1))
            if link is not None and source is not None:
                out += self._plain(block, text[place:start])
                out += self._cite(block, link.group(), source)
                place = link.end()
            elif link is None and len(text) <= end and _BEGINNING.fullmatch(text, start):
                break
            start = text.find("[", max(place, start + 1))
        cut = len(text) if start < 0 else start
        self._held[block] = text[cut:]
        return out + self._plain(block, text[place:cut])

    def _plain(self, block: int, text: str) -> list[Event]:
        return [*self._reopen(block), self._pass(block, text)] if text else []

    def _cite(self, block: int, text: str, source: SearchResult) -> list[Event]:
        quoted = source.text[:MAX_QUOTED] or None
        if not self._apart:
            opening = self._reopen(block)
            start = self._length[block]
            passed = self._pass(block, text)
            citation = Citation(source.url, source.title, quoted, start, start + len(text))
            return [*opening, passed, CitationAdded(self._numbers[block], citation)]
        out: list[Event] = []
        if block not in self._closed:
            out.append(Closed(self._numbers[block]))
        out += self._open(block)
        number = self._numbers[block]
        citation = Citation(source.url, source.title, quoted)
        out += [CitationAdded(number, citation), self._pass(block, text), Closed(number)]
        self._closed.add(block)
        return out

    def _reopen(self, block: int) -> list[Event]:
        return self._open(block) if block in self._closed else []

    def _open(self, block: int) -> list[Event]:
        self._closed.discard(block)
        return [Opened(self._number(block), TextBlock())]

    def _pass(self, block: int, text: str, logprobs: Raw | None = None) -> Event:
        self._length[block] += len(text)
        return Delta(self._numbers[block], text, logprobs)

    def _number(self, block: int) -> int:
        self._numbers[block] = self._next
        self._next += 1
        return self._numbers[block]

    def _moved(self, event: Event) -> Event:
        if isinstance(event, Delta | OpaqueAdded | CitationAdded | ToolReturned | Closed):
            return replace(event, block=self._numbers[event.block])
        return event


def _normalise(url: str) -> str:
    """Write an address so that spellings which mean the same page are equal."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), parts.query, ""))
