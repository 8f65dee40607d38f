"""What a monitor notes of the events of a reply."""

from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.translate.hub.events import (
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.usage import Usage
from replies import END, START, call, text


def observe(*events: Event) -> ReplyMonitor:
    ticks = iter(range(100))
    monitor = ReplyMonitor(lambda: float(next(ticks)))
    for event in events:
        monitor.observe(event)
    return monitor


def test_the_events_of_a_reply_are_counted() -> None:
    reply = (
        START,
        *text(0, "", "über", "🙂"),
        *call(1, "f", "{}"),
        UsageReported(Usage(3, 1)),
        UsageReported(Usage(3, 4)),
        END,
    )
    seen = observe(*reply)
    assert seen.started is START
    assert (seen.usage, seen.usage_is_final) == (Usage(3, 4), True)
    assert (seen.first_token, seen.stop, seen.failure) == (0.0, Stop.END, None)
    assert (seen.deltas, seen.text_bytes, seen.blocks, seen.last_block) == (4, 5 + 4 + 2, 2, "call")


def test_the_first_token_is_the_first_text_or_call_and_not_an_empty_delta() -> None:
    assert observe(START, Opened(0, TextBlock()), Delta(0, "")).first_token is None
    assert observe(START, *call(0, "f")).first_token == 0.0


def test_usage_at_the_start_holds_until_more_is_reported() -> None:
    seen = observe(Started("r", "m", Usage(7)))
    assert (seen.usage, seen.usage_is_final) == (Usage(7), False)


def test_a_failed_reply_has_a_failure_and_no_stop() -> None:
    failure = Failure(Kind.LOST, "gone")
    seen = observe(START, *text(0, "a"), Failed(failure), Ended(Stop.END))
    assert seen.failure == failure
    assert seen.stop is None


def test_content_is_what_a_client_would_see() -> None:
    def substance(*events: Event) -> bool:
        monitor = ReplyMonitor(float)
        for event in events:
            monitor.observe(event)
        return monitor.has_content

    assert not substance(START, Opened(0, TextBlock()), Delta(0, ""), UsageReported(Usage()))
    assert not substance(START, Failed(Failure(Kind.LOST, "gone")))
    assert substance(START, *text(0, "a"))
    assert substance(START, Opened(0, ThinkingBlock()))
    assert substance(START, *call(0, "f"))
    assert substance(START, END)
