"""Write searches that the gateway ran as text, for a vendor that has the tool itself but cannot read our tokens."""

from collections.abc import Mapping

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Citation, Part, Request, Role, Text, Turn
from dragoman.hub.server_tools import SearchFound, ServerToolUse, unseal_source
from dragoman.passes.server_tools import ReadUses, list_results


def write_own_uses_as_text(request: Request, read_uses: ReadUses, ledger: Ledger) -> Request:
    """Replace the gateway's own searches and citations; what the vendor wrote itself stays as it is."""
    turns = tuple(
        _rewrite(turn, read_uses(turn.parts), ledger) if turn.role is Role.ASSISTANT else turn for turn in request.turns
    )
    is_same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if is_same else replace(request, turns=turns)


def _rewrite(turn: Turn, uses: Mapping[int, ServerToolUse | None], ledger: Ledger) -> Turn:
    results = {use.id: index for index, use in uses.items() if use is not None and _holds_tokens(use)}
    parts: list[Part] = []
    owned = False  # whether the next result belongs to a use that is written as text
    for index, part in enumerate(turn.parts):
        use = uses.get(index)
        if use is not None:
            owned = use.id in results
            parts.append(_text_of(use, part.at, ledger) if owned else part)
        elif index in uses and owned:
            owned = False
        else:
            parts.append(_without_tokens(part, ledger) if isinstance(part, Text) else part)
    is_same = len(parts) == len(turn.parts) and all(a is b for a, b in zip(parts, turn.parts, strict=True))
    return turn if is_same else replace(turn, parts=tuple(parts))


def _holds_tokens(use: ServerToolUse) -> bool:
    return use.is_ours and isinstance(use.outcome, SearchFound) and bool(use.outcome.results)


def _text_of(use: ServerToolUse, at: str, ledger: Ledger) -> Text:
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
    return any(isinstance(value, str) and unseal_source(value) is not None for value in values)
