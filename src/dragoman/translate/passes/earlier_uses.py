"""Write earlier uses of the gateway's own tools as calls and results, or as text for a vendor with tools of its own.

Both are the same bytes every time for the same conversation, so that a vendor's prompt cache stays valid.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Citation, Foreign, Part, Request, Role, Text, ToolCall, ToolResult, Turn
from dragoman.translate.hub.server_tools import (
    CallPlace,
    SearchFound,
    ServerToolUse,
    ToolFailure,
    ToolOutcome,
    WebPage,
    is_own_source,
)
from dragoman.translate.passes.server_tools import list_results, measure_part, write_arguments, write_result

ReadUses = Callable[[Sequence[Part]], Mapping[int, ServerToolUse | None]]
Uses = Mapping[int, ServerToolUse | None]  # by index of the part; None: a part that belongs to another


def find_unrun_uses(request: Request, read_uses: ReadUses, kinds: Collection[str]) -> tuple[ServerToolUse, ...]:
    """Return the uses in the last assistant turn that have no result: a reply was paused before they ran."""
    last = next((turn for turn in reversed(request.turns) if turn.role is Role.ASSISTANT), None)
    uses = () if last is None else read_uses(last.parts).values()
    return tuple(use for use in uses if use is not None and use.outcome is None and use.kind in kinds)


class WritingRules(Struct, frozen=True):
    """How the calls and results of a request are written for its upstream."""

    names: Mapping[str, str]  # kind -> the function's name
    documents: bool  # its tool results may hold PDFs
    ran: Mapping[str, ToolResult]  # by id, of uses that had no result in the client's request
    cites_apart: bool = True  # the client's protocol sets a cited text apart from the text around it


def write_earlier_uses(request: Request, read_uses: ReadUses, rules: WritingRules, ledger: Ledger) -> Request:
    """Split turns at earlier server tool uses: the call, its result, then the rest of the reply.

    Calls and results are those of the rounds in which the tools ran.
    """
    turns: list[Turn] = []
    is_changed = False
    pending: list[ToolResult] = []  # of server calls beside client calls, whose results stand in the next turn
    for turn, uses in zip(request.turns, _pair_uses(request.turns, read_uses), strict=True):
        if pending:
            if turn.role is Role.USER:
                turn = _with_results(turn, pending, turns[-1])
            else:
                turns.append(Turn(Role.USER, tuple(pending)))
            pending = []
        if not uses:
            turns.append(turn)
            continue
        is_changed = True
        split = _SplitTurn(turn, rules, ledger)
        for index, part in enumerate(turn.parts):
            split.add(part, uses.get(index), is_used=index in uses)
        pending = split.finish()
        turns += split.turns
    if pending:
        turns.append(Turn(Role.USER, tuple(pending)))
    return replace(request, turns=tuple(turns)) if is_changed else request


def _pair_uses(turns: Sequence[Turn], read_uses: ReadUses) -> list[Uses]:
    """Return the uses of each turn. A result that stands in a later turn than its call belongs to the call."""
    found = [dict(read_uses(turn.parts)) if turn.role is Role.ASSISTANT else {} for turn in turns]
    waiting: dict[str, tuple[dict[int, ServerToolUse | None], int]] = {}  # id of a use without result -> its place
    for uses in found:
        for index, use in list(uses.items()):
            if use is None:
                continue
            if use.outcome is None:
                waiting[use.id] = (uses, index)
            elif use.id in waiting:
                earlier, place = waiting.pop(use.id)
                call = earlier[place]
                assert call is not None
                earlier[place] = replace(use, input=call.input, place=call.place, is_result=False)
                uses[index] = None
            elif use.is_result:
                del uses[index]  # its call is gone
    return list(found)


class _SplitTurn:
    """Splits one assistant turn into its rounds, each with the results of its calls."""

    def __init__(self, turn: Turn, rules: WritingRules, ledger: Ledger) -> None:
        self.turns: list[Turn] = []
        self._turn = turn
        self._rules = rules
        self._ledger = ledger
        self._parts: list[Part] = []  # of the round so far
        self._results: list[ToolResult] = []
        self._round: CallPlace | None = None  # the last call; None: it is not known where its round ends
        self._rest = 0  # size of the parts that still belong to the round

    def add(self, part: Part, use: ServerToolUse | None, *, is_used: bool) -> None:
        if use is not None:
            if self._results and _round_of(use.place) != _round_of(self._round):
                self._end_round()
            name = self._rules.names.get(use.kind, use.kind)
            self._parts.append(ToolCall(use.call_id, name, write_arguments(use.input), part.at))
            ran = self._rules.ran.get(use.id)
            result = self._write_result(use, part.at) if ran is None else replace(ran, call_id=use.call_id)
            self._results.append(result)
            self._round, self._rest = use.place, 0 if use.place is None else use.place.rest
        elif not is_used:
            self._add_part(part)

    def finish(self) -> list[ToolResult]:
        """Return the results that the next turn must hold, beside those of the client's calls."""
        if self._parts:
            self.turns.append(self._write_turn())
        answered = {result.call_id for result in self._results}
        if any(isinstance(part, ToolCall) and part.id not in answered for part in self._parts):
            return self._results
        if self._results:
            self.turns.append(Turn(Role.USER, tuple(self._results)))
        return []

    def _add_part(self, part: Part) -> None:
        size = self._rest
        if isinstance(part, Text) and 0 < size < len(part.text):  # the client has joined the texts of two rounds
            self._add_part(replace(part, text=part.text[:size]))
            part = replace(part, text=part.text[size:])
        if self._results and not self._is_of_round(part):
            self._end_round()
        self._parts.append(part)

    def _is_of_round(self, part: Part) -> bool:
        """Whether a part that follows a call is of the same round."""
        if self._round is None:  # the model went on after its tools, unless it has also called one of the client's
            return isinstance(part, ToolCall)
        size, rest = measure_part(part), self._rest
        self._rest -= size
        return not size or rest > 0

    def _write_turn(self) -> Turn:
        return replace(self._turn, parts=_join_texts(self._parts) if self._rules.cites_apart else tuple(self._parts))

    def _end_round(self) -> None:
        self.turns += [self._write_turn(), Turn(Role.USER, tuple(self._results))]
        self._parts, self._results, self._round, self._rest = [], [], None, 0

    def _write_result(self, use: ServerToolUse, at: str) -> ToolResult:
        documents, ledger = self._rules.documents, self._ledger
        if use.outcome is None:
            return ToolResult(use.call_id, (Text("This tool has not run."),), at, is_error=True)
        if not use.is_ours:
            _record_foreign(use.outcome, at, ledger)
        elif not use.is_whole:
            ledger.record_approximated(
                at, "not all that this tool returned has come back, so the model reads less of it"
            )
        if isinstance(use.outcome, WebPage) and use.outcome.pdf is not None and not documents:
            ledger.record_dropped(at, "this upstream cannot read a PDF that a tool returned")
        result = write_result(use.call_id, use.outcome, documents=documents)
        return replace(result, at=at, content=tuple(replace(part, at=at) for part in result.content))


