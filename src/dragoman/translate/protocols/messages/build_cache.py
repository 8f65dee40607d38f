"""Encode a translated Messages request with its prompt-cache marks."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from functools import lru_cache, partial
from itertools import chain, islice

import msgspec
from msgspec import Raw

from dragoman.translate.caching.branches import checksum_kind, digest_blocks
from dragoman.translate.caching.lookback import find_window
from dragoman.translate.caching.placing import RenderedPrompt, place_marks
from dragoman.translate.hub.caching import (
    FIVE_MINUTES,
    LIFE_S,
    BlockGroup,
    BuiltPrompt,
    CacheMode,
    MarkedBlocks,
    SentPrompt,
)
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Cache, Role
from dragoman.translate.protocols.messages.wire import MARKED_PLACES, MARKED_TYPES, NO_MARK_ON, Wire

_AUTO = CacheMode.AUTO  # looked up once: on Python 3.11, each look-up of a member is slow
_MARKABLE = frozenset(MARKED_TYPES)
_RUNS = frozenset(("tool_use", "tool_result"))
SETTINGS = ("tool_choice", "thinking", "output_config")  # a change of these invalidates the messages
HEAD = ("tools", "system")
SHORT_BYTES = 4096
_KINDS: dict[object, int] = {kind: checksum_kind(kind) for kind in (*HEAD, *(role.value for role in Role))}
_SETTINGS_KINDS = [checksum_kind("settings")] * len(SETTINGS)
_encode = msgspec.json.Encoder().encode
Marked = Iterable[tuple[Wire, Cache]]


def encode_with_marks(wire: Wire, marked: Marked, target: Target) -> bytes:
    """Encode a request; `marked` are the blocks and tools that the client marked."""
    plan = target.cache
    client = {id(block) for block, _ in marked}
    if plan.mode is not _AUTO and not client and plan.memory is None:
        return _encode(wire)
    blocks = _Blocks(wire, _find_unmarkable(target.quirks))
    own = blocks.find_marked(client) if client else ()
    prompt, minimum = blocks.make_prompt(), target.profile.cache_minimum
    marks = place_marks(prompt, dict.fromkeys(own, plan.ttl), plan, minimum)
    if plan.take is not None:
        plan.take(blocks.describe(prompt, marks, minimum))
    # To encode what is short once more takes less time than to put it together.
    return _encode(blocks.write(wire, marks) if marks or prompt.size > SHORT_BYTES else wire)


@lru_cache(maxsize=64)
def _find_unmarkable(quirks: frozenset[str]) -> frozenset[str]:
    return frozenset(place for place in MARKED_PLACES if NO_MARK_ON + place in quirks)


class _Blocks:
    """The blocks of a request in the vendor's order. Each is encoded once, for its digest and for the body."""

    def __init__(self, wire: Wire, unmarkable: frozenset[str]) -> None:
        self._unmarkable = unmarkable  # places where the host refuses marks
        self._lists = {name: _list_of(wire[name]) for name in HEAD if name in wire}
        self._messages = _list_of(wire["messages"])
        self._contents = [_list_of(message["content"]) for message in self._messages]
        self._tools = len(self._lists.get("tools", ()))
        self._blocks = list(chain.from_iterable(self._lists.values()))
        self._head = len(self._blocks)
        self._blocks += ({name: wire.get(name)} for name in SETTINGS)
        self._blocks += chain.from_iterable(self._contents)
        self._texts = list(map(_encode, self._blocks))
        self._sizes = tuple(map(len, self._texts))

    def make_prompt(self) -> RenderedPrompt:
        """Return what marks are placed by."""
        kinds: list[int] = []
        newest_turn = 0
        for name, blocks in self._lists.items():
            kinds += [_KINDS[name]] * len(blocks)
        kinds += _SETTINGS_KINDS
        for message, content in zip(self._messages, self._contents, strict=True):
            role = message["role"]
            if role == "assistant":
                newest_turn = len(kinds)
            kinds += [_KINDS[role]] * len(content)
        digests = digest_blocks(self._texts, self._sizes, kinds)
        return RenderedPrompt(len(self._texts), self._can_mark, self._head, newest_turn, sum(self._sizes), digests)

    def describe(self, prompt: RenderedPrompt, marks: Mapping[int, str], minimum: int) -> BuiltPrompt:
        """Return what is remembered of the request with these marks, and what is judged before."""
        ttl = marks[max(marks)] if marks else FIVE_MINUTES  # of several lifetimes, the shortest comes last
        written = max(marks) + 1 if marks else 0
        return BuiltPrompt(
            SentPrompt(prompt.chain, prompt.head_digest, written, LIFE_S[ttl]),
            self._sizes,
            self._list_groups,
            MarkedBlocks(tuple(marks), partial(find_window, self._find_run)),
            minimum,
        )

    def _list_groups(self) -> Iterator[BlockGroup]:
        texts = iter(self._texts)

        def make_group(section: str, pointer: str, blocks: Sized, names: tuple[str, ...] = ()) -> BlockGroup:
            return BlockGroup(section, 0, pointer, list(islice(texts, len(blocks))), names=names)

        for name, blocks in self._lists.items():
            yield make_group(name, f"/{name}", blocks)
        yield make_group("settings", "", SETTINGS, SETTINGS)
        for number, content in enumerate(self._contents):
            yield make_group("messages", f"/messages/{number}/content", content)

    def _find_run(self, index: int) -> str | None:
        """Return what neighbouring blocks have to be to have one position in common; empty: it has none."""
        if self._head <= index < self._head + len(SETTINGS):
            return ""
        kind = self._blocks[index].get("type")
        return kind if isinstance(kind, str) and kind in _RUNS else None

    def find_marked(self, client: Collection[int]) -> list[int]:
        """Return the indexes of the blocks that the client marked, given their identities."""
        return [index for index, block in enumerate(self._blocks) if id(block) in client]

    def write(self, wire: Wire, marks: Mapping[int, str]) -> Wire:
        """Return the request with these marks."""
        encoded: list[object] = list(map(Raw, self._texts))
        for index, ttl in marks.items():
            control = {"type": "ephemeral"} if ttl == FIVE_MINUTES else {"type": "ephemeral", "ttl": ttl}
            encoded[index] = {**self._blocks[index], "cache_control": control}
        written, at = dict(wire), 0
        for name, blocks in self._lists.items():
            written[name] = encoded[at : (at := at + len(blocks))]
        at += len(SETTINGS)
        written["messages"] = [
            {"role": message["role"], "content": encoded[at : (at := at + len(content))]}
            for message, content in zip(self._messages, self._contents, strict=True)
        ]
        return written

    def _can_mark(self, index: int) -> bool:
        block = self._blocks[index]
        if index < self._tools:
            return "defer_loading" not in block and "tools" not in self._unmarkable
        kind = block.get("type")
        if kind not in _MARKABLE or ("system" if index < self._head else kind) in self._unmarkable:
            return False
        text = block.get("text", "x")
        return isinstance(text, str) and bool(text) and not text.isspace()


def _list_of(value: object) -> list[Wire]:
    assert isinstance(value, list)
    return value
