"""Turn Markdown links to sources that the model was shown into citations; the text itself is never changed."""

import re
from collections.abc import Sequence
from itertools import chain
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Raw
from msgspec.structs import replace

from dragoman.translate.framing.hostnames import encode_host
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
from dragoman.translate.hub.request import Citation, CitedDocument, Document, Request, Role, ToolResult
from dragoman.translate.hub.server_tools import SearchFound, ToolOutcome, WebPage
from dragoman.translate.passes.earlier_uses import ReadUses

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
    """The web addresses that the model was shown, each with its citation; pages are numbered as documents."""

    def __init__(self) -> None:
        self._by_url: dict[str, Citation] = {}
        self._documents = 0  # in the conversation so far

    def add(self, outcome: ToolOutcome) -> None:
        match outcome:
            case SearchFound():
                for result in outcome.read:
                    self._add(_cite(result.url, result.title, result.text))
            case WebPage(url=url, title=title, text=text, pdf=pdf, is_citable=is_citable):
                cited = _cite(url, title, text)
                place = CitedDocument(self._documents, pdf is not None, 0, len(cited.quoted or ""))
                self._documents += 1
                if is_citable:
                    self._add(replace(cited, document=place))
            case _:
                pass

    def skip_documents(self, count: int) -> None:
        """Count documents that are no sources."""
        self._documents += count

    def find(self, url: str) -> Citation | None:
        return self._by_url.get(url) or self._by_url.get(_normalise(url))

    def _add(self, citation: Citation) -> None:
        url = citation.url or ""
        self._by_url.setdefault(url, citation)
        self._by_url.setdefault(_normalise(url), citation)


def _cite(url: str, title: str, text: str) -> Citation:
    return Citation(url, title, text[:MAX_QUOTED] or None)


def find_earlier_sources(request: Request, read_uses: ReadUses) -> Sources:
    """Return the sources that the model was shown in earlier turns."""
    sources = Sources()
    for turn in request.turns:
        results = (part.content for part in turn.parts if isinstance(part, ToolResult))
        parts = chain(turn.parts, *results)
        sources.skip_documents(sum(isinstance(part, Document) for part in parts))
        for use in read_uses(turn.parts).values() if turn.role is Role.ASSISTANT else ():
            # Responses keeps the address of an opened page, but nothing that could be cited.
            if use is not None and use.outcome is not None and (use.is_ours or isinstance(use.outcome, SearchFound)):
                sources.add(use.outcome)
    return sources


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
        self._logprobs: dict[int, list[tuple[int, Raw]]] = {}  # text block -> those of held text, with where that ends
        self._numbers: dict[int, int] = {}  # block -> the number it is passed on with
        self._closed: set[int] = set()  # text blocks of which the part before a link is closed
        self._next = 0

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Opened(block=block, what=TextBlock()):
                self._held[block], self._length[block], self._logprobs[block] = "", 0, []
                self._closed.add(block)  # opened when there is text
                return ()
            case Opened(block=block, what=what):
                return (Opened(self._number(block), what),)
            case Delta(block=block, text=text, logprobs=logprobs) if block in self._held:
                if not text and logprobs is None:
                    return ()
                whole = self._held[block] + text
                if logprobs is not None:
                    self._logprobs[block].append((self._length[block] + len(whole), logprobs))
                return self._scan(block, whole) if "[" in whole else [*self._reopen(block), self._pass(block, text)]
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
                return (self._renumber(event),)

    def finish(self) -> Sequence[Event]:
        return self._release()

    def _release(self) -> list[Event]:
        """Return the text that is held of blocks which will not be closed."""
        out: list[Event] = []
        for block, rest in self._held.items():
            out += self._pass_plain(block, rest)
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
                out += self._pass_plain(block, text[place:start])
                out += self._cite(block, link.group(), source)
                place = link.end()
            elif link is None and len(text) <= end and _BEGINNING.fullmatch(text, start):
                break
            start = text.find("[", max(place, start + 1))
        cut = len(text) if start < 0 else start
        self._held[block] = text[cut:]
        return out + self._pass_plain(block, text[place:cut])

    def _pass_plain(self, block: int, text: str) -> list[Event]:
        return [*self._reopen(block), self._pass(block, text)] if text else []

    def _cite(self, block: int, text: str, citation: Citation) -> list[Event]:
        if not self._apart:
            opening = self._reopen(block)
            start = self._length[block]
            passed = self._pass(block, text)
            placed = replace(citation, start=start, end=start + len(text))
            return [*opening, passed, CitationAdded(self._numbers[block], placed)]
        out: list[Event] = []
        if block not in self._closed:
            out.append(Closed(self._numbers[block]))
        out += self._open(block)
        number = self._numbers[block]
        out += [CitationAdded(number, citation), self._pass(block, text), Closed(number)]
        self._closed.add(block)
        return out

    def _reopen(self, block: int) -> list[Event]:
        return self._open(block) if block in self._closed else []

    def _open(self, block: int) -> list[Event]:
        self._closed.discard(block)
        return [Opened(self._number(block), TextBlock())]

    def _pass(self, block: int, text: str) -> Event:
        """Pass text on, with the log probabilities of the deltas that end in it."""
        self._length[block] += len(text)
        kept = self._logprobs[block]
        passed = [logprobs for end, logprobs in kept if end <= self._length[block]]
        del kept[: len(passed)]
        return Delta(self._numbers[block], text, join_arrays(passed))

    def _number(self, block: int) -> int:
        self._numbers[block] = self._next
        self._next += 1
        return self._numbers[block]

    def _renumber(self, event: Event) -> Event:
        if isinstance(event, Delta | OpaqueAdded | CitationAdded | ToolReturned | Closed):
            return replace(event, block=self._numbers[event.block])
        return event


def _normalise(url: str) -> str:
    """Write an address so that spellings which mean the same page are equal."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.lower()
        host = host if host.isascii() else encode_host(host)
    except ValueError:
        return url
    return urlunsplit((parts.scheme.lower(), host, unquote(parts.path).rstrip("/"), unquote(parts.query), ""))
