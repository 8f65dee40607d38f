"""The memory of rejected reasoning: bounded per session and in all, and apart for each client key."""

from dragoman.translate.caching.rejected_reasoning import (
    MAX_VALUES,
    ReasoningSession,
    RejectedReasoning,
    split_digests,
)

SESSION = ReasoningSession("ann", "s", "up")


def number_digests(first: int, count: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in range(first, first + count))


def test_what_was_rejected_is_known_in_its_session_alone() -> None:
    memory = RejectedReasoning()
    assert not memory.counts
    memory.record(SESSION, number_digests(0, 2))
    assert memory.recall(SESSION) == number_digests(0, 2)
    for other in (("bob", "s", "up"), ("ann", "t", "up"), ("ann", "s", "other")):
        assert memory.recall(ReasoningSession(*other)) == b""
    assert dict(memory.counts) == {("ann", "up"): 1}


def test_later_rejections_are_added_and_the_oldest_values_go_first() -> None:
    memory = RejectedReasoning()
    memory.record(SESSION, number_digests(0, 3))
    memory.record(SESSION, number_digests(1, 3))
    assert memory.recall(SESSION) == number_digests(0, 4), "a value that comes again counts once"
    memory.record(SESSION, number_digests(10, MAX_VALUES + 5))
    assert memory.recall(SESSION) == number_digests(15, MAX_VALUES)
    memory.record(SESSION, number_digests(0, 1))
    assert memory.recall(SESSION) == number_digests(16, MAX_VALUES - 1) + number_digests(0, 1)


def test_the_session_that_was_used_least_recently_is_forgotten_first() -> None:
    memory = RejectedReasoning(max_bytes=3 * (400 + 8 * 100 + 20))
    first, second, *rest = [ReasoningSession(f"tenant {number}", "s", "up") for number in range(4)]
    for id in (first, second, rest[0]):
        memory.record(id, number_digests(0, 100))
    memory.recall(first)
    memory.record(rest[1], number_digests(0, 100))
    assert memory.recall(second) == b""
    assert ("tenant 1", "up") not in memory.counts
    assert all(len(split_digests(memory.recall(id))) == 100 for id in (first, *rest))


def test_ten_thousand_sessions_stay_within_the_bound() -> None:
    memory = RejectedReasoning(max_bytes=1 << 20)
    for number in range(10_000):
        memory.record(ReasoningSession(f"t{number % 7}", f"s{number}", "up"), number_digests(number, number % 50))
        assert memory.size <= 1 << 20
    kept = sum(bool(memory.recall(ReasoningSession(f"t{number % 7}", f"s{number}", "up"))) for number in range(10_000))
    assert 1000 < kept < 5000
