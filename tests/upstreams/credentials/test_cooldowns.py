"""Cooldowns of credentials, by themselves: which requests they hold for, who probes them, what an edit keeps."""

import pytest

from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    MAX_COOLDOWNS,
    MAX_PROBE_INTERVAL_S,
    PROBE_AFTER_S,
    Cooldowns,
    CredentialCooldown,
    MemoryCooldowns,
    UntimedLimits,
)
from dragoman.upstreams.credentials.pool import Member, Pool

NOW = 1_800_000_000.0


def until(cooldowns: Cooldowns, member: str, model: str, now: float = NOW) -> list[float]:
    return sorted(cooldown.until for cooldown in cooldowns.active(member, model, now))


def test_a_request_meets_the_cooldown_of_its_model_and_that_of_all_models() -> None:
    cooldowns = MemoryCooldowns()
    cooldowns.start("a", CredentialCooldown("m", NOW + 60, "rate_limited"), NOW)
    cooldowns.start("a", CredentialCooldown(ALL_MODELS, NOW + 90, "quota"), NOW)
    cooldowns.start("b", CredentialCooldown("m", NOW, "over already"), NOW)
    assert until(cooldowns, "a", "m") == [NOW + 60, NOW + 90]
    assert until(cooldowns, "a", "other") == [NOW + 90]
    assert (until(cooldowns, "a", "m", NOW + 90), until(cooldowns, "b", "m")) == ([], [])
    assert [(model, cooldown.reason) for model, cooldown in cooldowns.list_models("a", NOW)] == [("m", "rate_limited")]
    cooldowns.end("a", "other")
    assert until(cooldowns, "a", "m") == [NOW + 60]
    assert (cooldowns.end_all({"b"}), cooldowns.end_all({"a"}), cooldowns.end_all({"a"})) == (0, 1, 0)


def test_one_request_at_a_time_probes_a_cooldown_and_failed_probes_get_rarer() -> None:
    cooldowns = MemoryCooldowns()
    now, interval_s = NOW, PROBE_AFTER_S
    for _ in range(6):
        cooldowns.start("a", CredentialCooldown("m", now + 100_000, "quota"), now)
        [active] = cooldowns.active("a", "m", now)
        assert active.blocks(now + interval_s - 1)
        assert not active.blocks(now + interval_s)
        now, interval_s = now + interval_s, min(interval_s * 2, MAX_PROBE_INTERVAL_S)
        probes = cooldowns.begin_probes("a", "m", now)
        assert (probes, cooldowns.begin_probes("a", "m", now)) == ((active,), ())
        assert active.blocks(now)
        cooldowns.end_probes(probes)
        assert not active.blocks(now)


def test_pools_may_share_their_cooldowns() -> None:
    """Two gateways with the same accounts: what one learns, the other knows."""
    shared = MemoryCooldowns()
    shared.start("a", CredentialCooldown("m", NOW + 60, "rate_limited"), NOW)
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
