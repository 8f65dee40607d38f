"""Reasoning that an upstream refuses to read: which errors say so, and how bytes that pass go on without it.

It is bound to an account, and sometimes to the turns before it. What is left out is remembered for the session.
"""

import re
from collections.abc import Callable, Collection, Iterator
from functools import partial

import msgspec
from msgspec import Struct

from dragoman.translate.framing.jsonedit import Change, Path
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.passes.adapt_turns import REASONING_REJECTED, allow_unbound, digest_payload
from dragoman.translate.protocols.gemini.wire import NO_SIGNATURE
from dragoman.upstreams.provider import Adjustment
from dragoman.upstreams.rejections.changes import Edits, apply
from dragoman.upstreams.rejections.complaint import PATH, make_holes
from dragoman.upstreams.rejections.sent import MESSAGES, Sent, find_key, format_path


class _Sentence(Struct, frozen=True):
    words: str  # a pattern of the whole message
    source: str  # where it was seen
    is_bound: bool = False  # the upstream ignores such reasoning if it is asked to


SENTENCES = (
    _Sentence(
        rf"(?:{PATH}: )?Invalid `(?:signature|data)` in `(?:redacted_)?thinking` block\.?",
        "better-ccflare#52, krouter PR17, claude-code#56708",
    ),
    _Sentence(
        rf"(?:{PATH}: )?Invalid `signature` in `thinking` block\. The block is bound to a different conversation\."
        r"(?: Remove the block, or set `thinking\.block_binding\.prefix_mismatch_behavior` to \"drop_block\"\."
        r"(?: That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header\.)?"
        r"(?: The `(?:redacted_)?thinking` block that preceded this one when it was created is missing from this "
        r"request\.)?)?",
        "platform.claude.com/docs/en/build-with-claude/preserved-thinking/fix-bound-to-a-different-conversation, "
        "KiroCrew#11485, KiroCrew PR11513",
        is_bound=True,
    ),
    _Sentence(
        rf"(?:{PATH}: )?`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified"
        r"(?:\. These blocks must remain as they were in the original response)?\.?",
        "claude-code#19539, claude-code#63203",
    ),
    _Sentence(r"Corrupted thought signature\.?", "gemini-cli#13467, crush#1698"),
    _Sentence(r"Invalid thought signature\.?", "Antigravity-Manager PR3342"),
    _Sentence(
        r"Unable to submit request because Thought signature is not valid\.{0,2}(?: Learn more: https://\S{1,200})?",
        "9router#301, Roo-Code#11716",
    ),
)
_PATTERNS = tuple((re.compile(each.words, re.IGNORECASE), each.is_bound) for each in SENTENCES)
_HOLDERS = {"messages": "content", "gemini": "parts", "chat": "reasoning_details"}  # where it stands in a message
_UNREADABLE = "invalid_encrypted_content"  # OpenAI's code


def adjust_reasoning(failure: Failure) -> Adjustment | None:
    """Drop opaque reasoning that the upstream cannot read, or have the upstream ignore what is of other turns."""
    if failure.code == _UNREADABLE:
        return Adjustment("reasoning dropped", drops_reasoning=True, of_reasoning=True)
    if failure.kind is not Kind.BAD_REQUEST:
        return None
    text = make_holes(failure.message)
    found = next((is_bound for words, is_bound in _PATTERNS if words.fullmatch(text)), None)
    if found is None:
        return None
    if found:
        return Adjustment("reasoning unbound", allow_unbound, of_reasoning=True)
    return Adjustment("reasoning dropped", drops_reasoning=True, of_reasoning=True)


def leave_out(sent: Sent, rejected: Collection[bytes], ledger: Ledger) -> Sent:
    """Return bytes that pass without the opaque reasoning that has these digests; the rest stays as it is."""
    edits = cut_reasoning(sent, partial(_is_rejected, rejected))
    return apply(sent, edits, REASONING_REJECTED, ledger) if edits else sent


Drops = Callable[[str], bool]  # whether an opaque value is left out


def cut_reasoning(sent: Sent, drops: Drops) -> Edits:
    """Return edits that leave out reasoning by its opaque values; of Chat, by the JSON of entries that hold them."""
    values: list[tuple[Path, Change]] = []
    for number, turn in enumerate(sent.turns):
        at = (MESSAGES[sent.protocol], number)
        if sent.protocol == "responses":
            if turn.get("type") == "reasoning" and _is_dropped(turn.get("encrypted_content"), drops):
                values.append((at, None))
            continue
        key = _HOLDERS[sent.protocol]
        parts = turn.get(key)
        if isinstance(parts, list):
            found = list(_find_parts(parts, drops))
            is_emptied = key == "content" and 0 < len(parts) == len(found)
            values += [(at, None)] if is_emptied else [((*at, key, *path), change) for path, change in found]
    return Edits(tuple(values), losses=tuple((format_path(path), LossKind.DROPPED) for path, _ in values))


def _find_parts(parts: list[object], drops: Drops) -> Iterator[tuple[Path, Change]]:
    """Return what becomes of the parts of one message of whose reasoning some is left out.

    Gemini wants a signature at a function call: the documented value that stands for none takes its place.
    """
    for number, part in enumerate(parts):
        match part:
            case {"type": "thinking", "signature": value} | {"type": "redacted_thinking", "data": value}:
                if _is_dropped(value, drops):
                    yield (number,), None
            case {"type": "reasoning.encrypted"}:
                if drops(msgspec.json.encode(part).decode()):
                    yield (number,), None
            case {**fields} if (name := find_key(fields, "thoughtSignature")) is not None:
                value = fields[name]
                if value != NO_SIGNATURE and _is_dropped(value, drops):
                    is_call = find_key(fields, "functionCall") is not None
                    yield (number, name), msgspec.json.encode(NO_SIGNATURE) if is_call else None


def _is_dropped(value: object, drops: Drops) -> bool:
    return isinstance(value, str) and drops(value)


def _is_rejected(rejected: Collection[bytes], value: str) -> bool:
    return digest_payload(value) in rejected
