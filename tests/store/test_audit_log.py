"""The audit log on both stores: rows are numbered, and each holds the hash of the one before."""

import asyncio

from msgspec.structs import replace

from dragoman.store import open_store
from dragoman.store.audit import AuditRow, hash_audit_row
from store.rows import NOON_MS


def test_audit_rows_are_read_newest_first_and_form_a_chain(store_url: str) -> None:
    rows = [
        AuditRow(NOON_MS, "environment", "captures.read", f"req_{number}", "127.0.0.1", '{"a":1}')
        for number in range(3)
    ]

    async def scenario() -> None:
        store, other = await open_store(store_url), await open_store(store_url)
        await asyncio.gather(store.add_audit(rows[0]), other.add_audit(rows[0]))
        for one in rows[1:]:
            await store.add_audit(one)
        newest = await store.list_audit_rows(2**62, 2)
        assert [found.subject for found in newest] == ["req_2", "req_1"]
        oldest = await store.list_audit_rows(newest[-1].number, 2)
        assert [replace(found, number=0, previous=b"") for found in oldest] == [rows[0], rows[0]]
        chain = [*newest, *oldest]
        assert [found.previous for found in chain] == [*(hash_audit_row(found) for found in chain[1:]), b""]
        assert await store.remove_audit(NOON_MS) == 0
        assert await store.remove_audit(NOON_MS + 1) == 4
        assert await store.list_audit_rows(2**62, 2) == ()
        await store.close()
        await other.close()

    asyncio.run(scenario())
