"""Cooldowns of credentials, by themselves: which requests they hold for, who probes them, what an edit keeps."""

from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    MAX_PROBE_INTERVAL_S,
    PROBE_AFTER_S,
    ActiveCooldown,
    Cooldowns,
    CredentialCooldown,
    MemoryCooldowns,
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
    other.record_success(0, "m")
    assert not one.is_cooling_down("m", NOW)
