"""Several answers to one request as one sequence of events."""

from dragoman.translate.hub.answers import AnswersDecoder, merge_answers, split_answers
from dragoman.translate.hub.events import (
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Started,
    Stop,
    TextBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import Progress
from dragoman.translate.hub.usage import Usage

STARTED, USED = Started("r", "m"), UsageReported(Usage(input=1, output=2))
BROKEN = Failed(Failure(Kind.TRUNCATED, "cut"))


def answer(text: str, stop: Stop = Stop.END) -> list[Event]:
    return [STARTED, Opened(0, TextBlock()), Delta(0, text), Closed(0), USED, Ended(stop)]


def test_answers_are_one_sequence_and_can_be_separated_again() -> None:
    merged = merge_answers([answer("a"), answer("b", Stop.LENGTH)])
    assert merged[0] == STARTED
    assert merged.count(STARTED) == 1
    assert merged[-2:] == [USED, Ended(Stop.END, others=(Ended(Stop.LENGTH),))]
    opened = [event for event in merged if isinstance(event, Opened)]
    assert [event.answer for event in opened] == [0, 1]
    assert opened[0].block != opened[1].block
    first, second = split_answers(merged)
    assert [event.text for event in first if isinstance(event, Delta)] == ["a"]
    assert [event.text for event in second if isinstance(event, Delta)] == ["b"]
    assert isinstance(first[-1], Ended)
    assert first[-1].stop is Stop.END
    assert second[-1] == Ended(Stop.LENGTH)
    assert USED in first
    assert USED in second


def test_an_answer_that_never_came_is_left_out() -> None:
    assert merge_answers([answer("a"), [BROKEN]])[-1] == Ended(Stop.END)


def test_a_failure_ends_the_reply_at_once() -> None:
    merged = merge_answers([answer("a"), [*answer("b")[:-2], BROKEN, USED]])
    assert merged[-1] == BROKEN
    assert merge_answers([[BROKEN], [BROKEN]]) == [BROKEN]


class _Script:
    """A decoder that plays the next of its steps for each frame."""

    def __init__(self, *steps: list[Event]) -> None:
        self._steps = list(steps)

    @property
    def progress(self) -> Progress:
        return Progress.READING if self._steps else Progress.COMPLETE

    def feed(self, item: object) -> list[Event]:
        return self._steps.pop(0)

    def finish(self) -> list[Event]:
        return []


def test_a_stream_ends_with_its_last_answer() -> None:
    whole = answer("a")
    decoder = AnswersDecoder([_Script(whole, []), _Script(whole[:2], whole[2:])], lambda item: [item, item])
    seen = [decoder.progress]
    assert not any(isinstance(event, Ended) for event in decoder.feed(b""))
    assert isinstance(decoder.feed(b"")[-1], Ended)
    assert [*seen, decoder.progress] == [Progress.READING, Progress.COMPLETE]
    assert decoder.finish() == []