def _round_of(place: CallPlace | None) -> int | None:
    return None if place is None else place.round


def _record_foreign(outcome: ToolOutcome, at: str, ledger: Ledger) -> None:
    match outcome:
        case SearchFound():
            ledger.record_approximated(at, "only the titles and URLs of another vendor's search results can be read")
        case WebPage():
            ledger.record_approximated(at, "only the address of a page that was opened can be read")
        case ToolFailure():
            pass


def _join_texts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts; texts that only a citation has set apart become one again."""
    joined: list[Part] = []
    texts: list[Text] = []  # that become one
    is_cited = False
    for part in parts:
        if isinstance(part, Text) and (not texts or is_cited or part.citations):
            texts.append(part)
        else:
            joined += _join_pieces(texts)
            texts = [part] if isinstance(part, Text) else []
            is_cited = False
            if not texts:
                joined.append(part)
        is_cited = is_cited or any(text.citations for text in texts[-1:])
    return (*joined, *_join_pieces(texts))


def _join_pieces(texts: Sequence[Text]) -> tuple[Text, ...]:
    if len(texts) < 2:
        return tuple(texts)
    citations = tuple(citation for text in texts for citation in text.citations)
    cache = next((text.cache for text in reversed(texts) if text.cache), None)
    return (replace(texts[0], text="".join(text.text for text in texts), citations=citations, cache=cache),)


def _with_results(turn: Turn, results: list[ToolResult], calling: Turn) -> Turn:
    """Put results of server calls beside those of the client's calls, in the order of the calls."""
    order = {part.id: place for place, part in enumerate(calling.parts) if isinstance(part, ToolCall)}
    own = list(takewhile(lambda part: isinstance(part, ToolResult), turn.parts))
    leading = [part for part in (*results, *own) if isinstance(part, ToolResult)]
    leading.sort(key=lambda result: order.get(result.call_id, len(order)))
    return replace(turn, parts=(*leading, *turn.parts[len(own) :]))


