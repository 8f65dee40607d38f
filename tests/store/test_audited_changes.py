"""A change and its row in the audit log are one transaction, on both databases; the log says where it was broken."""

import pytest
from msgspec.structs import replace

from dragoman.config.limits import Limits
from dragoman.store import Store, StoreError
from dragoman.store.audit import INSERT, Actor, AuditCheck, AuditFilter, hash_audit_row, make_audit_row
from dragoman.store.client_keys import KeyChange, KeyId, KeyRow, NameTaken, Rotation
from dragoman.store.database import Session
from dragoman.store.limit_tables import KEY, TEAM, LimitRow, TeamInUse, TeamLimits, TeamRow, TeamTaken
from dragoman.store.spending import SpendingAdjustment
from store.stories import on_both_stores

AUDIT = make_audit_row("keys.create", "laptop", {"role": "client"}, Actor("key_1", "127.0.0.1"))
KEY_ROW = KeyRow(KeyId("key_9"), "laptop", "dgm_abcd", "wxyz", 1, None, None, team="core")
CHANGE = KeyChange(None, None, "dev", "", "", Limits(usd_per_day=5))


async def break_audit(store: Store) -> None:
    async def rename(session: Session) -> None:
        await session.execute("ALTER TABLE dragoman.audit RENAME COLUMN subject TO subject_gone")

    await store.database.write(rename)


async def count_audit(store: Store) -> int:
    return len(await store.list_audit_rows(2**62, 100))


@on_both_stores
async def test_each_change_adds_its_row(store: Store) -> None:
    await store.add_team(TeamRow("core", ("max",)), TeamLimits(Limits(usd_per_day=1)), AUDIT)
    await store.add_key(KEY_ROW, b"1", Limits(usd_per_week=7), AUDIT)
    changed = await store.change_key(KEY_ROW.id, 1, CHANGE, AUDIT)
    assert changed is not None
    assert (changed.user, changed.version) == ("dev", 2)
    await store.rotate_key("laptop", Rotation(b"2", "dgm_efgh", "6789", 1_900_000_000), audit=AUDIT)
    await store.set_limits(LimitRow(TEAM, "core", Limits(concurrent=3)), audit=AUDIT)
    await store.change_team(TeamRow("core", ("eve",), version=2), TeamLimits(), AUDIT)
    await store.add_adjustment(SpendingAdjustment(1, "key:key_9", "usd", -5), AUDIT)
    await store.revoke_key("laptop", 5, audit=AUDIT)
    await store.remove_team("core", audit=AUDIT)
    assert await count_audit(store) == 9
    # What is refused adds none.
    assert await store.change_key(KEY_ROW.id, 1, CHANGE, AUDIT) is None
    assert await store.revoke_key("laptop", 5, audit=AUDIT) is None
    assert await store.set_limits(LimitRow(TEAM, "core", Limits()), version=7, audit=AUDIT) is None
    assert await store.remove_team("core", audit=AUDIT) is False
    assert await count_audit(store) == 9


@on_both_stores
async def test_a_change_that_cannot_be_audited_is_not_made(store: Store) -> None:
    await store.add_team(TeamRow("core"), TeamLimits())
    await store.add_key(KEY_ROW, b"1")
    before = await store.read_policies(), await store.list_keys()
    await break_audit(store)
    changes = (
        store.add_key(replace(KEY_ROW, id=KeyId("key_10"), name="other"), b"2", audit=AUDIT),
        store.change_key(KEY_ROW.id, 1, CHANGE, AUDIT),
        store.rotate_key("laptop", Rotation(b"3", "dgm_efgh", "6789", 1_900_000_000), audit=AUDIT),
        store.revoke_key("laptop", 5, audit=AUDIT),
        store.set_limits(LimitRow(TEAM, "core", Limits(concurrent=3)), audit=AUDIT),
        store.add_team(TeamRow("ops"), TeamLimits(), AUDIT),
        store.change_team(TeamRow("core", ("eve",)), TeamLimits(), AUDIT),
        store.remove_team("core", audit=AUDIT),
        store.add_adjustment(SpendingAdjustment(1, "key:key_9", "usd", -5), AUDIT),
    )
    for change in changes:
        with pytest.raises((StoreError, TeamInUse)):
            await change
    assert (await store.read_policies(), await store.list_keys()) == before
    assert await store.read_adjustments(0, 0, 0) == ()


@on_both_stores
async def test_changes_are_counted_for_other_processes(store: Store) -> None:
    seen = [await store.version()]
    await store.add_key(replace(KEY_ROW, team=""), b"1")
    seen.append(await store.version())
    await store.change_key(KEY_ROW.id, 1, CHANGE)
    seen.append(await store.version())
    await store.set_limits(LimitRow(KEY, KEY_ROW.id, Limits(concurrent=3)))
    seen.append(await store.version())
    await store.add_team(TeamRow("core"), TeamLimits())
    seen.append(await store.version())
    await store.change_team(TeamRow("core", ("max",)), TeamLimits())
    seen.append(await store.version())
    await store.remove_team("core")
    seen.append(await store.version())
    assert seen == sorted(set(seen))


