"""What sessions of other protocols' clients cost at Anthropic, billed by the simulator."""

import pytest

from dragoman.translate.caching.memory import SessionMemories
from dragoman.translate.hub.caching import CacheMode
from translate.caching.agent import WRITERS, prose, rewrite_history, script, write_chat
from translate.caching.sessions import Session, send_all
from translate.caching.simulator import (
    Bill,
    MessagesCache,
    Price,
    cost,
    least_cost,
    possible_share,
    read_messages,
    share,
)
from wire_json import JsonObject

PRICE = Price()
MINIMUM = 1024


def bill(sent: list[JsonObject], pause_s: float = 5.0) -> list[Bill]:
    cache = MessagesCache(MINIMUM)
    return [cache.send(body, at=number * pause_s) for number, body in enumerate(sent)]


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "stateless"])
@pytest.mark.parametrize("client", ["chat", "responses", "gemini"])
def test_a_session_that_only_grows_is_read_from_the_cache(client: str, memory: bool) -> None:
    session = Session(client, "messages", memory=SessionMemories() if memory else None)
    sent = send_all(session, [WRITERS[client](request) for request in script()])
    bills, prompts = bill(sent), [read_messages(body) for body in sent]
    assert len(bills) == 25
    assert share(bills) >= 0.9
    assert share(bills) >= 0.98 * possible_share(prompts, MINIMUM)
    assert cost(bills, PRICE) <= 1.03 * least_cost(prompts, MINIMUM, PRICE)


def test_a_rewritten_history_is_read_up_to_where_it_changes() -> None:
    bodies = [WRITERS["gemini"](request) for request in rewrite_history(script())]
    sent = send_all(Session("gemini", "messages", memory=SessionMemories()), bodies)
    bills, prompts = bill(sent), [read_messages(body) for body in sent]
    assert share(bills) >= 0.98 * possible_share(prompts, MINIMUM)


def aider(turn: int) -> JsonObject:
    """A prompt of which only a sixteenth, its beginning, is the same in every turn."""
    repository_map = prose(5000 + 700 * turn, f"map{turn}-")
    body = write_chat(script()[turn], system=prose(600, "aider"))
    body["messages"].insert(1, {"role": "user", "content": "These are the files. " * 11 + repository_map})
    del body["tools"]
    return body


def test_a_session_whose_prompt_changes_every_turn_costs_no_more_than_without_marks() -> None:
    sent = send_all(Session("chat", "messages", memory=SessionMemories()), [aider(turn) for turn in range(5)])
    bills, prompts = bill(sent), [read_messages(body) for body in sent]
    plain = cost([Bill(rest=one.total) for one in bills], PRICE)
    assert 0.05 < possible_share(prompts, MINIMUM) < 0.08
    assert cost(bills, PRICE) <= 1.03 * plain


@pytest.mark.rest
def test_eight_conversations_under_one_name_do_not_disturb_each_other() -> None:
    memory, cache = SessionMemories(), MessagesCache(MINIMUM)
    bills, prompts = [], []
    for request in script():
        for number in range(8):
            body = write_chat(request)
            body["messages"][1]["content"] = f"{number}: {body['messages'][1]['content']}"
            sent = Session("chat", "messages", memory=memory).send(body)
            bills.append(cache.send(sent))
            prompts.append(read_messages(sent))
    assert share(bills) >= 0.9 * possible_share(prompts, MINIMUM)


@pytest.mark.parametrize(
    "system", ["none", *(pytest.param(name, marks=pytest.mark.rest) for name in ("common", "own"))]
)
def test_a_thousand_one_shot_prompts_cost_no_more_than_without_marks(system: str) -> None:
    memory, cache = SessionMemories(), MessagesCache(MINIMUM)
    bills = []
    for number in range(1000):
        instructions = {"none": "", "common": prose(800, "rule"), "own": prose(800, f"rule{number}-")}[system]
        messages = [{"role": "system", "content": instructions}] if instructions else []
        question = {"role": "user", "content": prose(800, f"question{number}-")}
        session = Session("chat", "messages", name=f"one-shot {number}", memory=memory)
        bills.append(cache.send(session.send({"model": "m", "messages": [*messages, question]}, at=number)))
    plain = cost([Bill(rest=one.total) for one in bills], PRICE)
    assert cost(bills, PRICE) <= 1.03 * plain
    if system == "common":
        assert share(bills) > 0.3


@pytest.mark.parametrize(("pause_s", "ttl"), [(5, None), (480, "1h"), (5400, None)])
def test_marks_live_as_long_as_the_pauses_ask_for(pause_s: float, ttl: str | None) -> None:
    bodies = [write_chat(request) for request in script()[:3]]
    sent = send_all(Session("chat", "messages", memory=SessionMemories()), bodies, pause_s)
    assert "ttl" not in str(sent[0])
    for body in sent[1:]:
        marks = [block["cache_control"].get("ttl") for block in marked_blocks(body)]
        assert marks == [ttl] * len(marks)
        assert marks


def marked_blocks(body: JsonObject) -> list[JsonObject]:
    blocks = [*body.get("tools", ()), *body.get("system", ())]
    blocks += [block for message in body["messages"] for block in message["content"]]
    return [block for block in blocks if "cache_control" in block]


@pytest.mark.parametrize(
    ("model", "words", "is_marked"),
    [
        ("claude-opus-5-5", 180, False),
        ("claude-opus-5-5", 400, True),
        ("claude-haiku-4-5", 1500, False),
        ("claude-haiku-4-5", 2600, True),
        ("unknown", 400, False),
        ("unknown", 700, True),
    ],
)
def test_nothing_is_marked_below_the_minimum_of_the_model(model: str, words: int, is_marked: bool) -> None:
    body = Session("chat", "messages", model).send(
        {"messages": [{"role": "user", "content": prose(words, "word")}], "model": "m"}
    )
    assert bool(marked_blocks(body)) is is_marked
    assert isinstance(body["messages"][0]["content"], list)


def test_clients_that_want_no_marks_but_their_own_get_none() -> None:
    body = write_chat(script()[4])
    assert marked_blocks(Session("chat", "messages", mode=CacheMode.CLIENT).send(body)) == []
    part = {"type": "text", "text": "Read this.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    body["messages"].append({"role": "user", "content": [part]})
    [only] = marked_blocks(Session("chat", "messages", mode=CacheMode.CLIENT).send(body))
    assert only["text"] == "Read this."
