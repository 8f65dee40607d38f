"""Encode blocks of a reply as parts of a candidate, with signatures that carry reasoning, and as metadata."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec
from msgspec import Struct

from dragoman.translate.hub.events import CallBlock, HostedBlock
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, Thought, seal_thoughts
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.server_tools import (
    MAX_RUNS_BYTES,
    SearchFound,
    ToolFailure,
    ToolOutcome,
    WebPage,
    is_sealed_use,
)
from dragoman.translate.passes.server_tools import seal_outcome
from dragoman.translate.protocols.gemini.wire import Wire

_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StepReasoning(Struct, eq=False):
    """The reasoning of a step, until parts have carried it to the client.

    Clients drop thoughts from their history, and some keep the signature of the first text alone. So the first text
    after some reasoning carries that reasoning, and the step's first call carries all of the step. What the gateway's
    tools have returned between them is carried in the same way, but once.
    """

    _step: list[Thought] = []
    _unsent: list[Thought] = []
    _uses_bytes: int = 0

    def add(self, thought: Thought) -> None:
        if thought.text or thought.opaque is not None:
            self._step.append(thought)
            self._unsent.append(thought)

    def add_use(self, hosted: HostedBlock, outcome: ToolOutcome, at: str, ledger: Ledger) -> None:
        """Add what a tool of the gateway returned."""
        token = seal_outcome(hosted, outcome)
        self._uses_bytes += len(token)
        if self._uses_bytes > MAX_RUNS_BYTES:
            why = f"later turns do not have what this tool returned: more than {MAX_RUNS_BYTES} bytes in one reply"
            ledger.record_dropped(at, why)
            return
        self.add(Thought("", Opaque("", OpaqueForm.ENCRYPTED, token)))

    def sign_text(self) -> Wire:
        """Return the field for the next text: the reasoning that no text has carried so far."""
        thoughts, self._unsent = self._unsent, []
        if any(map(is_use, thoughts)):
            self._step = [thought for thought in self._step if not is_use(thought)]
        return _sign(thoughts)

    def sign_call(self) -> Wire:
        """Return the field for a call: nothing, unless it is the first of its step."""
        thoughts, self._step, self._unsent = self._step, [], []
        return _sign(thoughts)


def is_use(thought: Thought) -> bool:
    """Whether this stands for what a tool of the gateway returned."""
    return thought.opaque is not None and is_sealed_use(thought.opaque.payload)


def shows_thoughts(context: ReplyContext) -> bool:
    """Return whether the client requests thoughts; else they reach it in signatures alone."""
    reasoning = context.request.reasoning
    return reasoning is not None and reasoning.show is not None


def _sign(thoughts: list[Thought]) -> Wire:
    return {"thoughtSignature": seal_thoughts(thoughts)} if thoughts else {}


def read_arguments(call: CallBlock, text: str, at: str, ledger: Ledger) -> Wire | msgspec.Raw | None:
    """Return the arguments of a call; None if they were cut off, so that it cannot be run."""
    if call.custom:
        return {"input": text}
    if not text.strip():
        return {}
    try:
        _arguments.decode(text)
    except (ValueError, RecursionError):
        ledger.record_dropped(at, f"the call of {call.name!r} was cut off and its arguments cannot be read")
        return None
    return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1) if "\n" in text or "\r" in text else text.encode())


def encode_call(call: CallBlock, arguments: Wire | msgspec.Raw, context: ReplyContext) -> Wire:
    return {"functionCall": {"id": call.id or context.new_id("call_"), "name": call.name, "args": arguments}}


def encode_hosted(hosted: HostedBlock, at: str, ledger: Ledger) -> list[Wire]:
    """Return the parts that show what a vendor's tool did; searches and fetches are shown as metadata instead."""
    if hosted.kind in ("web_search", "web_fetch"):
        return []
    if hosted.kind == "code_execution":
        ledger.record_approximated(at, "only code and output of an execution are sent")
        code = hosted.input.get("code")
        outcome = "OUTCOME_FAILED" if hosted.failed else "OUTCOME_OK"
        return [
            {"executableCode": {"language": "PYTHON", "code": code if isinstance(code, str) else ""}},
            {"codeExecutionResult": {"outcome": outcome, "output": hosted.output or ""}},
        ]
    if hosted.kind == "image_generation" and hosted.output:
        return [{"inlineData": {"mimeType": hosted.input["media_type"], "data": hosted.output}}]
    ledger.record_dropped(at, f"what {hosted.kind!r} did has no equivalent in Gemini")
    return []


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
            self._ledger.record_dropped(f"{at}/citations", "Gemini cites web pages only by their address")
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
            case WebPage(url=url, title=title):
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


class _Candidate(msgspec.Struct):
    token: str = ""
    logprob: float = 0.0


class _Token(_Candidate):
    top_logprobs: list[_Candidate] = []


_tokens = msgspec.json.Decoder(list[_Token])


def encode_logprobs(arrays: Sequence[msgspec.Raw], ledger: Ledger) -> Wire:
    """Return the field for log probabilities; nothing where the upstream's cannot be read."""
    try:
        tokens = [token for array in arrays for token in _tokens.decode(array)]
    except (ValueError, RecursionError):
        ledger.record_dropped("/logprobs", "the upstream's log probabilities cannot be read")
        return {}
    if not tokens:
        return {}
    tops = [{"candidates": [_rename(top) for top in token.top_logprobs]} for token in tokens if token.top_logprobs]
    result: Wire = {"chosenCandidates": [_rename(token) for token in tokens]}
    return {"logprobsResult": {"topCandidates": tops, **result} if tops else result}


def _rename(candidate: _Candidate) -> Wire:
    return {"token": candidate.token, "logProbability": candidate.logprob}
