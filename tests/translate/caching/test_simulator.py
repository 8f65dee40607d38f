"""The simulator bills as the vendors' documentation says."""

import pytest

from translate.caching.simulator import (
    BreakpointCache,
    MessagesCache,
    PrefixCache,
    Price,
    Refused,
    least_cost,
    possible_share,
    read_chat,
    read_gemini,
    read_messages,
    read_responses,
    share,
)
from wire_json import Json, JsonObject

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
LONG = "word " * 1200  # 1,500 tokens
PRICE = Price()


def text(words: str, mark: Json = None) -> JsonObject:
    block: JsonObject = {"type": "text", "text": words}
    return block if mark is None else {**block, "cache_control": mark}


def user(*blocks: JsonObject) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: JsonObject) -> JsonObject:
    return {"role": "assistant", "content": list(blocks)}


def body(*messages: JsonObject, **more: Json) -> JsonObject:
    return {"model": "m", "messages": list(messages), **more}


def test_nothing_is_cached_without_a_mark() -> None:
    cache = MessagesCache()
    cache.send(body(user(text(LONG))))
    assert cache.send(body(user(text(LONG)))).read == 0


def test_a_marked_prefix_is_written_once_and_then_read() -> None:
    cache = MessagesCache()
    first = cache.send(body(user(text(LONG, MARK))))
    second = cache.send(body(user(text(LONG)), assistant(text("Yes.")), user(text("More.", MARK))))
    assert first.write_5m == first.total
    assert second.read == first.total
    assert second.rest == 0
    assert first.cost(PRICE) == 1.25 * first.total


def test_a_changed_byte_before_the_mark_misses() -> None:
    cache = MessagesCache()
    cache.send(body(user(text(LONG, MARK))))
    assert cache.send(body(user(text("W" + LONG[1:], MARK)))).read == 0


def test_a_string_is_another_prefix_than_a_list_of_one_block() -> None:
    cache = MessagesCache()
    cache.send(body(user(text(LONG)), assistant(text("Yes.")), user(text("More.", MARK))))
    as_string = body({"role": "user", "content": LONG}, assistant(text("Yes.")), user(text("More.", MARK)))
    assert cache.send(as_string).read == 0


@pytest.mark.parametrize(("blocks", "reads"), [(19, True), (20, False)])
def test_a_mark_looks_back_twenty_positions_with_itself_as_the_first(blocks: int, reads: bool) -> None:
    cache = MessagesCache()
    cache.send(body(user(text(LONG, MARK))))
    more = [text(f"{number}") for number in range(blocks)]
    more[-1] = text("last", MARK)
    assert (cache.send(body(user(text(LONG)), assistant(*more))).read > 0) is reads


def test_a_run_of_tool_calls_is_one_position() -> None:
    cache = MessagesCache()
    cache.send(body(user(text(LONG, MARK))))
    calls = [{"type": "tool_use", "id": f"c{number}", "name": "f", "input": {}} for number in range(30)]
    results: list[JsonObject] = [
        {"type": "tool_result", "tool_use_id": f"c{number}", "content": "x"} for number in range(30)
    ]
    results[-1]["cache_control"] = MARK
    assert cache.send(body(user(text(LONG)), assistant(*calls), user(*results))).read > 0


def test_a_prefix_below_the_minimum_is_not_cached() -> None:
    cache = MessagesCache(minimum=4096)
    bill = cache.send(body(user(text(LONG, MARK))))
    assert (bill.write_5m, bill.rest) == (0, bill.total)
    assert cache.send(body(user(text(LONG, MARK)))).read == 0


def test_an_entry_lives_from_the_start_of_the_request_that_wrote_or_read_it() -> None:
    cache, request = MessagesCache(), body(user(text(LONG, MARK)))
    cache.send(request, at=0)
    assert cache.send(request, at=299).read > 0
    assert cache.send(request, at=599).read > 0  # the read has refreshed it
    assert cache.send(request, at=900).read == 0


def test_an_hour_costs_twice_the_input_and_outlives_a_pause() -> None:
    cache, request = MessagesCache(), body(user(text(LONG, HOUR)))
    assert cache.send(request, at=0).cost(PRICE) == pytest.approx(2 * 1507, rel=0.01)
    assert cache.send(request, at=3000).read > 0
    assert cache.send(request, at=6601).read == 0


def test_parallel_first_requests_all_pay() -> None:
    cache, request = MessagesCache(), body(user(text(LONG, MARK)))
    cache.send(request, at=0, reply_at=2)
    assert cache.send(request, at=1, reply_at=3).read == 0
    assert cache.send(request, at=4).read > 0


