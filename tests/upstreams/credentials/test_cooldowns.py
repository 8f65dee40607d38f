"""Cooldowns of credentials, by themselves: which requests they hold for, who probes them, what an edit keeps."""

import pytest

from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    MAX_COOLDOWNS,
    MAX_PROBE_INTERVAL_S,
    PROBE_AFTER_S,
    ActiveCooldown,
    Cooldowns,
    CredentialCooldown,
    MemoryCooldowns,
    UntimedLimits,
)
from dragoman.upstreams.credentials.pool import Member, Pool

NOW = 1_800_000_000.0


def until(cooldowns: Cooldowns, member: int, model: str, now: float = NOW) -> list[float]:
    return sorted(cooldown.until for cooldown in cooldowns.active(member, model, now))


def test_a_request_meets_the_cooldown_of_its_model_and_that_of_all_models() -> None:
    cooldowns = MemoryCooldowns()
    cooldowns.start(0, CredentialCooldown("m", NOW + 60, "rate_limited"), NOW)
    cooldowns.start(0, CredentialCooldown(ALL_MODELS, NOW + 90, "quota"), NOW)
    cooldowns.start(1, CredentialCooldown("m", NOW, "over already"), NOW)
    assert until(cooldowns, 0, "m") == [NOW + 60, NOW + 90]
    assert until(cooldowns, 0, "other") == [NOW + 90]
    assert (until(cooldowns, 0, "m", NOW + 90), until(cooldowns, 1, "m")) == ([], [])
    assert [(model, cooldown.reason) for model, cooldown in cooldowns.list_models(0, NOW)] == [("m", "rate_limited")]
    cooldowns.end(0, "other")
    assert until(cooldowns, 0, "m") == [NOW + 60]
    assert (cooldowns.end_all(), cooldowns.end_all()) == (1, 0)


def test_one_request_at_a_time_probes_a_cooldown_and_failed_probes_get_rarer() -> None:
    cooldowns = MemoryCooldowns()
    now, interval_s = NOW, PROBE_AFTER_S
    for _ in range(6):
        cooldowns.start(0, CredentialCooldown("m", now + 100_000, "quota"), now)
        [active] = cooldowns.active(0, "m", now)
        assert active.blocks(now + interval_s - 1)
        assert not active.blocks(now + interval_s)
        now, interval_s = now + interval_s, min(interval_s * 2, MAX_PROBE_INTERVAL_S)
        probes = cooldowns.begin_probes(0, "m", now)
        assert (probes, cooldowns.begin_probes(0, "m", now)) == ((active,), ())
        assert active.blocks(now)
        cooldowns.end_probes(probes)
        assert not active.blocks(now)


def test_members_keep_their_cooldowns_in_another_order() -> None:
    cooldowns = MemoryCooldowns()
    for member in range(3):
        cooldowns.start(member, CredentialCooldown("m", NOW + 60 + member, "rate_limited"), NOW)
    moved = cooldowns.renumber({0: 1, 2: 0})
    assert [until(moved, member, "m") for member in range(3)] == [[NOW + 62], [NOW + 60], []]


def test_pools_may_share_their_cooldowns() -> None:
    """Two gateways with the same accounts: what one learns, the other knows."""
    shared = MemoryCooldowns({(0, "m"): ActiveCooldown(NOW + 60, "rate_limited", NOW + 300, 300.0)})
    members = (Member("a", "first"), Member("b", "second"))
    one, other = (Pool(members, lambda: NOW, shared) for _ in range(2))
    one.start_cooldown(1, CredentialCooldown(ALL_MODELS, NOW + 90, "quota"), NOW)
    assert other.is_cooling_down("m", NOW)
    other.record_success(0, "m", now=NOW)
    assert not one.is_cooling_down("m", NOW)


ANSWER, LIMIT = "answer", "limit"


@pytest.mark.parametrize(
    ("happenings", "seconds"),
    [
        ([(0, LIMIT)], [5]),
        ([(0, LIMIT), (5, LIMIT), (10, LIMIT), (20, LIMIT), (40, LIMIT), (60, LIMIT)], [5, 10, 20, 40, 60, 60]),
        ([(0, LIMIT), (1000, LIMIT)], [5, 10]),
        ([(0, LIMIT), (0, LIMIT), (2, LIMIT)], [5, 5, 3]),  # requests that were under way
        ([(0, ANSWER), (0, LIMIT), (59, LIMIT)], [0, 0]),
        ([(0, ANSWER), (60, LIMIT)], [5]),
        ([(0, LIMIT), (5, LIMIT), (1, ANSWER), (2, LIMIT), (58, LIMIT)], [5, 10, 0, 5]),
    ],
)
def test_how_long_a_limit_without_a_reset_time_holds(happenings: list[tuple[float, str]], seconds: list[float]) -> None:
    limits = UntimedLimits()
    now, found = NOW, []
    for later, what in happenings:
        now += later
        if what == ANSWER:
            limits.record_answer(0, "m", now)
            assert list(limits.active(0, "m", now)) == []
        else:
            found.append(limits.record_limit(0, "m", now))
            assert [cooldown.until - now for cooldown in limits.active(0, "m", now)] == [s for s in found[-1:] if s]
    assert found == seconds


def test_limits_without_a_reset_time_are_of_one_credential_and_one_model() -> None:
    limits = UntimedLimits()
    limits.record_answer(0, "other", NOW)
    limits.record_answer(1, "m", NOW)
    assert (limits.record_limit(0, "m", NOW), limits.record_limit(1, "m", NOW)) == (5, 0)
    assert [model for model, _ in limits.list_models(0, NOW)] == ["m"]
    assert list(limits.list_models(1, NOW)) == []
    assert list(limits.active(0, "other", NOW)) == []
    moved = limits.renumber({0: 2})
    assert [model for model, _ in moved.list_models(2, NOW)] == ["m"]
    assert moved.record_limit(2, "other", NOW) == 0
    assert (limits.end_all(), list(limits.active(0, "m", NOW))) == (1, [])


def test_limits_without_a_reset_time_are_bounded_however_many_models_there_are() -> None:
    limits = UntimedLimits()
    for number in range(MAX_COOLDOWNS + 100):
        limits.record_limit(0, f"model {number}", NOW)
    assert len(list(limits.list_models(0, NOW))) == MAX_COOLDOWNS


def test_pools_that_share_their_cooldowns_judge_limits_without_a_reset_time_by_themselves() -> None:
    shared = MemoryCooldowns()
    one, other = (Pool((Member("a", "first"), Member("b", "second")), lambda: NOW, shared) for _ in range(2))
    assert one.start_untimed_cooldown(0, "m", NOW) == 5
    assert (one.free_at(0, "m", NOW), other.free_at(0, "m", NOW)) == (NOW + 5, NOW)
