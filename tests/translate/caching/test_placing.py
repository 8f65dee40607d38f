"""Where marks go, as a table and for any request."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.caching.branches import (
    DIGEST_BYTES,
    checksum_kind,
    count_common,
    digest_blocks,
    digest_head,
    extends,
)
from dragoman.translate.caching.placing import RenderedPrompt, place_marks
from dragoman.translate.hub.caching import BuiltPrompt, CacheMode, CachePlan, SessionMemory
from tables import each_row
from translate.caching.sessions import build
from translate.caching.simulator import MessagesCache
from wire_json import JsonObject

AUTO = CachePlan(CacheMode.AUTO)
LARGE = 100_000


def chain_of(*blocks: str) -> bytes:
    return digest_of("user", *blocks)


def digest_of(kind: str, *blocks: str) -> bytes:
    encoded = [block.encode() for block in blocks]
    return digest_blocks(encoded, list(map(len, encoded)), [checksum_kind(kind)] * len(blocks))


TEN = chain_of(
    *"tsSuaruaru"
)  # tool, system, settings, then two turns of the user, the model and its tools, and the user


def prompt(can_mark: str = "xx-xxxxxxx", size: int = LARGE, chain: bytes = TEN) -> RenderedPrompt:
    return RenderedPrompt(10, lambda index: can_mark[index] == "x", 2, 7, size, chain)


def remembering(*branches: bytes, strays: int = 0, ttl: str = "5m") -> CachePlan:
    return CachePlan(CacheMode.AUTO, ttl, SessionMemory(branches, strays))


def cut(blocks: int) -> bytes:
    return TEN[: blocks * DIGEST_BYTES]


OTHER = chain_of("t", "S", "S", "other")
ONE_SHOTS = SessionMemory(one_shot_heads=(digest_head(TEN, 2),))


@each_row(
    ("plan", "client", "given", "marks"),
    [
        (AUTO, {}, prompt(), {1: "5m", 6: "5m", 9: "5m"}),
        (CachePlan(CacheMode.AUTO, "1h"), {}, prompt(), {1: "1h", 6: "1h", 9: "1h"}),
        (AUTO, {}, prompt("xx-xxxx-x-"), {1: "5m", 6: "5m", 8: "5m"}),  # the block before one that takes no mark
        (AUTO, {}, prompt("x--xxxxxxx"), {0: "5m", 6: "5m", 9: "5m"}),
        (AUTO, {}, prompt("----------"), {}),
        (AUTO, {}, prompt(size=4095), {}),  # below the minimum
        (AUTO, {3: "5m"}, prompt(size=4095), {3: "5m"}),
        (CachePlan(CacheMode.CLIENT), {}, prompt(), {}),
        (CachePlan(CacheMode.CLIENT), {3: "1h"}, prompt(), {3: "1h"}),
        # The client's marks come first, with their lifetimes; ours fill up to four, the later ones first.
        (AUTO, {3: "1h"}, prompt(), {1: "1h", 3: "1h", 6: "1h", 9: "1h"}),
        (AUTO, {3: "1h", 6: "5m"}, prompt(), {1: "1h", 3: "1h", 6: "5m", 9: "5m"}),
        (AUTO, {3: "5m", 4: "5m", 5: "5m"}, prompt(), {3: "5m", 4: "5m", 5: "5m", 9: "5m"}),
        (AUTO, dict.fromkeys(range(3, 9), "5m"), prompt(), dict.fromkeys(range(5, 9), "5m")),
        (AUTO, {3: "5m", 5: "1h"}, prompt(), {3: "1h", 5: "1h", 6: "1h", 9: "1h"}),  # never an hour after five minutes
        (AUTO, {2: "1h"}, prompt(), {1: "1h", 6: "1h", 9: "1h"}),  # a block that takes no mark: the one before it
        (CachePlan(CacheMode.CLIENT), {2: "1h"}, prompt("---xxxxxxx"), {}),
        # What the memory knows.
        (remembering(cut(7)), {}, prompt(), {1: "5m", 6: "5m", 9: "5m"}),
        (remembering(cut(5), OTHER), {}, prompt(), {1: "5m", 4: "5m", 9: "5m"}),
        (remembering(OTHER), {}, prompt(), {0: "5m", 1: "5m", 9: "5m"}),  # only the tools are common
        (remembering(OTHER, strays=1), {}, prompt(), {0: "5m", 1: "5m", 9: "5m"}),
        (remembering(OTHER, strays=2), {}, prompt(), {0: "5m", 1: "5m"}),  # what such a session writes is never read
        (remembering(OTHER, cut(5), strays=2), {}, prompt(), {1: "5m", 4: "5m", 9: "5m"}),
        (CachePlan(CacheMode.AUTO, "5m", SessionMemory()), {}, prompt(), {1: "5m", 6: "5m", 9: "5m"}),
        (CachePlan(CacheMode.AUTO, "5m", ONE_SHOTS), {}, prompt(), {1: "5m"}),
        (CachePlan(CacheMode.AUTO, "5m", ONE_SHOTS), {}, prompt(chain=OTHER * 3), {}),
    ],
)
def test_marks_are_placed(
    plan: CachePlan, client: dict[int, str], given: RenderedPrompt, marks: dict[int, str]
) -> None:
    assert place_marks(given, client, plan, minimum=1024) == marks


def test_chains_agree_as_far_as_their_blocks_do() -> None:
    assert count_common(TEN, TEN) == 10
    assert count_common(TEN, chain_of(*"tsSuax")) == 5
    assert count_common(TEN, chain_of("x")) == 0
    assert extends(TEN, cut(4))
    assert extends(TEN, TEN)
    assert not extends(cut(4), TEN)
    assert not extends(TEN, chain_of(*"tsSx"))


def test_a_chain_tells_where_a_block_ends_and_who_wrote_it() -> None:
    assert chain_of("{1}", "{2}") != chain_of("{1}{2}")
    assert digest_of("user", "a") != digest_of("assistant", "a")


# Any request


WORDS = st.sampled_from(("", " ", "short", "long " * 900))
POINT = st.sampled_from((None, None, {"mode": "explicit"}, {"mode": "explicit", "ttl": "30m"}))


def with_point(part: JsonObject, point: JsonObject | None) -> JsonObject:
    return part if point is None else {**part, "prompt_cache_breakpoint": point}


TEXTS = st.builds(lambda text, point: with_point({"type": "text", "text": text}, point), WORDS, POINT)
IDS = st.sampled_from("abc")
TOOL = {"name": "f", "description": "long " * 900, "parameters": {"type": "object"}}


def call(id: str, text: str) -> JsonObject:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": calls}


MESSAGES = st.one_of(
    st.builds(lambda parts: {"role": "user", "content": parts}, st.lists(TEXTS)),
    st.builds(lambda parts: {"role": "system", "content": parts}, st.lists(TEXTS)),
    st.builds(lambda text: {"role": "assistant", "content": text}, WORDS),
    st.builds(call, IDS, WORDS),
    st.builds(lambda id, parts: {"role": "tool", "tool_call_id": id, "content": parts}, IDS, st.lists(TEXTS)),
)
LAST = {"role": "user", "content": "Go on."}


def request(messages: list[JsonObject], has_tool: bool) -> JsonObject:
    tools = {"tools": [{"type": "function", "function": TOOL}]} if has_tool else {}
    return {"model": "m", "messages": [*messages, LAST], **tools}


REQUESTS = st.builds(request, st.lists(MESSAGES, max_size=12), st.booleans())


def check_accepted(first: JsonObject, later: JsonObject, ttl: str, strays: int) -> None:
    """Send a request, and another one that knows the first."""
    taken: list[BuiltPrompt] = []
    upstream = MessagesCache(minimum=0)
    fresh = CachePlan(CacheMode.AUTO, ttl, take=taken.append)
    upstream.send(build("chat", "messages", first, "claude-sonnet-5", fresh))
    memory = SessionMemory((taken[0].sent.chain,), strays)
    for mode in (CacheMode.AUTO, CacheMode.CLIENT):
        body = build("chat", "messages", later, "claude-sonnet-5", CachePlan(mode, ttl, memory))
        upstream.send(body)
        assert msgspec.json.encode(body).count(b'"cache_control"') <= 4


@given(first=REQUESTS, later=REQUESTS, ttl=st.sampled_from(("5m", "1h")), strays=st.integers(0, 3))
def test_no_request_is_refused_for_its_marks(first: JsonObject, later: JsonObject, ttl: str, strays: int) -> None:
    check_accepted(first, later, ttl, strays)


@pytest.mark.rest
@settings(max_examples=10_000)
@given(first=REQUESTS, later=REQUESTS, ttl=st.sampled_from(("5m", "1h")), strays=st.integers(0, 3))
def test_none_of_ten_thousand_requests_is_refused(first: JsonObject, later: JsonObject, ttl: str, strays: int) -> None:
    check_accepted(first, later, ttl, strays)
