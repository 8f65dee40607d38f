"""Decide where marks go in a request to an upstream that caches only what is marked, such as Anthropic."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from dragoman.translate.caching.branches import count_common, digest_head, extends_any
from dragoman.translate.hub.caching import ONE_HOUR, CacheMode, CachePlan, SessionMemory

_AUTO = CacheMode.AUTO  # looked up once: on Python 3.11, each look-up of a member is slow
MAX_MARKS = 4
BYTES_PER_TOKEN = 4  # of an upstream's JSON, roughly
MAX_STRAYS = 2  # requests in a row that continue nothing: what such a session writes is never read


class RenderedPrompt(Struct, frozen=True):
    """A rendered request as its vendor reads it: tools, system prompt, settings, messages."""

    blocks: int
    can_mark: Callable[[int], bool]  # whether the block with this index can have a mark
    head: int  # how many blocks are tools and system prompt
    newest_turn: int  # the first block of the newest assistant turn; 0: there is none
    size: int  # bytes
    chain: bytes  # digests of the blocks, marks aside

    @property
    def head_digest(self) -> bytes:
        return digest_head(self.chain, self.head)


def place_marks(prompt: RenderedPrompt, client: Mapping[int, str], plan: CachePlan, minimum: int) -> dict[int, str]:
    """Return the blocks that get a mark, each with its lifetime.

    `client`: the blocks that the client marked. Those marks come first and keep their lifetimes, of more than four the
    latest; one that its block cannot have goes to the block before. `minimum`: tokens below which nothing is cached.
    """
    has_own = plan.mode is _AUTO and prompt.size >= minimum * BYTES_PER_TOKEN
    if not client and not has_own:
        return {}
    moved = ((_find_markable(prompt, index + 1), ttl) for index, ttl in sorted(client.items()))
    marks = dict([(index, ttl) for index, ttl in moved if index is not None][-MAX_MARKS:])
    if has_own:
        _add_own(marks, prompt, plan)
    return _keep_long_first(marks)


def _add_own(marks: dict[int, str], prompt: RenderedPrompt, plan: CachePlan) -> None:
    """Fill up to four marks; the later ones are worth more."""
    chosen = sorted(marks.items())
    for count in _choose_ends(prompt, plan.memory):
        if len(marks) == MAX_MARKS:
            return
        index = _find_markable(prompt, count)
        if index is not None and index not in marks:
            marks[index] = _inherit_ttl(index, chosen, plan.ttl)


def _choose_ends(prompt: RenderedPrompt, memory: SessionMemory | None) -> Iterator[int]:
    """Yield the numbers of blocks after which a mark is wanted: tail, previous end, head."""
    if memory is None or not memory.branches:
        one_shots = None if memory is None else memory.one_shot_heads
        if one_shots is None:
            yield prompt.blocks
            yield prompt.newest_turn
            yield prompt.head
        elif prompt.head_digest in one_shots:
            yield prompt.head
        return
    if memory.strays < MAX_STRAYS or extends_any(prompt.chain, memory.branches):
        yield prompt.blocks
    yield max(count_common(prompt.chain, branch) for branch in memory.branches)
    yield prompt.head


def _find_markable(prompt: RenderedPrompt, count: int) -> int | None:
    """Return the last of the first `count` blocks that can have a mark."""
    return next((index for index in range(count - 1, -1, -1) if prompt.can_mark(index)), None)


def _inherit_ttl(index: int, chosen: Sequence[tuple[int, str]], usual: str) -> str:
    """Return the lifetime of the client's next mark, else of its last one, else the usual one."""
    following = next((ttl for marked, ttl in chosen if marked > index), None)
    return following or (chosen[-1][1] if chosen else usual)


def _keep_long_first(marks: Mapping[int, str]) -> dict[int, str]:
    """Return the marks in order; one before a mark of an hour lives for an hour too, as vendors demand."""
    placed: dict[int, str] = {}
    is_long = False
    for index in sorted(marks, reverse=True):
        is_long = is_long or marks[index] == ONE_HOUR
        placed[index] = ONE_HOUR if is_long else marks[index]
    return placed
