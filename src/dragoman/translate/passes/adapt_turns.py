"""Change the turns of a request so that an upstream accepts them: instructions, reasoning, media."""

from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Document,
    Foreign,
    Image,
    Inline,
    Link,
    Part,
    Request,
    Role,
    Switch,
    Text,
    Thinking,
    ToolResult,
    Turn,
)

INSTRUCTION_ROLES = frozenset((Role.SYSTEM, Role.DEVELOPER))
REASONING_REJECTED = "the upstream rejected the reasoning of earlier turns, so the request was sent without it"
DIGEST_BYTES = 8  # of an opaque value

_Content = Text | Image | Document | Foreign


def split_leading_instructions(turns: tuple[Turn, ...]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Return the instructions at the beginning of a conversation, and the remaining turns."""
    leading = 0
    for turn in turns:
        if turn.role not in INSTRUCTION_ROLES:
            break
        leading += 1
    return turns[:leading], turns[leading:]


def tag_later_instructions(request: Request, ledger: Ledger) -> Request:
    """Return the request with later instructions as user turns, in `<system>` tags.

    They keep their position: moving them would change what they apply to, and invalidate caches.
    """
    leading, turns = split_leading_instructions(request.turns)
    for turn in turns:
        if turn.role in INSTRUCTION_ROLES:
            break
    else:
        return request
    return replace(request, turns=(*leading, *(_tag_turn(turn, ledger) for turn in turns)))


def _tag_turn(turn: Turn, ledger: Ledger) -> Turn:
    if turn.role not in INSTRUCTION_ROLES:
        return turn
    ledger.record_approximated(turn.at, "later instructions are sent as tagged text of the user")
    return replace(turn, role=Role.USER, parts=tuple(_tag_part(part) for part in turn.parts))


def _tag_part(part: Part) -> Part:
    if not isinstance(part, Text) or not part.text.strip():
        return part
    return replace(part, text=f"<system>\n{part.text}\n</system>")


def drop_reasoning(request: Request, ledger: Ledger) -> Request:
    """Return the request without reasoning. A turn with nothing else is removed as well.

    For upstreams that reject a signature of their own: it is bound to its context, or to another account.
    """
    return _drop_thoughts(request, lambda thought: True, ledger)


def drop_rejected(request: Request, ledger: Ledger, rejected: Collection[bytes]) -> Request:
    """Return the request without the reasoning whose opaque values have these digests; other reasoning stays."""
    return _drop_thoughts(
        request,
        lambda thought: thought.opaque is not None and digest_payload(thought.opaque.payload) in rejected,
        ledger,
    )


def digest_reasoning(request: Request) -> list[bytes]:
    """Return digests of the opaque values in a request, in order."""
    parts = (part for turn in request.turns for part in turn.parts)
    return [
        digest_payload(part.opaque.payload) for part in parts if isinstance(part, Thinking) and part.opaque is not None
    ]


def digest_payload(payload: str) -> bytes:
    return blake2b(payload.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _drop_thoughts(request: Request, drops: Callable[[Thinking], bool], ledger: Ledger) -> Request:
    turns = tuple(_drop_from_turn(turn, drops, ledger) for turn in request.turns)
    if all(new is old for new, old in zip(turns, request.turns, strict=True)):
        return request
    kept = tuple(new for new, old in zip(turns, request.turns, strict=True) if new.parts or not old.parts)
    return replace(request, turns=kept)


def allow_unbound(request: Request, ledger: Ledger) -> Request:
    """Return the request with leave to ignore reasoning of another conversation; without reasoning if it is off."""
    reasoning = request.reasoning
    if reasoning is not None and (reasoning.switch is Switch.DISABLED or reasoning.effort == "none"):
        return drop_reasoning(request, ledger)
    ledger.record_approximated(request.pointer("turns"), "the upstream leaves out reasoning of another conversation")
    return replace(request, vendor=replace(request.vendor, drops_unbound=True))


def _drop_from_turn(turn: Turn, drops: Callable[[Thinking], bool], ledger: Ledger) -> Turn:
    parts: list[Part] = []
    for part in turn.parts:
        if isinstance(part, Thinking) and drops(part):
            ledger.record_dropped(part.at, REASONING_REJECTED)
        else:
            parts.append(part)
    return turn if len(parts) == len(turn.parts) else replace(turn, parts=tuple(parts))


def find_links(request: Request, needs_inline: Callable[[Part], bool]) -> list[str]:
    """Return the URLs of linked media that the target needs in the body, each once, in order."""
    urls = {
        part.source.url: None
        for part in _all_parts(request)
        if isinstance(part, Image | Document) and isinstance(part.source, Link) and needs_inline(part)
    }
    return list(urls)


def inline_links(request: Request, fetched: Mapping[str, Inline]) -> Request:
    """Return the request with every fetched link replaced by its content."""
    turns = tuple(_inline_turn(turn, fetched) for turn in request.turns)
    same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if same else replace(request, turns=turns)


def _all_parts(request: Request) -> Iterator[Part]:
    for turn in request.turns:
        for part in turn.parts:
            yield part
            if isinstance(part, ToolResult):
                yield from part.content


def _inline_turn(turn: Turn, fetched: Mapping[str, Inline]) -> Turn:
    parts = tuple(_inline_part(part, fetched) for part in turn.parts)
    same = all(new is old for new, old in zip(parts, turn.parts, strict=True))
    return turn if same else replace(turn, parts=parts)


def _inline_part(part: Part, fetched: Mapping[str, Inline]) -> Part:
    if isinstance(part, ToolResult):
        content = tuple(_inline_media(item, fetched) for item in part.content)
        same = all(new is old for new, old in zip(content, part.content, strict=True))
        return part if same else replace(part, content=content)
    return _inline_media(part, fetched) if isinstance(part, Image | Document) else part


def _inline_media(part: _Content, fetched: Mapping[str, Inline]) -> _Content:
    if not isinstance(part, Image | Document) or not isinstance(part.source, Link):
        return part
    found = fetched.get(part.source.url)
    return part if found is None else replace(part, source=found)
