"""Collect searches, fetched pages and citations of a reply as Gemini's grounding metadata."""

from collections.abc import Sequence
from itertools import accumulate

from dragoman.hub.events import HostedBlock
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Citation
from dragoman.hub.server_tools import Page, SearchFound, ToolFailure, ToolOutcome
from dragoman.protocols.gemini.wire import Wire


class Grounding:
    """What a reply is based on. Offsets count the bytes of all visible text of the reply, as Gemini's do."""

    __slots__ = ("_citations", "_ledger", "_pages", "_queries", "_sources", "_text", "pieces")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._text: list[str] = []  # of each visible block
        self.pieces: list[str] = []  # the visible text of the open block
        self._citations: list[tuple[int, Citation]] = []  # with the number of their block
        self._queries: list[str] = []
        self._sources: dict[tuple[str, str], int] = {}  # address and title -> index
        self._pages: list[Wire] = []

    @property
    def has_text(self) -> bool:
        return any(self._text) or any(self.pieces)

    def close_block(self) -> None:
        self._text.append("".join(self.pieces))
        self.pieces = []

    def add_citation(self, citation: Citation, at: str) -> None:
        """Add a citation of the open block."""
        if citation.url is None:
            self._ledger.note_dropped(f"{at}/citations", "Gemini cites web pages only by their address")
            return
        self._citations.append((len(self._text), citation))

    def add_hosted(self, hosted: HostedBlock) -> None:
        """Add a search or fetch, with the results that a vendor's tool found."""
        query = hosted.input.get("query")
        if hosted.kind == "web_search" and isinstance(query, str) and query:
            self._queries.append(query)
        for result in hosted.results or ():
            if result.url is not None:
                self._find_source(result.url, result.title or result.url)
        if hosted.outcome is not None:
            self.add_outcome(hosted, hosted.outcome)
        elif hosted.kind == "web_fetch" and not hosted.is_ours:
            status = "URL_RETRIEVAL_STATUS_ERROR" if hosted.failed else "URL_RETRIEVAL_STATUS_SUCCESS"
            requested = hosted.input.get("url")
            self._add_page(requested if isinstance(requested, str) else "", status)

    def add_outcome(self, hosted: HostedBlock, outcome: ToolOutcome) -> None:
        """Add what a tool of the gateway returned."""
        match outcome:
            case SearchFound(results=results):
                for result in results:
                    self._find_source(result.url, result.title or result.url)
            case Page(url=url, title=title):
                self._find_source(url, title or url)
                self._add_page(url, "URL_RETRIEVAL_STATUS_SUCCESS")
            case ToolFailure() if hosted.kind == "web_fetch":
                requested = hosted.input.get("url")
                self._add_page(requested if isinstance(requested, str) else "", "URL_RETRIEVAL_STATUS_ERROR")
            case ToolFailure():
                pass  # a failed search has found nothing; the model has read why

    def build(self) -> Wire:
        """Return the candidate's fields, once the reply is complete."""
        fields: Wire = {}
        if self._pages:
            fields["urlContextMetadata"] = {"urlMetadata": self._pages}
        starts = [0, *accumulate(len(text.encode(errors="replace")) for text in self._text)]
        offsets = {block: _count_bytes(self._text[block]) for block, _ in self._citations}
        supports = [
            self._build_support(starts[block], offsets[block], self._text[block], citation)
            for block, citation in self._citations
        ]
        if not (self._queries or self._sources):
            return fields
        metadata: Wire = {"webSearchQueries": self._queries} if self._queries else {}
        metadata["groundingChunks"] = [{"web": {"uri": url, "title": title}} for url, title in self._sources]
        metadata["groundingSupports"] = supports
        return {**fields, "groundingMetadata": metadata}

    def _build_support(self, before: int, offsets: Sequence[int], text: str, citation: Citation) -> Wire:
        """Return a citation of a block that begins after `before` bytes. One of the whole block does not repeat it."""
        start = min(citation.start or 0, len(text))
        end = len(text) if citation.end is None else min(max(citation.end, start), len(text))
        segment: Wire = {"startIndex": before + offsets[start], "endIndex": before + offsets[end]}
        if end - start < len(text):
            segment["text"] = text[start:end]
        source = self._find_source(citation.url or "", citation.title or citation.url or "")
        return {"segment": segment, "groundingChunkIndices": [source]}

    def _find_source(self, url: str, title: str) -> int:
        return self._sources.setdefault((url, title), len(self._sources))

    def _add_page(self, url: str, status: str) -> None:
        self._pages.append({"retrievedUrl": url, "urlRetrievalStatus": status})


def _count_bytes(text: str) -> Sequence[int]:
    """Return the number of bytes before each character, and before the end."""
    if text.isascii():
        return range(len(text) + 1)
    return [0, *accumulate(len(character.encode(errors="replace")) for character in text)]
