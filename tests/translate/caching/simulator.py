"""Bill a run of upstream requests by the vendors' documented cache rules and prices.

A token is four bytes of a block's JSON. What a request costs is counted in tokens of plain input: a token that is
read from a cache costs 0.1 of one, or what the model's price says. Forms count: a text that is sent once as a string
and once as a list of one block is not the same prefix.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct

from wire_json import Json, JsonObject

MAX_MARKS = 4
LOOKBACK = 20  # positions, the mark itself included
LIFE_S = {"5m": 300.0, "1h": 3600.0}
BYTES_PER_TOKEN = 4
_UNMARKABLE = ("thinking", "redacted_thinking")
_RUNS = ("tool_use", "tool_result")
_SETTINGS = ("outer", "inner")


class Refused(Exception):
    """The vendor answers 400."""


class Price(Struct, frozen=True):
    """What a token costs, in tokens of plain input."""

    read: float = 0.1
    write_5m: float = 1.25
    write_1h: float = 2.0


class Bill(Struct, frozen=True):
    """The input of one request in tokens, by how it is charged."""

    read: float = 0.0
    write_5m: float = 0.0
    write_1h: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        return self.read + self.write_5m + self.write_1h + self.rest

    def cost(self, price: Price) -> float:
        written = self.write_5m * price.write_5m + self.write_1h * price.write_1h
        return self.read * price.read + written + self.rest


class Block(Struct):
    """A part of the prompt that the vendor caches or misses as a whole."""

    content: bytes  # without its mark
    kind: str
    ttl: str | None = None  # of its mark; None: it has none
    can_mark: bool = True
    is_message_end: bool = False  # OpenAI
    is_implicit: bool = False  # OpenAI: the request's implicit breakpoint


Prompt = list[Block]


def share(bills: Sequence[Bill]) -> float:
    """Return how much of the input was read from the cache, from the second request on."""
    later = bills[1:]
    return sum(bill.read for bill in later) / sum(bill.total for bill in later)


def cost(bills: Iterable[Bill], price: Price) -> float:
    return sum(bill.cost(price) for bill in bills)


def possible_share(prompts: Sequence[Prompt], minimum: int) -> float:
    """Return the share that would be read if every prefix in common with an earlier request were cached."""
    commons = [_longest_common(prompts, index, minimum) for index in range(len(prompts))]
    return sum(commons[1:]) / sum(_tokens(prompt) for prompt in prompts[1:])


def least_cost(prompts: Sequence[Prompt], minimum: int, price: Price) -> float:
    """Return the lowest cost of these requests for a sender that does not know the next one, if no entry expires.

    What an earlier request had is read, and the rest is written. Requests that share nothing cost less unmarked.
    """
    total = 0.0
    for index, prompt in enumerate(prompts):
        read, tokens = _longest_common(prompts, index, minimum), _tokens(prompt)
        written = tokens - read if tokens >= minimum else 0.0
        total += Bill(read=read, write_5m=written, rest=tokens - read - written).cost(price)
    return total


def _longest_common(prompts: Sequence[Prompt], index: int, minimum: int) -> float:
    longest = max((_common(prompts[index], earlier) for earlier in prompts[:index]), default=0.0)
    return longest if longest >= minimum else 0.0


def _common(first: Prompt, second: Prompt) -> float:
    count = 0
    for own, other in zip(first, second, strict=False):
        if own.content != other.content:
            break
        count += len(own.content)
    return count / BYTES_PER_TOKEN


def _tokens(prompt: Prompt) -> float:
    return sum(len(block.content) for block in prompt) / BYTES_PER_TOKEN


# Prompts in the vendors' order


def read_messages(body: JsonObject) -> Prompt:
    """Return the prompt of a Messages request: tools, system, settings, messages. Raises Refused."""
    blocks = [_read_block(tool, "tool") for tool in body.get("tools", ()) if not tool.get("defer_loading")]
    web_search = sorted(tool["type"] for tool in body.get("tools", ()) if "type" in tool)
    blocks.append(_settings("outer", [web_search, body.get("speed")]))
    blocks += _read_content(body.get("system", ()), "system")
    blocks.append(_settings("inner", [body.get(name) for name in ("tool_choice", "thinking", "output_config")]))
    for message in body["messages"]:
        blocks += _read_content(message["content"], message["role"])
    _mark_whole(blocks, body.get("cache_control"))
    _check_marks(blocks)
    return blocks


def _settings(kind: str, values: Json) -> Block:
    """Return settings that change what the model reads after them; they take no tokens worth counting."""
    if not any(values):
        return Block(b"", kind, can_mark=False)
    return Block(json.dumps(values, sort_keys=True).encode(), kind, can_mark=False)


def _read_content(content: Json, role: str) -> Prompt:
    if isinstance(content, str):
        return [Block(_encode([role, content]), "text", can_mark=False)]
    return [_read_block(block, role) for block in content]


def _read_block(block: JsonObject, role: str) -> Block:
    control = block.get("cache_control")
    bare = {key: value for key, value in block.items() if key != "cache_control"}
    kind = block.get("type", "tool")
    if kind == "text" and not block["text"].strip():
        raise Refused("text content blocks must contain non-whitespace text")
    if control is not None and kind in _UNMARKABLE:
        raise Refused(f"{kind}: cache_control: Extra inputs are not permitted")
    ttl = None if control is None else control.get("ttl", "5m")
    if ttl is not None and ttl not in LIFE_S:
        raise Refused(f"cache_control.ttl: {ttl}")
    return Block(_encode([role, bare]), kind, ttl, kind not in _UNMARKABLE)


def _encode(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _mark_whole(blocks: Prompt, control: Json) -> None:
    """Apply a top-level cache_control: one mark on the last block that can have one."""
    if control is None:
        return
    ttl = control.get("ttl", "5m")
    last = next(block for block in reversed(blocks) if block.kind not in (*_UNMARKABLE, *_SETTINGS))
    if last.ttl is not None and last.ttl != ttl:
        raise Refused("the last block has another ttl than the top-level cache_control")
    if last.ttl is None and sum(block.ttl is not None for block in blocks) >= MAX_MARKS:
        raise Refused("no mark is left for the top-level cache_control")
    last.ttl = ttl


def _check_marks(blocks: Prompt) -> None:
    ttls = [block.ttl for block in blocks if block.ttl is not None]
    if len(ttls) > MAX_MARKS:
        raise Refused(f"A maximum of 4 blocks with cache_control may be provided. Found {len(ttls)}.")
    if any(first == "5m" and later == "1h" for first, later in itertools.pairwise(ttls)):
        raise Refused("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")


def read_responses(body: JsonObject) -> Prompt:
    """Return the prompt of a Responses request; instructions and tools come first, and take no breakpoint."""
    settings = [body.get(name) for name in ("tools", "parallel_tool_calls", "text", "reasoning", "service_tier")]
    blocks = [_settings("tools", settings), Block(_encode(body.get("instructions")), "instructions", can_mark=False)]
    for item in body["input"]:
        outputs = item.get("output")
        content = item.get("content") if outputs is None else outputs
        parts = content if isinstance(content, list) else [item]
        blocks += [_read_part(part, item.get("role", item.get("type", ""))) for part in parts]
        _end_message(blocks, len(parts))
    _find_implicit(blocks)
    return blocks


def read_chat(body: JsonObject) -> Prompt:
    """Return the prompt of a Chat request, for OpenAI and for servers that compare prefixes."""
    names = ("tools", "parallel_tool_calls", "response_format", "reasoning_effort", "verbosity", "service_tier")
    blocks = [_settings("tools", [body.get(name) for name in names])]
    for message in body["messages"]:
        content = message.get("content")
        fields = {key: value for key, value in message.items() if key != "content"}
        before = len(blocks)
        if isinstance(content, list):
            blocks += [_read_part(part, message["role"]) for part in content]
            blocks += [Block(_encode(fields), message["role"])] if len(fields) > 1 else []
        else:
            blocks.append(Block(_encode([content, fields]), message["role"], can_mark=False))
        _end_message(blocks, len(blocks) - before)
    _find_implicit(blocks)
    return blocks


def _read_part(part: JsonObject, role: str) -> Block:
    point = part.get("prompt_cache_breakpoint")
    if point is not None and point != {"mode": "explicit"}:
        raise Refused(f"prompt_cache_breakpoint: unknown parameter in {point}")
    bare = {key: value for key, value in part.items() if key != "prompt_cache_breakpoint"}
    return Block(_encode([role, bare]), role, None if point is None else "30m")


TOOL_OUTPUTS = ("function_call_output", "custom_tool_call_output", "tool")
ROLES = ("user", "assistant", "developer", "system")


def _end_message(blocks: Prompt, count: int) -> None:
    """Mark the end of a message of so many blocks, or of a run of tool outputs; calls and reasoning end none."""
    last, before = blocks[-1], blocks[-1 - count]
    if last.kind in TOOL_OUTPUTS and before.kind in TOOL_OUTPUTS:
        before.is_message_end = False
    last.is_message_end = last.kind in TOOL_OUTPUTS or last.kind in ROLES


def _find_implicit(blocks: Prompt) -> None:
    """Find the implicit breakpoint: the newest user message, run of tool outputs, or leading developer block."""
    kinds = (*TOOL_OUTPUTS, "user", "developer", "system")
    last = next((block for block in reversed(blocks) if block.is_message_end and block.kind in kinds), None)
    if last is not None:
        last.is_implicit = True


def read_gemini(body: JsonObject) -> Prompt:
    """Return the prompt of a Gemini request."""
    blocks = [Block(_encode([body.get(name) for name in ("systemInstruction", "tools", "toolConfig")]), "head")]
    for content in body["contents"]:
        blocks += [Block(_encode([content.get("role"), part]), "part") for part in content["parts"]]
    return blocks


# The vendors' caches


class _Entry(Struct):
    tokens: float
    expires_at: float
    life_s: float
    readable_at: float


def _chain(blocks: Prompt) -> list[tuple[bytes, float]]:
    """Return for each block the digest of the prompt up to its end, and the number of tokens there."""
    digest, count, found = blake2b(digest_size=16), 0, []
    for block in blocks:
        digest.update(len(block.content).to_bytes(8, "big") + block.content)
        count += len(block.content)
        found.append((digest.digest(), count / BYTES_PER_TOKEN))
    return found


def _positions(blocks: Prompt) -> list[int]:
    """Return the position of each block for the lookback: a run of tool_use or of tool_result is one."""
    found: list[int] = []
    for index, block in enumerate(blocks):
        before = blocks[index - 1].kind if index else ""
        joins = block.kind in _SETTINGS or (block.kind in _RUNS and block.kind == before)
        found.append((found[-1] if found else -1) + (not joins))
    return found


class MessagesCache:
    """The cache of one workspace and model at Anthropic. `minimum`: the shortest prefix that is cached, in tokens."""

    def __init__(self, minimum: int = 1024) -> None:
        self._minimum = minimum
        self._entries: dict[bytes, _Entry] = {}

    def send(self, body: JsonObject, at: float = 0.0, reply_at: float | None = None) -> Bill:
        """Bill a request that starts at `at`; what it writes can be read from `reply_at` on. Raises Refused."""
        blocks = read_messages(body)
        chain, positions = _chain(blocks), _positions(blocks)
        marks = [index for index, block in enumerate(blocks) if block.ttl is not None]
        hits = [self._look_back(mark, chain, positions, at) for mark in marks]
        read = max(hits, key=lambda hit: hit[1], default=(b"", 0.0))
        if read[0]:
            entry = self._entries[read[0]]
            entry.expires_at = max(entry.expires_at, at + entry.life_s)
        done, written = read[1], {"5m": 0.0, "1h": 0.0}
        for mark in marks:
            digest, tokens = chain[mark]
            ttl = blocks[mark].ttl or ""
            if tokens < self._minimum:
                continue
            written[ttl] += max(0.0, tokens - done)
            done = max(done, tokens)
            self._write(digest, tokens, ttl, at, at if reply_at is None else reply_at)
        total = chain[-1][1]
        return Bill(read[1], written["5m"], written["1h"], total - read[1] - sum(written.values()))

    def _look_back(
        self, mark: int, chain: list[tuple[bytes, float]], positions: list[int], at: float
    ) -> tuple[bytes, float]:
        for index in range(mark, -1, -1):
            if positions[mark] - positions[index] >= LOOKBACK:
                break
            entry = self._entries.get(chain[index][0])
            if entry is not None and entry.readable_at <= at <= entry.expires_at:
                return chain[index]
        return b"", 0.0

    def _write(self, digest: bytes, tokens: float, ttl: str, at: float, readable_at: float) -> None:
        old = self._entries.get(digest)
        if old is None or old.expires_at < at:
            self._entries[digest] = _Entry(tokens, at + LIFE_S[ttl], LIFE_S[ttl], readable_at)
            return
        old.life_s = max(old.life_s, LIFE_S[ttl])
        old.expires_at = max(old.expires_at, at + old.life_s)


class BreakpointCache:
    """The cache of GPT-5.6 and later: entries at breakpoints, found under the same `prompt_cache_key`."""

    LIFE_S = 1800.0
    EARLIER_ENDS = 20
    MINIMUM = 1024

    def __init__(self, read: Callable[[JsonObject], Prompt] = read_responses) -> None:
        self._read = read
        self._entries: dict[tuple[str, bytes], float] = {}

    def send(self, body: JsonObject, at: float = 0.0) -> Bill:
        if "prompt_cache_retention" in body and "prompt_cache_options" in body:
            raise Refused("prompt_cache_options and prompt_cache_retention exclude each other")
        blocks, key = self._read(body), str(body.get("prompt_cache_key", ""))
        chain = _chain(blocks)
        is_explicit = body.get("prompt_cache_options", {}).get("mode") == "explicit"
        explicit = [index for index, block in enumerate(blocks) if block.ttl is not None]
        implicit = [] if is_explicit else [index for index, block in enumerate(blocks) if block.is_implicit]
        ends = [index for index, block in enumerate(blocks) if block.is_message_end and index not in implicit]
        earlier = [] if is_explicit else ends[-self.EARLIER_ENDS :]
        looked_up = {*implicit, *earlier, *explicit[:2], *explicit[-50:]}
        found = [index for index in looked_up if self._entries.get((key, chain[index][0]), -1.0) >= at]
        read = max((chain[index][1] for index in found), default=0.0)
        for index in found:
            if chain[index][1] == read:
                self._entries[key, chain[index][0]] = at + self.LIFE_S
        points = sorted({*implicit, *explicit[-(MAX_MARKS - len(implicit)) :]})
        new = [index for index in points if chain[index][1] >= self.MINIMUM]
        for index in new:
            self._entries[key, chain[index][0]] = at + self.LIFE_S
        written = max((chain[index][1] for index in new), default=0.0)
        written = max(0.0, written - read)
        return Bill(read=read, write_5m=written, rest=chain[-1][1] - read - written)


class PrefixCache:
    """A cache of exact prefixes without marks: earlier OpenAI models, Gemini, vLLM, SGLang, llama.cpp, Ollama.

    `step`: a prefix is cached in pieces of so many tokens, of bytes where it is 0.
    """

    def __init__(self, read: Callable[[JsonObject], Prompt], minimum: int = 1024, step: int = 128) -> None:
        self._read = read
        self._minimum = minimum
        self._step = step
        self._sent: list[bytes] = []

    def send(self, body: JsonObject, at: float = 0.0) -> Bill:
        text = b"".join(block.content for block in self._read(body))
        common = max((_common_bytes(text, earlier) for earlier in self._sent), default=0) / BYTES_PER_TOKEN
        if self._step:
            common = common // self._step * self._step
        read = common if common >= self._minimum else 0.0
        self._sent.append(text)
        return Bill(read=read, rest=len(text) / BYTES_PER_TOKEN - read)


def _common_bytes(first: bytes, second: bytes) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