def write_own_uses_as_text(request: Request, read_uses: ReadUses, ledger: Ledger) -> Request:
    """Replace the gateway's own searches and citations; what the vendor wrote itself stays as it is."""
    turns = tuple(
        _rewrite_own_uses(turn, read_uses(turn.parts), ledger) if turn.role is Role.ASSISTANT else turn
        for turn in request.turns
    )
    is_same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if is_same else replace(request, turns=turns)


def _rewrite_own_uses(turn: Turn, uses: Uses, ledger: Ledger) -> Turn:
    results = {use.id for index, use in uses.items() if use is not None and _is_text_for_vendor(turn.parts[index], use)}
    parts: list[Part] = []
    owned = False  # whether the next result belongs to a use that is written as text
    for index, part in enumerate(turn.parts):
        use = uses.get(index)
        if use is not None:
            owned = use.id in results
            parts.append(_write_as_text(use, part.at, ledger) if owned else part)
        elif index in uses and owned:
            owned = False
        else:
            parts.append(_without_tokens(part, ledger) if isinstance(part, Text) else part)
    is_same = len(parts) == len(turn.parts) and all(a is b for a, b in zip(parts, turn.parts, strict=True))
    return turn if is_same else replace(turn, parts=tuple(parts))


def _is_text_for_vendor(part: Part, use: ServerToolUse) -> bool:
    """Whether the vendor could not read what the gateway's tool returned in the blocks of its own protocol."""
    if isinstance(part, Foreign) and part.use is not None:
        return True
    return use.is_ours and isinstance(use.outcome, SearchFound) and bool(use.outcome.results or use.outcome.text)


def _write_as_text(use: ServerToolUse, at: str, ledger: Ledger) -> Text:
    if isinstance(use.outcome, SearchFound):
        ledger.record_approximated(at, "a search that the gateway ran is sent to its vendor's model as text")
        found = use.outcome.text or list_results(use.outcome.read)
        return Text(f"Web search for {use.input.get('query', '')!r}:\n\n{found}", at)
    assert use.outcome is not None
    ledger.record_approximated(at, "what a tool of the gateway returned is sent to its vendor's model as text")
    texts = (part.text for part in write_result(use.id, use.outcome, documents=False).content if isinstance(part, Text))
    return Text("".join(texts), at)


def _without_tokens(part: Text, ledger: Ledger) -> Text:
    kept = tuple(citation for citation in part.citations if not _is_ours(citation))
    if len(kept) == len(part.citations):
        return part
    ledger.record_dropped(f"{part.at}/citations", "a citation that the gateway wrote cannot be returned to a vendor")
    return replace(part, citations=kept)


def _is_ours(citation: Citation) -> bool:
    record = citation.raw
    values = record.values() if isinstance(record, dict) else ()
    return any(map(is_own_source, values))
