"""Encode a translated Messages request with its prompt-cache marks."""

from collections.abc import Iterable, Mapping

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
Marked = Iterable[tuple[Wire, Cache]]


def encode_with_marks(wire: Wire, marked: Marked, target: Target, ledger: Ledger) -> bytes:
    """Encode a request; `marked` are the blocks and tools that the client marked."""
    plan = target.cache
    client = {id(block): cache for block, cache in marked}
    if plan.mode is not CacheMode.AUTO and not client:
        return _encode(wire)
    blocks = _Blocks(wire)
    own = blocks.find_marked(client) if client else {}
    for index in list(own)[:-MAX_MARKS]:
        ledger.record_dropped(own[index].at, f"a request has at most {MAX_MARKS} cache breakpoints")
    prompt = blocks.make_prompt()
    marks = place_marks(prompt, dict.fromkeys(own, plan.ttl), plan, target.profile.cache_minimum)
    plan.take(SentPrompt(prompt.chain, prompt.head_digest))
    return _encode(blocks.write(wire, marks))


class _Blocks:
    """The blocks of a request in the vendor's order. Each is encoded once, for its digest and for the body."""

    def __init__(self, wire: Wire) -> None:
        self._blocks: list[Wire] = []
        self._groups: list[tuple[str, int, int]] = []  # tools, system or a role, and which blocks are of it
        self._newest_turn = 0
        for name in ("tools", "system"):
            if name in wire:
                self._add(name, _list_of(wire[name]))
        self._head = len(self._blocks)
        self._add("settings", [{name: wire.get(name) for name in _SETTINGS}])
        for message in _list_of(wire["messages"]):
            role = str(message["role"])
            if role == "assistant":
                self._newest_turn = len(self._blocks)
            self._add(role, _list_of(message["content"]))
        self._texts = list(map(_encode, self._blocks))

    def _add(self, kind: str, blocks: list[Wire]) -> None:
        start = len(self._blocks)
        self._blocks += blocks
        self._groups.append((kind, start, len(self._blocks)))

    def make_prompt(self) -> RenderedPrompt:
        texts, chain = self._texts, Chain()
        for kind, start, end in self._groups:
            chain.add(kind.encode(), texts[start:end])
        size = sum(map(len, texts))
        return RenderedPrompt(len(texts), self._can_mark, self._head, self._newest_turn, size, chain.join())

    def find_marked(self, client: Mapping[int, Cache]) -> dict[int, Cache]:
        """Return the marks of the client by the index of their block."""
        return {index: client[id(block)] for index, block in enumerate(self._blocks) if id(block) in client}

    def write(self, wire: Wire, marks: Mapping[int, str]) -> Wire:
        """Return the request with these marks."""
        encoded: list[object] = list(map(Raw, self._texts))
        for index, ttl in marks.items():
            control = {"type": "ephemeral"} if ttl == FIVE_MINUTES else {"type": "ephemeral", "ttl": ttl}
            encoded[index] = {**self._blocks[index], "cache_control": control}
        written = dict(wire)
        messages: list[object] = []
        for kind, start, end in self._groups:
            if kind in ("tools", "system") and start < self._head:
                written[kind] = encoded[start:end]
            elif kind != "settings":
                messages.append({"role": kind, "content": encoded[start:end]})
        written["messages"] = messages
        return written

    def _can_mark(self, index: int) -> bool:
        block = self._blocks[index]
        if index < self._head and "text" not in block:  # a tool
            return "defer_loading" not in block
        text = block.get("text", "x")
        return block.get("type") in _MARKABLE and isinstance(text, str) and bool(text) and not text.isspace()


def _list_of(value: object) -> list[Wire]:
    assert isinstance(value, list)
    return value
