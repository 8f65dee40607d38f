"""What a request can read from the cache, and why not more, by what its session has sent."""

import pytest

from dragoman.translate.caching.lookback import find_window
from dragoman.translate.caching.memory import SessionId, SessionMemories
from dragoman.translate.caching.outlook import CacheOutlook, Miss, judge_prompt
from dragoman.translate.hub.caching import BuiltPrompt, CacheMode, CachePlan, SentPrompt
from translate.caching.agent import prose
from translate.caching.sessions import build
from wire_json import Json, JsonObject

ID = SessionId("tenant", "session", "provider", 0, "claude-sonnet-5")
SYSTEM: JsonObject = {"role": "system", "content": prose(2000, "rule")}
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def say(role: str, text: str) -> JsonObject:
    return {"role": role, "content": text}


FIRST: list[Json] = [SYSTEM, say("user", "one"), say("assistant", "a"), say("user", "two")]
SECOND: list[Json] = [*FIRST, say("assistant", "b"), say("user", "three")]


class Target:
    """One upstream account and model, with its memory."""

    def __init__(self, mode: CacheMode = CacheMode.AUTO) -> None:
        self.memories = SessionMemories()
        self.mode = mode

    def send(self, messages: list[Json], at: float = 0.0, id: SessionId = ID, **fields: Json) -> CacheOutlook:
        """Return what is judged of a request before it is sent, and remember it."""
        taken: list[BuiltPrompt] = []
        memory = self.memories.recall(id, at)
        plan = CachePlan(self.mode, memory.ttl, memory, take=taken.append)
        build("chat", "messages", {"model": "m", "messages": messages, "tools": [TOOL], **fields}, id.model, plan)
        self.memories.record(id, taken[0].sent, at)
        return judge_prompt(taken[0], memory, at)


def test_a_request_that_continues_a_session_can_read_all_of_the_last_one() -> None:
    target = Target()
    assert target.send(FIRST) == CacheOutlook(False, 0, 0.0, "", Miss.FIRST)
    outlook = target.send(SECOND, at=10)
    assert (outlook.extends, outlook.path, outlook.cause) == (True, "", Miss.UNKNOWN)
    assert 0.9 < outlook.share < 1
    assert outlook.explain(read=95, possible=100) is None
    assert outlook.explain(read=80, possible=100) is Miss.UNKNOWN


@pytest.mark.parametrize(
    ("change", "path", "cause"),
    [
        ({"tools": [{"type": "function", "function": {"name": "g", "parameters": {}}}]}, "/tools/0", Miss.TOOLS),
        ({"messages": [say("system", prose(1999, "rule")), *SECOND[1:]]}, "/system/0", Miss.SYSTEM),
        ({"tool_choice": "required"}, "/tool_choice", Miss.SETTINGS),
        ({"reasoning_effort": "high"}, "/output_config", Miss.SETTINGS),
        ({"messages": [*FIRST[:1], say("user", "new"), *SECOND[2:]]}, "/messages/0/content/0", Miss.MESSAGES),
        ({"messages": [*FIRST[:3], say("user", "new"), *SECOND[4:]]}, "/messages/2/content/0", Miss.MESSAGES),
        ({"messages": FIRST[:2]}, "", Miss.MESSAGES),
    ],
    ids=["tools", "system", "tool choice", "thinking", "first message", "later message", "shorter"],
)
def test_the_first_block_that_differs_is_named(change: JsonObject, path: str, cause: Miss) -> None:
    target = Target()
    target.send(FIRST)
    given: JsonObject = {"messages": SECOND, **change}
    outlook = target.send(given.pop("messages"), at=10, **given)
    assert (outlook.extends, outlook.path, outlook.cause) == (False, path, cause)


@pytest.mark.parametrize(
    ("other", "cause"), [({"model": "claude-opus-5-5"}, Miss.MODEL), ({"credential": 1}, Miss.ACCOUNT)]
)
def test_a_session_that_moved_says_so(other: dict[str, object], cause: Miss) -> None:
    target = Target()
    target.send(FIRST)
    fields = {name: getattr(ID, name) for name in ID.__struct_fields__} | other
    elsewhere = SessionId(**fields)
    assert target.send(SECOND, at=10, id=elsewhere).cause is cause
    assert target.send(SECOND, at=20, id=elsewhere).extends
    assert target.send(SECOND, at=30).extends


def test_another_tenant_with_the_same_session_is_new() -> None:
    target = Target()
    target.send(FIRST)
    other = SessionId("other", "session", "provider", 0, "claude-sonnet-5")
    assert target.send(SECOND, at=1, id=other).cause is Miss.FIRST


@pytest.mark.parametrize(("gap", "cause"), [(300, Miss.UNKNOWN), (301, Miss.EXPIRED)])
def test_a_branch_expires_with_its_marks(gap: float, cause: Miss) -> None:
    target = Target()
    target.send(FIRST)
    outlook = target.send(SECOND, at=gap)
    assert outlook.cause is cause
    assert outlook.extends is (cause is Miss.UNKNOWN)
    assert bool(outlook.share) is outlook.extends
    again = [*SECOND, say("assistant", "c"), say("user", "four")]
    assert target.send(again, at=gap + 290 + (cause is Miss.EXPIRED) * 3000).extends, "the second request has 1h marks"


def test_a_short_prompt_is_below_the_minimum() -> None:
    target = Target()
    target.send(FIRST[1:])
    assert target.send(SECOND[1:], at=1).cause is Miss.BELOW_MINIMUM


def test_without_a_mark_nothing_can_be_read() -> None:
    target = Target(CacheMode.CLIENT)
    target.send(FIRST)
    outlook = target.send(SECOND, at=1)
    assert (outlook.extends, outlook.cause) == (True, Miss.NO_MARK)


def test_a_mark_that_is_too_far_from_the_last_one_misses() -> None:
    def mark(text: str) -> JsonObject:
        point = {"prompt_cache_breakpoint": {"mode": "explicit"}}
        return {"role": "user", "content": [{"type": "text", "text": text, **point}]}

    more = [say(("assistant", "user")[number % 2], f"{number}") for number in range(18)]
    for count, cause in ((17, Miss.UNKNOWN), (18, Miss.LOOKBACK)):
        target = Target(CacheMode.CLIENT)
        target.send([*FIRST, mark("first")])
        later = [*FIRST, say("user", "first"), say("assistant", "-"), *more[:count], mark("last")]
        assert target.send(later, at=1).cause is cause


def test_a_window_counts_runs_as_one() -> None:
    blocks = ["text"] * 5 + ["tool_use"] * 30 + ["tool_result"] * 30 + ["text"] * 17
    runs = [None if one == "text" else one for one in blocks]
    assert find_window(runs.__getitem__, len(blocks) - 1) == 4
    assert find_window(lambda index: None, 25) == 6
    assert find_window(lambda index: None, 3) == 0
    assert find_window(lambda index: "" if index == 20 else None, 25) == 5


def test_without_an_answer_of_the_memory_nothing_is_known() -> None:
    assert judge_prompt(BuiltPrompt(SentPrompt(b"12345678", b""), (8,), tuple), None, 0).cause is Miss.UNKNOWN
