"""What is remembered of sessions, for how long, and in how much space."""

import pytest

from dragoman.translate.caching.memory import (
    MAX_BRANCHES,
    MAX_BYTES,
    NEW_SESSIONS,
    SessionId,
    SessionMemories,
    choose_ttl,
)
from dragoman.translate.hub.caching import SentPrompt

ID = SessionId("tenant", "session", "provider", 0, "model")


def chain(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def prompt(*numbers: int, head: int = 1) -> SentPrompt:
    return SentPrompt(chain(*numbers), chain(head))


def test_a_request_that_extends_a_branch_replaces_it() -> None:
    memories = SessionMemories()
    memories.record(ID, prompt(1, 2), 0)
    memories.record(ID, prompt(1, 2, 3), 1)
    assert memories.recall(ID, 2).branches == (chain(1, 2, 3),)
    memories.record(ID, prompt(1, 9), 3)
    assert memories.recall(ID, 4).branches == (chain(1, 2, 3), chain(1, 9))


def test_requests_that_extend_nothing_are_counted_until_one_does() -> None:
    memories = SessionMemories()
    for number, strays in ((1, 1), (2, 2), (3, 3)):
        memories.record(ID, prompt(0, number), number)
        assert memories.recall(ID, number).strays == strays
    memories.record(ID, prompt(0, 2, 5), 9)
    assert memories.recall(ID, 10).strays == 0


def test_sixteen_branches_are_kept() -> None:
    memories = SessionMemories()
    for number in range(20):
        memories.record(ID, prompt(number), number)
    branches = memories.recall(ID, 30).branches
    assert len(branches) == MAX_BRANCHES
    assert branches[-1] == chain(19)


@pytest.mark.parametrize("other", ["tenant", "session", "provider", "credential", "model"])
def test_nothing_is_shared_by_sessions_that_differ_in_anything(other: str) -> None:
    memories = SessionMemories()
    memories.record(ID, prompt(1, 2), 0)
    fields: dict[str, str | int] = {name: getattr(ID, name) for name in ID.__struct_fields__}
    fields[other] = 7 if other == "credential" else "other"
    differing = SessionId(
        str(fields["tenant"]),
        str(fields["session"]),
        str(fields["provider"]),
        int(fields["credential"]),
        str(fields["model"]),
    )
    assert memories.recall(differing, 1).branches == ()


@pytest.mark.parametrize(
    ("gaps", "ttl"),
    [
        ((10,), "5m"),
        ((300,), "5m"),
        ((301,), "1h"),
        ((480, 10, 10), "1h"),
        ((3600,), "1h"),
        ((3601,), "5m"),
        ((480, 5400), "5m"),
        ((5400, 480), "1h"),
    ],
)
def test_the_pauses_of_a_session_choose_the_lifetime(gaps: tuple[float, ...], ttl: str) -> None:
    memories, now = SessionMemories(), 0.0
    memories.record(ID, prompt(1), now)
    for gap in gaps[:-1]:
        now += gap
        memories.record(ID, prompt(1), now)
    assert memories.recall(ID, now + gaps[-1]).ttl == ttl
    assert choose_ttl("5m", 10) == "5m"


def test_a_key_whose_sessions_are_never_continued_sends_one_shot_prompts() -> None:
    memories = SessionMemories()
    ids = [SessionId("tenant", f"{number}", "provider", 0, "model") for number in range(NEW_SESSIONS + 1)]
    new = SessionId("tenant", "new", "provider", 0, "model")
    for number, id in enumerate(ids[:NEW_SESSIONS]):
        assert memories.recall(new, 0).one_shot_heads is None
        memories.record(id, prompt(number, 5, head=number % 2), number)
    assert set(memories.recall(new, 99).one_shot_heads or ()) == {chain(0), chain(1)}
    assert memories.recall(SessionId("other", "new", "provider", 0, "model"), 99).one_shot_heads is None
    memories.record(ids[-2], prompt(NEW_SESSIONS - 1, 5, 6), 100)
    assert memories.recall(new, 101).one_shot_heads is None


def test_ten_thousand_sessions_fit_and_the_oldest_are_forgotten() -> None:
    memories = SessionMemories()
    long = b"\0" * 8 * 400
    for number in range(12_000):
        memories.record(SessionId("tenant", f"{number}", "provider", 0, "model"), SentPrompt(long, b"h"), number)
    assert memories.size <= MAX_BYTES
    assert memories.recall(SessionId("tenant", "0", "provider", 0, "model"), 0).branches == ()
    assert memories.recall(SessionId("tenant", "11999", "provider", 0, "model"), 0).branches == (long,)


def test_what_takes_more_than_all_the_space_is_not_kept() -> None:
    memories = SessionMemories(max_bytes=10_000)
    memories.record(ID, SentPrompt(b"\0" * 20_000, b"h"), 0)
    assert memories.size < 2_000  # that the client key has had a new session
    assert memories.recall(ID, 1).branches == ()


def test_what_is_known_of_client_keys_counts_too() -> None:
    memories = SessionMemories(max_bytes=200_000)
    ids = [SessionId(f"{number}", "s", "provider", 0, "model") for number in range(100)]
    for number, id in enumerate(ids):
        memories.record(id, SentPrompt(b"\0" * 8, b"h"), number)
    assert memories.size <= 200_000
    kept = sum(bool(memories.recall(id, 100).branches) for id in ids)
    assert 50 < kept < 90  # a session takes 1 kB, and so does its key
