"""Encode a translated Messages request with its prompt-cache marks."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import itemgetter

import msgspec
from msgspec import Raw

from dragoman.translate.caching.branches import Chain
from dragoman.translate.caching.placing import MAX_MARKS, RenderedPrompt, place_marks
from dragoman.translate.hub.caching import FIVE_MINUTES, CacheMode, SentPrompt
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Cache
from dragoman.translate.protocols.messages.wire import Wire

_MARKABLE = frozenset(("text", "image", "document", "tool_use", "tool_result"))
_SETTINGS = ("tool_choice", "thinking", "output_config")  # a change of these invalidates the messages
_encode = msgspec.json.Encoder().encode
_get_start = itemgetter(0)
Marked = Iterable[tuple[Wire, Cache]]


def encode_with_marks(wire: Wire, marked: Marked, target: Target, ledger: Ledger) -> bytes:
    """Encode a request; `marked` are the blocks and tools that the client marked."""
    plan = target.cache
    client = {id(block): cache for block, cache in marked}
    if plan.mode is not CacheMode.AUTO and not client:
        return _encode(wire)
    blocks = _Blocks()
    encoded = dict(wire)
    for name in ("tools", "system"):
        if name in wire:
            encoded[name] = blocks.add_all(name, _list_of(wire[name]))
    head = len(blocks.blocks)
    blocks.add_all("settings", [{name: wire.get(name) for name in _SETTINGS}])
    encoded["messages"] = [blocks.add_message(message) for message in _list_of(wire["messages"])]
    chain = blocks.chain.join()
    prompt = RenderedPrompt(len(blocks.blocks), blocks.can_mark, head, blocks.newest_turn, blocks.size, chain)
    own = blocks.find_marked(client) if client else {}
    for index in list(own)[:-MAX_MARKS]:
        ledger.record_dropped(own[index].at, f"a request has at most {MAX_MARKS} cache breakpoints")
    blocks.mark(place_marks(prompt, dict.fromkeys(own, plan.ttl), plan, target.profile.cache_minimum))
    plan.take(SentPrompt(chain, prompt.head_digest))
    return _encode(encoded)


class _Blocks:
    """The blocks of a request in the vendor's order, and the lists in which their JSON is sent."""

    def __init__(self) -> None:
        self.blocks: list[Wire] = []
        self.chain = Chain()
        self.size = 0
        self.newest_turn = 0
        self._lists: list[tuple[int, str, list[object]]] = []  # with the number of blocks before each, and its kind

    def add_all(self, kind: str, blocks: list[Wire]) -> list[object]:
        """Add blocks, and return their JSON: what was encoded for the digest is not encoded again."""
        texts = list(map(_encode, blocks))
        encoded: list[object] = list(map(Raw, texts))
        self._lists.append((len(self.blocks), kind, encoded))
        self.blocks += blocks
        self.size += sum(map(len, texts))
        self.chain.add(kind.encode(), texts)
        return encoded

    def add_message(self, message: Wire) -> Wire:
        role = str(message["role"])
        if role == "assistant":
            self.newest_turn = len(self.blocks)
        return {**message, "content": self.add_all(role, _list_of(message["content"]))}

    def can_mark(self, index: int) -> bool:
        block, (_, kind, _) = self.blocks[index], self._find_list(index)
        if kind == "tools":
            return "defer_loading" not in block
        if block.get("type") not in _MARKABLE:
            return False
        text = block.get("text", "x")
        return isinstance(text, str) and bool(text) and not text.isspace()

    def find_marked(self, client: Mapping[int, Cache]) -> dict[int, Cache]:
        """Return the marks of the client by the index of their block."""
        return {index: client[id(block)] for index, block in enumerate(self.blocks) if id(block) in client}

    def mark(self, marks: Mapping[int, str]) -> None:
        for index, ttl in marks.items():
            start, _, encoded = self._find_list(index)
            control = {"type": "ephemeral"} if ttl == FIVE_MINUTES else {"type": "ephemeral", "ttl": ttl}
            encoded[index - start] = {**self.blocks[index], "cache_control": control}

    def _find_list(self, index: int) -> tuple[int, str, list[object]]:
        return self._lists[bisect_right(self._lists, index, key=_get_start) - 1]


def _list_of(value: object) -> list[Wire]:
    assert isinstance(value, list)
    return value
