"""A stage that takes a run of deltas at once gives what it would give for each of them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
)
from dragoman.translate.hub.ports import join_run, split_runs
from dragoman.translate.passes.adapt_tools import ToolId, ToolMap
from dragoman.translate.stages.check_calls import CheckCalls
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.guard import Guard, SerialiseBlocks
from dragoman.translate.stages.hold_end import HoldTruncatedCall
from dragoman.translate.stages.restore_tools import RestoreTools
from dragoman.translate.stages.text_calls import TextCalls
from dragoman.translate.stages.thinking_tags import Mode, ThinkingTags

TOOLS = ToolMap(tools={"run": ToolId("run", None, True)})
RunningStage = (
    Guard | CheckCalls | RestoreTools | SerialiseBlocks | EstimateUsage | HoldTruncatedCall | ThinkingTags | TextCalls
)
STAGES: dict[str, Callable[[], RunningStage]] = {
    "guard": lambda: Guard(lambda trip: None),
    "check calls": CheckCalls,
    "restore tools": lambda: RestoreTools(TOOLS),
    "serialise blocks": SerialiseBlocks,
    "estimate usage": lambda: EstimateUsage(len, 7),
    "hold truncated call": HoldTruncatedCall,
    "thinking tags as reasoning": ThinkingTags,
    "thinking tags removed": lambda: ThinkingTags(Mode.REMOVE),
    "text calls": lambda: TextCalls({"go": None}),
}

TEXTS = ["<thinking>", "</think", "ing>", "`", "\n", "[Called go", " with args: ", '{"a": 1}]', "[", "<"]

blocks = st.integers(0, 2)
events = st.one_of(
    st.builds(Delta, blocks, st.sampled_from(["", "Hel", "lo", '{"input":', '"x"}', " ", *TEXTS])),
    st.builds(Delta, st.just(0), st.sampled_from(["Hel", "lo"])),
    st.builds(
        Opened, blocks, st.sampled_from([TextBlock(), ThinkingBlock(), CallBlock("c", "run"), CallBlock("d", "go")])
    ),
    st.builds(Closed, blocks),
)


def feed_each(stage: RunningStage, given: list[Event]) -> list[Event]:
    return [out for event in given for out in stage.feed(event)]


def feed_runs(stage: RunningStage, given: list[Event]) -> list[Event]:
    out: list[Event] = []
    for item in split_runs(given):
        out += stage.feed_run(item, join_run(item)) if isinstance(item, list) else stage.feed(item)
    return out


def skip_runs(stage: RunningStage, given: list[Event]) -> list[Event]:
    out: list[Event] = []
    for item in split_runs(given):
        if isinstance(item, list):
            out += item if stage.passes(item[0].block) else stage.feed_run(item, join_run(item))
        else:
            out += stage.feed(item)
    return out


@pytest.mark.parametrize("feed", [feed_runs, skip_runs])
@pytest.mark.parametrize("name", STAGES)
@given(given=st.lists(events, max_size=20))
def test_a_run_gives_what_its_deltas_give_and_need_not_be_seen_where_it_passes(
    name: str, feed: Callable[[RunningStage, list[Event]], list[Event]], given: list[Event]
) -> None:
    whole: list[Event] = [Started("r", "m"), Opened(0, TextBlock()), *given, Ended(Stop.END)]
    one, other = STAGES[name](), STAGES[name]()
    assert feed(one, whole) == feed_each(other, whole)
    assert list(one.finish()) == list(other.finish())


def test_runs_end_where_the_block_changes() -> None:
    a, b, c, closed = Delta(0, "a"), Delta(0, "b"), Delta(1, "c"), Closed(0)
    assert split_runs([a, b, c, a, closed, a]) == [[a, b], [c], [a], closed, [a]]
    assert join_run([a, b]) == "ab"