def test_tool_definitions_invalidate_everything_and_tool_choice_the_messages() -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    request = body(user(text(LONG, MARK)), tools=tools, system=[text(LONG, MARK)])
    cache = MessagesCache()
    cache.send(request)
    assert 0 < cache.send({**request, "tool_choice": {"type": "none"}}).read < cache.send(request).read
    assert cache.send({**request, "tools": [{**tools[0], "description": "d"}]}).read == 0


@pytest.mark.parametrize(
    "request_body",
    [
        body(user(*[text(f"{number}", MARK) for number in range(5)])),
        body(user(*[text(f"{number}", MARK) for number in range(4)], text("end")), cache_control=MARK),
        body(user(text("a", MARK), text("b", HOUR))),
        body(user(text("a", HOUR)), cache_control=MARK),
        body(assistant({"type": "thinking", "thinking": "", "signature": "s", "cache_control": MARK})),
        body(user(text(" ", MARK))),
        body(user(text("a", {"type": "ephemeral", "ttl": "30m"}))),
    ],
    ids=["five", "four and top-level", "1h after 5m", "top-level of another ttl", "thinking", "empty", "30m"],
)
def test_what_the_vendor_refuses_is_refused(request_body: JsonObject) -> None:
    with pytest.raises(Refused):
        MessagesCache().send(request_body)


def test_a_top_level_mark_is_one_on_the_last_block() -> None:
    cache = MessagesCache()
    assert cache.send(body(user(text(LONG)), cache_control=MARK)).write_5m > 0
    assert cache.send(body(user(text(LONG), text("more")), cache_control=MARK)).read > 0


def item(role: str, words: str, *, marked: bool = False) -> JsonObject:
    part: JsonObject = {"type": "input_text", "text": words}
    if marked:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}
    return {"type": "message", "role": role, "content": [part]}


def test_the_newest_user_message_is_an_implicit_breakpoint() -> None:
    cache = BreakpointCache()
    first = cache.send({"input": [item("user", LONG)], "prompt_cache_key": "k"})
    later: JsonObject = {"input": [item("user", LONG), item("assistant", "Yes."), item("user", "More.")]}
    assert cache.send({**later, "prompt_cache_key": "k"}).read == first.write_5m
    assert cache.send({**later, "prompt_cache_key": "other"}).read == 0


def test_a_rewritten_history_is_read_only_up_to_an_explicit_breakpoint() -> None:
    for marked in (False, True):
        cache = BreakpointCache()
        cache.send({"input": [item("developer", LONG, marked=marked), item("user", "a")]})
        assert (cache.send({"input": [item("developer", LONG, marked=marked), item("user", "b")]}).read > 0) is marked


def test_a_breakpoint_has_no_ttl() -> None:
    request = item("user", "a")
    request["content"][0]["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "30m"}
    with pytest.raises(Refused):
        BreakpointCache().send({"input": [request]})


def test_two_lifetimes_in_one_request_are_refused() -> None:
    with pytest.raises(Refused):
        BreakpointCache().send({"input": [], "prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h"})


def test_earlier_models_read_pieces_of_128_tokens() -> None:
    cache = PrefixCache(read_chat)
    cache.send({"messages": [{"role": "user", "content": LONG}]})
    read = cache.send({"messages": [{"role": "user", "content": LONG + "!"}]}).read
    assert read % 128 == 0
    assert 1300 < read <= 1500


def test_gemini_reads_from_its_minimum_on() -> None:
    request: JsonObject = {"contents": [{"role": "user", "parts": [{"text": LONG}]}]}
    for minimum, reads in ((4096, False), (1024, True)):
        cache = PrefixCache(read_gemini, minimum, 0)
        cache.send(request)
        assert (cache.send(request).read > 0) is reads


def test_share_and_least_cost_of_a_conversation_that_grows() -> None:
    turns = [text(f"{LONG}{number}") for number in range(4)]
    requests = [body(user(*turns[: count + 1])) for count in range(4)]
    prompts = [read_messages(request) for request in requests]
    marked = [body(user(*turns[:count], text(turns[count]["text"], MARK))) for count in range(4)]
    cache = MessagesCache()
    bills = [cache.send(request) for request in marked]
    assert share(bills) == pytest.approx(possible_share(prompts, 1024))
    assert sum(bill.cost(PRICE) for bill in bills) == pytest.approx(least_cost(prompts, 1024, PRICE))


@pytest.mark.parametrize("count", [2, 24])
def test_a_run_of_calls_and_their_outputs_has_one_message_end(count: int) -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": LONG} for n in range(count)]
    outputs = [{"type": "function_call_output", "call_id": f"c{n}", "output": "done"} for n in range(count)]
    first: JsonObject = {"model": "gpt-5.6", "input": [{"role": "user", "content": LONG}]}
    second: JsonObject = {"model": "gpt-5.6", "input": [*first["input"], *calls, *outputs]}
    cache = BreakpointCache()
    cache.send(first)
    assert cache.send(second).read == sum(len(block.content) for block in read_responses(first)) / 4
