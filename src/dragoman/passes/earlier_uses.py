"""Write earlier uses of the gateway's own tools as calls and results, or as text for a vendor with tools of its own.

Both are the same bytes every time for the same conversation, so that a vendor's prompt cache stays valid.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Citation, Part, Request, Role, Text, ToolCall, ToolResult, Turn
from dragoman.hub.server_tools import SearchFound, ServerToolUse, is_own_source
from dragoman.passes.server_tools import list_results, write_result

_MAX_JOINED = 16  # turns of one reply; each is read again with every one that follows

ReadUses = Callable[[Sequence[Part]], Mapping[int, ServerToolUse | None]]


def find_unrun_uses(request: Request, read_uses: ReadUses, kinds: Collection[str]) -> tuple[ServerToolUse, ...]:
    """Return the uses in the last assistant turn that have no result: a reply was paused before they ran."""
    last = next((turn for turn in reversed(request.turns) if turn.role is Role.ASSISTANT), None)
    uses = () if last is None else read_uses(last.parts).values()
    return tuple(use for use in uses if use is not None and use.outcome is None and use.kind in kinds)


def write_earlier_uses(
    request: Request,
    read_uses: ReadUses,
    names: Mapping[str, str],
    ledger: Ledger,
    ran: Mapping[str, ToolResult] | None = None,
) -> Request:
    """Split turns at earlier server tool uses: the call, its result, then the rest of the reply.

    `ran` are the results, by id, of uses that had none in the client's request.
    """
    turns: list[Turn] = []
    is_changed = False
    pending: list[ToolResult] = []  # of server calls beside client calls, whose results stand in the next turn
    for turn in _join_paused(request.turns, read_uses):
        if pending:
            if turn.role is Role.USER:
                turn = _with_results(turn, pending, turns[-1])
            else:
                turns.append(Turn(Role.USER, tuple(pending)))
            pending = []
        uses = read_uses(turn.parts) if turn.role is Role.ASSISTANT else {}
        if not uses:
            turns.append(turn)
            continue
        is_changed = True
        split, pending = _split_turn(turn, uses, names, ran or {}, ledger)
        turns += split
    if pending:
        turns.append(Turn(Role.USER, tuple(pending)))
    return replace(request, turns=tuple(turns)) if is_changed else request


def _join_paused(turns: Sequence[Turn], read_uses: ReadUses) -> Iterator[Turn]:
    """Join an assistant turn to the one before it if that has a use whose result may stand in this one."""
    last: Turn | None = None
    joined = 0
    for turn in turns:
        if last is not None and turn.role is Role.ASSISTANT and joined < _MAX_JOINED and _is_paused(last, read_uses):
            last = replace(last, parts=(*last.parts, *turn.parts))
            joined += 1
            continue
        if last is not None:
            yield last
        last, joined = turn, 0
    if last is not None:
        yield last


def _is_paused(turn: Turn, read_uses: ReadUses) -> bool:
    if turn.role is not Role.ASSISTANT:
        return False
    return any(use is not None and use.outcome is None for use in read_uses(turn.parts).values())


def _split_turn(
    turn: Turn,
    uses: Mapping[int, ServerToolUse | None],
    names: Mapping[str, str],
    ran: Mapping[str, ToolResult],
    ledger: Ledger,
) -> tuple[list[Turn], list[ToolResult]]:
    turns: list[Turn] = []
    parts: list[Part] = []
    results: list[ToolResult] = []
    for index, part in enumerate(turn.parts):
        use = uses.get(index)
        if use is not None:
            arguments = msgspec.json.encode(use.input).decode()
            parts.append(ToolCall(use.id, names.get(use.kind, use.kind), arguments, part.at))
            results.append(ran.get(use.id) or _earlier_result(use, part.at, ledger))
            continue
        if index in uses:
            continue
        if results and not isinstance(part, ToolCall):  # the model went on after its tools
            turns += [replace(turn, parts=_join_texts(parts)), Turn(Role.USER, tuple(results))]
            parts, results = [], []
        parts.append(part)
    if parts:
        turns.append(replace(turn, parts=_join_texts(parts)))
    answered = {result.call_id for result in results}
    if any(isinstance(part, ToolCall) and part.id not in answered for part in parts):
        return turns, results
    if results:
        turns.append(Turn(Role.USER, tuple(results)))
    return turns, []


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


def _earlier_result(use: ServerToolUse, at: str, ledger: Ledger) -> ToolResult:
    if use.outcome is None:
        return ToolResult(use.id, (Text("This tool has not run."),), at, is_error=True)
    if not use.is_ours and isinstance(use.outcome, SearchFound):
        ledger.note_approximated(at, "only the titles and URLs of another vendor's search results can be read")
    return replace(write_result(use.id, use.outcome, documents=False, cites=False), at=at)


def write_own_uses_as_text(request: Request, read_uses: ReadUses, ledger: Ledger) -> Request:
    """Replace the gateway's own searches and citations; what the vendor wrote itself stays as it is."""
    turns = tuple(
        _rewrite_own_uses(turn, read_uses(turn.parts), ledger) if turn.role is Role.ASSISTANT else turn
        for turn in request.turns
    )
    is_same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if is_same else replace(request, turns=turns)


def _rewrite_own_uses(turn: Turn, uses: Mapping[int, ServerToolUse | None], ledger: Ledger) -> Turn:
    results = {use.id: index for index, use in uses.items() if use is not None and _holds_tokens(use)}
    parts: list[Part] = []
    owned = False  # whether the next result belongs to a use that is written as text
    for index, part in enumerate(turn.parts):
        use = uses.get(index)
        if use is not None:
            owned = use.id in results
            parts.append(_write_search(use, part.at, ledger) if owned else part)
        elif index in uses and owned:
            owned = False
        else:
            parts.append(_without_tokens(part, ledger) if isinstance(part, Text) else part)
    is_same = len(parts) == len(turn.parts) and all(a is b for a, b in zip(parts, turn.parts, strict=True))
    return turn if is_same else replace(turn, parts=tuple(parts))


def _holds_tokens(use: ServerToolUse) -> bool:
    return use.is_ours and isinstance(use.outcome, SearchFound) and bool(use.outcome.results)


def _write_search(use: ServerToolUse, at: str, ledger: Ledger) -> Text:
    ledger.note_approximated(at, "a search that the gateway ran is sent to its vendor's model as text")
    assert isinstance(use.outcome, SearchFound)
    return Text(f"Web search for {use.input.get('query', '')!r}:\n\n{list_results(use.outcome.results)}", at)


def _without_tokens(part: Text, ledger: Ledger) -> Text:
    kept = tuple(citation for citation in part.citations if not _is_ours(citation))
    if len(kept) == len(part.citations):
        return part
    ledger.note_dropped(f"{part.at}/citations", "a citation that the gateway wrote cannot be returned to a vendor")
    return replace(part, citations=kept)


def _is_ours(citation: Citation) -> bool:
    record = citation.raw
    values = record.values() if isinstance(record, dict) else ()
    return any(map(is_own_source, values))
