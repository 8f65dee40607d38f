"""Properties of a pool: sessions keep their credential, load is spread, and cooldowns hold until they are probed."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    MAX_COOLDOWNS,
    MAX_PROBE_INTERVAL_S,
    PROBE_AFTER_S,
    CredentialCooldown,
)
from dragoman.upstreams.credentials.pool import MAX_SESSIONS, CredentialChoice, Member, MemberState, Pool

NOW = 1_800_000_000.0
MODEL = "model-1"
sizes = st.integers(2, 6)
sessions = st.text(max_size=12)


def pool_of(size: int) -> Pool:
    return Pool(tuple(Member(f"id-{place}", f"credential {place + 1}") for place in range(size)))


def first(pool: Pool, session: str | None, now: float = NOW, model: str = MODEL) -> int:
    return choice(pool, session, now, model).member


def choice(pool: Pool, session: str | None, now: float = NOW, model: str = MODEL) -> CredentialChoice:
    chosen = pool.choose(session, model, (), now)
    assert chosen is not None
    return chosen


def walk(pool: Pool, session: str | None, now: float = NOW) -> list[int]:
    """Return all members that a request tries if each refuses it."""
    tried: list[int] = []
    while (chosen := pool.choose(session, MODEL, tried, now)) is not None:
        tried.append(chosen.member)
    return tried


@given(sizes, sessions, st.lists(sessions, max_size=20))
@settings(max_examples=50)
def test_every_session_keeps_its_member_whatever_others_do(size: int, session: str, others: list[str]) -> None:
    pool = pool_of(size)
    home = first(pool, session)
    pool.record_success(home, MODEL, session, now=NOW)
    for other in others:
        pool.record_success(first(pool, other), MODEL, other, now=NOW)
        assert first(pool, session) == home
        pool.record_success(home, MODEL, session, now=NOW)


@given(sizes, sessions)
@settings(max_examples=50)
def test_two_independent_processes_agree(size: int, session: str) -> None:
    assert walk(pool_of(size), session) == walk(pool_of(size), session)


@given(sizes, st.integers(0, 1000))
@settings(max_examples=25)
def test_sessions_are_spread_evenly(size: int, seed: int) -> None:
    pool = pool_of(size)
    counts = Counter(first(pool, f"session {seed}-{number}") for number in range(100 * size))
    assert all(45 < counts[member] < 175 for member in range(size))


@given(sizes)
@settings(max_examples=10)
def test_without_a_session_the_least_recently_used_is_next(size: int) -> None:
    pool = pool_of(size)
    assert [first(pool, None) for _ in range(2 * size)] == [*range(size), *range(size)]


@given(sizes, sessions, st.data())
@settings(max_examples=50)
def test_only_sessions_of_a_member_in_cooldown_move(size: int, session: str, data: st.DataObject) -> None:
    resting = data.draw(st.integers(0, size - 1))
    usual = first(pool_of(size), session)
    pool = pool_of(size)
    pool.start_cooldown(resting, CredentialCooldown(ALL_MODELS, NOW + 60, "rate_limited"), NOW)
    assert (first(pool, session) == usual) is (usual != resting)


@given(sizes, sessions, st.floats(1, PROBE_AFTER_S), st.floats(0, 2 * PROBE_AFTER_S))
@settings(max_examples=100)
def test_a_short_cooldown_holds_to_its_end_and_not_longer(size: int, session: str, rest: float, later: float) -> None:
    pool = pool_of(size)
    home = first(pool, session)
    pool.start_cooldown(home, CredentialCooldown(MODEL, NOW + rest, "rate_limited"), NOW)
    assert (home in walk(pool, session, NOW + later)) is (NOW + later >= NOW + rest)


@given(sizes, st.one_of(st.none(), sessions), st.data())
@settings(max_examples=100)
def test_a_request_always_gets_a_member_even_if_all_cool_down(
    size: int, session: str | None, data: st.DataObject
) -> None:
    pool = pool_of(size)
    for member in range(size):
        if data.draw(st.booleans()):
            model = data.draw(st.sampled_from((ALL_MODELS, MODEL, "another")))
            pool.start_cooldown(member, CredentialCooldown(model, NOW + data.draw(st.floats(0, 1e6)), "quota"), NOW)
    chosen = walk(pool, session)
    assert chosen
    assert len(set(chosen)) == len(chosen)


def test_if_all_cool_down_only_the_one_that_is_free_soonest_is_used() -> None:
    pool = pool_of(3)
    for member, seconds in enumerate((90, 20, 60)):
        pool.start_cooldown(member, CredentialCooldown(ALL_MODELS, NOW + seconds, "rate_limited"), NOW)
    assert walk(pool, "a session") == [1]
    assert pool.free_at(1, MODEL, NOW) == NOW + 20


def test_a_moved_session_stays_where_its_cache_is_now() -> None:
    pool = pool_of(2)
    home = first(pool, "a session")
    pool.record_success(home, MODEL, "a session", now=NOW)
    pool.start_cooldown(home, CredentialCooldown(MODEL, NOW + 20, "rate_limited"), NOW)
    other = first(pool, "a session")
    pool.record_success(other, MODEL, "a session", now=NOW)
    assert other != home
    assert pool.last_member("a session") == first(pool, "a session", NOW + 30) == other


@given(sizes, sessions)
@settings(max_examples=50)
def test_a_limit_without_a_reset_time_moves_new_sessions_only(size: int, session: str) -> None:
    pool = pool_of(size)
    home = first(pool, session)
    pool.start_untimed_cooldown(home, MODEL, NOW)
    assert first(pool, session) != home
    assert first(pool, session, NOW + 5) == home
    pool.record_success(home, MODEL, session, now=NOW - 1000)
    pool.start_untimed_cooldown(home, MODEL, NOW)
    assert first(pool, session) == home
    assert home not in walk(pool, None)
    pool.start_cooldown(home, CredentialCooldown(MODEL, NOW + 60, "rate_limited"), NOW)
    assert first(pool, session) != home, "a reset that is named holds for all"


def test_the_longer_cooldown_of_a_model_is_shown_and_an_edit_keeps_both() -> None:
    old = pool_of(2)
    old.start_untimed_cooldown(0, MODEL, NOW)
    new = pool_of(2)
    new.inherit(old)
    assert new.states(NOW)[1] == MemberState("credential 1", NOW + 5, "rate_limited", MODEL)
    new.start_cooldown(0, CredentialCooldown(MODEL, NOW + 60, "spent"), NOW)
    assert new.states(NOW)[1] == MemberState("credential 1", NOW + 60, "spent", MODEL)
    assert new.end_cooldowns() == 2
    assert new.states(NOW) == [MemberState("credential 1"), MemberState("credential 2")]


def test_a_cooldown_for_one_model_does_not_affect_others() -> None:
    pool = pool_of(2)
    home = first(pool, "a session")
    pool.start_cooldown(home, CredentialCooldown(MODEL, NOW + 20, "rate_limited"), NOW)
    assert first(pool, "a session") != home
    assert first(pool, "a session", model="another") == home


def test_a_long_cooldown_is_probed_by_one_request_at_a_time() -> None:
    pool = pool_of(2)
    home = first(pool, "a session")
    pool.start_cooldown(home, CredentialCooldown(ALL_MODELS, NOW + 400_000, "quota"), NOW)
    assert home not in walk(pool, "a session", NOW + PROBE_AFTER_S - 1)
    probe = choice(pool, "a session", NOW + PROBE_AFTER_S)
    assert probe.member == home
    assert home not in walk(pool, "a session", NOW + PROBE_AFTER_S), "another request probes it already"
    pool.release(probe)
    assert first(pool, "a session", NOW + PROBE_AFTER_S) == home, "the probe gave no result"


def test_a_successful_probe_ends_the_cooldown() -> None:
    pool = pool_of(2)
    home = first(pool, "a session")
    pool.start_cooldown(home, CredentialCooldown(ALL_MODELS, NOW + 400_000, "quota"), NOW)
    assert first(pool, "a session", NOW + PROBE_AFTER_S) == home
    pool.record_success(home, MODEL, "a session", now=NOW)
    assert first(pool, "a session", NOW + PROBE_AFTER_S + 1) == home
    assert all(state.free_at is None for state in pool.states(NOW + PROBE_AFTER_S))


def test_failed_probes_come_half_as_often_but_never_stop() -> None:
    pool = pool_of(2)
    home = first(pool, "a session")
    end = NOW + 1_000_000
    now = NOW
    waits: list[float] = []
    pool.start_cooldown(home, CredentialCooldown(ALL_MODELS, end, "quota"), now)
    while len(waits) < 6:
        then = next(at for at in range(1, 10_000) if home in walk(pool, "a session", now + at))
        waits.append(float(then))
        now += then
        pool.start_cooldown(home, CredentialCooldown(ALL_MODELS, end, "quota"), now)
    assert waits == [
        PROBE_AFTER_S,
        2 * PROBE_AFTER_S,
        4 * PROBE_AFTER_S,
        8 * PROBE_AFTER_S,
        MAX_PROBE_INTERVAL_S,
        MAX_PROBE_INTERVAL_S,
    ]


def test_a_member_that_never_succeeds_is_not_probed_more_often_after_each_cooldown() -> None:
    pool = pool_of(2)
    now, times = NOW, []
    while now < NOW + 86_400:
        if 0 in walk(pool, None, now):
            times.append(now)
            pool.start_cooldown(0, CredentialCooldown(ALL_MODELS, now + 3600, "credential"), now)
        now += 60
    assert len(times) <= 24 + 4


def test_simultaneous_failures_count_as_one() -> None:
    pool = pool_of(2)
    for _ in range(5):
        pool.start_cooldown(0, CredentialCooldown(ALL_MODELS, NOW + 400_000, "quota"), NOW)
    assert 0 in walk(pool, None, NOW + PROBE_AFTER_S)


def test_a_configuration_edit_keeps_the_state_of_members_that_stay() -> None:
    old = pool_of(3)
    old.start_cooldown(1, CredentialCooldown(ALL_MODELS, NOW + 60, "quota"), NOW)
    old.record_success(2, MODEL, "a session", now=NOW)
    old.record_success(0, MODEL, "of one that goes", now=NOW)
    new = Pool((Member("id-2", "credential 1"), Member("id-9", "credential 2"), Member("id-1", "credential 3")))
    new.inherit(old)
    assert new.last_member("a session") == 0
    assert new.last_member("of one that goes") is None
    assert new.states(NOW) == [
        MemberState("credential 1"),
        MemberState("credential 2"),
        MemberState("credential 3", NOW + 60, "quota"),
    ]


def test_states_name_the_models_that_a_member_cools_down_for() -> None:
    pool = pool_of(2)
    pool.start_cooldown(1, CredentialCooldown(MODEL, NOW + 60, "rate_limited"), NOW)
    assert pool.states(NOW) == [
        MemberState("credential 1"),
        MemberState("credential 2"),
        MemberState("credential 2", NOW + 60, "rate_limited", MODEL),
    ]
    assert pool.states(NOW + 60) == [MemberState("credential 1"), MemberState("credential 2")]


def test_memory_is_bounded_however_many_sessions_and_models_there_are() -> None:
    pool = pool_of(2)
    for number in range(MAX_SESSIONS + 100):
        pool.record_success(0, MODEL, f"session {number}", now=NOW)
    assert pool.last_member("session 0") is None
    assert pool.last_member(f"session {MAX_SESSIONS + 99}") == 0
    for number in range(MAX_COOLDOWNS + 100):
        pool.start_cooldown(0, CredentialCooldown(f"model {number}", NOW + 60 + number, "rate_limited"), NOW)
    assert len(pool.states(NOW)) <= MAX_COOLDOWNS + 2


steps = st.lists(
    st.tuples(
        st.sampled_from(("ask", "serve", "refuse", "leave")),
        st.integers(0, 5),  # which session, or which of the requests under way
        st.sampled_from((0.0, 1.0, 29.0, 301.0, 700.0, 5000.0)),  # how much later
        st.sampled_from((10.0, 200.0, 4000.0, 400_000.0)),  # for how long it asks to be left alone
    ),
    max_size=60,
)


@given(st.integers(2, 4), steps)
@settings(max_examples=100)
def test_cooldowns_hold_and_are_probed_by_one_at_a_time_whatever_happens(
    size: int, happenings: list[tuple[str, int, float, float]]
) -> None:
    pool = pool_of(size)
    now = NOW
    cooldowns: dict[int, tuple[float, float]] = {}  # until when, and since when it is kept
    under_way: list[
        tuple[CredentialChoice, float | None]
    ] = []  # requests under way, and since when their member had a rest
    for what, number, later, rest in happenings:
        now += later
        resting = {member for member, (until, _) in cooldowns.items() if now < until}
        if what == "ask":
            chosen = choice(pool, f"session {number}", now)
            member = chosen.member
            if member in resting:
                early = now < cooldowns[member][1] + PROBE_AFTER_S
                since = cooldowns[member][1]
                taken = any(begun.member == member and since == probed for begun, probed in under_way)
                others = set(range(size)) - resting
                assert not others or not (early or taken)
            under_way.append((chosen, cooldowns[member][1] if member in resting else None))
        elif under_way:
            ending, _ = under_way.pop(number % len(under_way))
            member = ending.member
            pool.release(ending)
            if what == "serve":
                pool.record_success(member, MODEL, f"session {number}", now=now)
                cooldowns.pop(member, None)
            elif what == "refuse":
                pool.start_cooldown(member, CredentialCooldown(MODEL, now + rest, "rate_limited"), now)
                cooldowns[member] = (now + rest, now)