@on_both_stores
async def test_names_members_and_keys_of_teams_are_kept_apart(store: Store) -> None:
    await store.add_team(TeamRow("core", ("max",)), TeamLimits())
    with pytest.raises(TeamTaken, match="core"):
        await store.add_team(TeamRow("core"), TeamLimits())
    with pytest.raises(TeamTaken, match="max"):
        await store.add_team(TeamRow("ops", ("max",)), TeamLimits())
    await store.add_key(KEY_ROW, b"1", Limits(usd_per_week=7))
    with pytest.raises(NameTaken):
        await store.add_key(replace(KEY_ROW, id=KeyId("key_10")), b"2")
    with pytest.raises(TeamInUse, match="laptop"):
        await store.remove_team("core")
    found = await store.read_policies()
    assert [(row.scope, row.name, row.limits) for row in found.limits] == [(KEY, "key_9", Limits(usd_per_week=7))]
    assert [(key.name, key.team) for key in found.keys] == [("laptop", "core")]


@on_both_stores
async def test_the_log_is_filtered_and_says_where_it_was_broken(store: Store) -> None:
    for number in range(5):
        row = make_audit_row(
            "keys.create" if number % 2 else "limits.set", f"s{number}", None, Actor(f"key_{number % 2}", "")
        )
        await store.add_audit(replace(row, time_ms=1000 + number))
    for fits, subjects in (
        (AuditFilter(since_ms=1003), ["s4", "s3"]),
        (AuditFilter(actor="key_1"), ["s3", "s1"]),
        (AuditFilter(action="limits"), ["s4", "s2", "s0"]),
        (AuditFilter(action="limits.set", subject="s2"), ["s2"]),
        (AuditFilter(action="limit"), []),
    ):
        assert [row.subject for row in await store.list_audit_rows(2**62, 9, fits)] == subjects, fits
    whole = await store.verify_audit()
    assert (whole.rows, whole.broken) == (5, None)
    # The oldest rows expire, which breaks nothing.
    await store.remove_audit(1001)
    assert (await store.verify_audit()).broken is None

    async def forge(session: Session) -> None:
        await session.execute("UPDATE dragoman.audit SET actor = 'key_7' WHERE subject = 's2'")

    await store.database.write(forge)
    [forged] = await store.list_audit_rows(2**62, 9, AuditFilter(subject="s2"))
    assert (await store.verify_audit()).broken == forged.number

    async def remove(session: Session) -> None:
        await session.execute("DELETE FROM dragoman.audit WHERE subject = 's2'")

    await store.database.write(remove)
    assert (await store.verify_audit()).broken == forged.number


@on_both_stores
async def test_a_change_of_the_newest_row_is_found_too(store: Store) -> None:
    for number in range(3):
        await store.add_audit(make_audit_row("keys.create", f"s{number}"))
    first, second, newest = sorted(row.number for row in await store.list_audit_rows(2**62, 9))

    async def change(statement: str) -> None:
        async def run(session: Session) -> None:
            await session.execute(statement)

        await store.database.write(run)

    await change("UPDATE dragoman.audit SET actor = 'key_7' WHERE subject = 's2'")
    assert (await store.verify_audit()).broken == newest
    await change("UPDATE dragoman.audit SET actor = 'local' WHERE subject = 's2'")
    assert (await store.verify_audit()).broken is None
    await change("DELETE FROM dragoman.audit WHERE subject <> 's0'")
    assert (await store.verify_audit()).broken == first + 1 == second
    # A row that is added afterwards does not hide it.
    await store.add_audit(make_audit_row("keys.create", "s3"))
    assert (await store.verify_audit()).broken == second
    await change("DELETE FROM dragoman.audit")
    assert (await store.verify_audit()).broken is not None


@on_both_stores
async def test_rows_that_expire_or_that_an_older_gateway_has_written_break_nothing(store: Store) -> None:
    await store.add_audit(replace(make_audit_row("keys.create", "old"), time_ms=1000))
    await store.remove_audit(1001)
    assert await store.verify_audit() == AuditCheck(0)
    await store.add_audit(make_audit_row("keys.create", "s0"))

    [last] = await store.list_audit_rows(2**62, 1)

    async def write_as_before(session: Session) -> None:
        row = make_audit_row("keys.create", "s1")
        values = (row.time_ms, row.actor, row.action, row.subject, row.address, row.detail, hash_audit_row(last))
        await session.fetch(int, INSERT, *values)

    await store.database.write(write_as_before)
    assert await store.verify_audit() == AuditCheck(2)
    await store.add_audit(make_audit_row("keys.create", "s2"))
    assert await store.verify_audit() == AuditCheck(3)
