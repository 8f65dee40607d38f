"""Bytes that pass without the reasoning of other issuers, which a client has from replies of another upstream.

A conversation that comes back to the upstream of its own protocol then goes on with the bytes that are in the cache.
"""

from collections.abc import Collection, Iterator
from functools import partial

import msgspec

from dragoman.translate.framing.jsonedit import EVERY, Change, Path, Put
from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX, Opaque, decode_envelope, unseal_thoughts
from dragoman.translate.hub.server_tools import is_sealed_use
from dragoman.translate.protocols.gemini.wire import NO_SIGNATURE
from dragoman.upstreams.rejections.changes import Edits, apply
from dragoman.upstreams.rejections.reasoning import cut_reasoning
from dragoman.upstreams.rejections.sent import MESSAGES, Sent, expand, find_key, format_path, get_value

_THINKING = frozenset(("thinking", "redacted_thinking"))
_CHAT_REASONING = ("reasoning_details", "reasoning_content", "reasoning")
OTHER_ISSUER = "reasoning that another vendor issued"
NO_BUDGET = "a thinking budget needs the thinking before the last calls, which another vendor issued"


def leave_out_foreign(sent: Sent, issuer: str, envelope_start: bytes) -> tuple[Sent, Ledger] | None:
    """Return bytes that pass without the reasoning of others than this issuer; None if they must be translated.

    That is so if something else is wrapped, or to be opened. `envelope_start`: how a wrapped JSON string begins.
    """
    edits, signatures = cut_reasoning(sent, partial(_is_foreign, issuer)), _find_call_signatures(sent, issuer)
    if not (edits or signatures):
        return None
    changed = {path[1] for path, _ in edits.values}
    beside = [value for number in changed if isinstance(number, int) for value in _cut_beside(sent, number)]
    beside += [(path, None) for path in signatures]
    losses = (*edits.losses, *((format_path(path), LossKind.DROPPED) for path in signatures))
    ledger = Ledger()
    if _lacks_thinking(sent, changed):
        beside.append((("thinking",), None))
        ledger.record_dropped("/thinking", NO_BUDGET)
    cut = apply(sent, Edits((*edits.values, *beside), losses=losses), OTHER_ISSUER, ledger)
    return None if envelope_start in cut.body else (cut, ledger)


def _find_call_signatures(sent: Sent, issuer: str) -> list[Path]:
    """Return where a Chat client keeps what Gemini signed of a call."""
    if sent.protocol != "chat":
        return []
    paths = expand(("messages", EVERY, "tool_calls", EVERY, "extra_content", "google", "thought_signature"), sent.tree)
    values = [(path[:-2], get_value(sent.tree, path)) for path in paths]
    return [path for path, value in values if isinstance(value, str) and _is_foreign(issuer, value)]


def _is_foreign(issuer: str, value: str) -> bool:
    """Whether an opaque value is an envelope of ours that holds nothing for this issuer, and no use of a tool."""
    if value.startswith("{"):  # an entry of Chat's reasoning_details
        entry = parse_or(value.encode(), dict[str, object], {})
        value = str(entry.get("data"))
    if value.startswith(ENVELOPE_PREFIX):
        return _is_for_others(decode_envelope(value), issuer)
    thoughts = unseal_thoughts(value)
    return thoughts is not None and all(_is_for_others(thought.opaque, issuer) for thought in thoughts)


def _is_for_others(opaque: Opaque | None, issuer: str) -> bool:
    return opaque is None or (opaque.issuer != issuer and not is_sealed_use(opaque.payload))


def _lacks_thinking(sent: Sent, changed: Collection[object]) -> bool:
    """Whether results are sent of calls whose thinking is left out, with a thinking budget, which demands it.

    It may stand before the newest calls, or before the first ones since the user has spoken. Adaptive thinking does not
    demand it.
    """
    thinking, turns = sent.tree.get("thinking"), sent.turns
    if sent.protocol != "messages" or not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return False
    if not turns or "tool_result" not in _list_kinds(turns[-1]):
        return False
    replies = list[int]()  # from the newest on
    for number in range(len(turns) - 1, -1, -1):
        if turns[number].get("role") == "assistant":
            replies.append(number)
        elif replies and set(_list_kinds(turns[number])) != {"tool_result"}:
            break
    if not any(number in changed for number in replies):
        return False
    return not any(
        number not in changed and not _THINKING.isdisjoint(_list_kinds(turns[number]))
        for number in (replies[0], replies[-1])
    )


def _list_kinds(turn: dict[str, object]) -> list[object]:
    content = turn.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text"}]
    return [block.get("type") for block in blocks if isinstance(block, dict)]


def _cut_beside(sent: Sent, number: int) -> list[tuple[Path, Change]]:
    """Return what else becomes of a message whose reasoning is left out: the text of the reasoning goes, too."""
    turn, at = sent.turns[number], (MESSAGES[sent.protocol], number)
    if sent.protocol == "chat":
        return [((*at, name), None) for name in _CHAT_REASONING if name in turn]
    parts = turn.get("parts")
    return list(_cut_thoughts(parts, (*at, "parts"))) if isinstance(parts, list) else []


def _cut_thoughts(parts: list[object], at: Path) -> Iterator[tuple[Path, Change]]:
    """Cut the thoughts that Gemini's clients show, and give the first call the signature that stands for none."""
    for number, part in enumerate(parts):
        if isinstance(part, dict) and part.get("thought") is True:
            yield (*at, number), None
    first = next((number for number, part in enumerate(parts) if find_key(part, "functionCall") is not None), None)
    if first is not None and find_key(parts[first], "thoughtSignature") is None:
        yield (*at, first, "thoughtSignature"), Put(msgspec.json.encode(NO_SIGNATURE))
