"""Breakpoints and keys of OpenAI's prompt caches, which find most prefixes by themselves."""

from collections.abc import Sequence
from itertools import takewhile

from dragoman.translate.framing.fields import Fields
from dragoman.translate.hub.caching import CacheMode, CachePlan
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Cache, Request, Text
from dragoman.translate.passes.adapt_turns import INSTRUCTION_ROLES

MAX_EXPLICIT = 3  # of the four that a request may write, the implicit one takes one
RETENTION = "prompt_cache_retention"
FIELD = "prompt_cache_breakpoint"
_Part = dict[str, object]


def read_breakpoint(part: Fields) -> Cache | None:
    """Return the breakpoint that a client has set on a part."""
    mark = part.obj(FIELD)
    return None if mark is None else Cache(mark.at, mark.text("ttl"))


def mark_parts(
    request: Request, head: _Part | None, marked: Sequence[_Part], plan: CachePlan, *, same_vendor: bool
) -> None:
    """Set breakpoints on the parts that the client marked, of many on the latest, and on the end of the instructions.

    The latter is `head`: a history that is rewritten leaves all other breakpoints behind. `same_vendor`: the client's
    protocol is OpenAI's too, and what it marked in the instructions is among `marked`.
    """
    chosen = list(marked[-MAX_EXPLICIT:])
    needs_head = plan.mode is CacheMode.AUTO or (not same_vendor and _marks_instructions(request))
    if head is not None and needs_head and len(chosen) < MAX_EXPLICIT:
        chosen.append(head)
    for part in chosen:
        part[FIELD] = {"mode": "explicit"}


def keep_one_lifetime(body: dict[str, object], ledger: Ledger) -> None:
    """Remove the older of two fields that OpenAI rejects together."""
    if RETENTION in body and "prompt_cache_options" in body:
        del body[RETENTION]
        ledger.record_dropped(f"/{RETENTION}", "prompt_cache_options beside it sets the lifetime")


def _marks_instructions(request: Request) -> bool:
    leading = takewhile(lambda turn: turn.role in INSTRUCTION_ROLES, request.turns)
    return any(isinstance(part, Text) and part.cache is not None for turn in leading for part in turn.parts)


def choose_key(request: Request, target: Target) -> str | None:
    """Return the `prompt_cache_key` of a translated request: the client's own, else that of its session."""
    is_taken = target.cache.takes_keys and "plain" not in target.quirks
    return (request.cache_key or target.cache.key) if is_taken else None
