"""The audit log for commands: of a store of each kind, and of a gateway that gives it in pages."""

from pathlib import Path

from dragoman.net.client import HttpClient
from dragoman.operate.audit import AuditEntry, RemoteAudit, StoredAudit, describe_row
from dragoman.operate.gateway.running_gateway import GatewayClient
from dragoman.store import open_store
from dragoman.store.audit import ALL_ROWS, AuditFilter, AuditRow, make_audit_row
from fakes.service import json_answer
from fakes.upstream import FakeUpstream


async def test_the_log_of_a_store_is_filtered_and_verified(store_url: str) -> None:
    async with await open_store(store_url) as store:
        for action in ("keys.create", "keys.revoke", "limits.set"):
            await store.add_audit(make_audit_row(action, "key_1", {"name": "laptop"}))
        audit = StoredAudit(store)
        assert [row.action for row in await audit.list(ALL_ROWS, 2)] == ["limits.set", "keys.revoke"]
        found = await audit.list(AuditFilter(action="keys"), 10)
        assert [(row.action, row.detail) for row in found] == [
            ("keys.revoke", {"name": "laptop"}),
            ("keys.create", {"name": "laptop"}),
        ]
        check = await audit.verify()
        assert (check.rows, check.broken) == (3, None)


async def test_a_gateways_pages_are_read_up_to_the_limit(tmp_path: Path) -> None:
    rows = [AuditEntry(number, "", "local", "", "keys.create", "k", None, "") for number in range(4)]
    with FakeUpstream() as gateway:
        pages = iter(({"audit": rows[:2], "next": "2"}, {"audit": rows[2:], "next": "4"}))
        gateway.intercept = lambda request: json_answer(next(pages))
        async with HttpClient() as http:
            audit = RemoteAudit(GatewayClient(f"http://127.0.0.1:{gateway.port}", "dgm_fake", http))
            assert await audit.list(AuditFilter(actor="local"), 3) == rows[:3]
    assert [request.path for request in gateway.requests] == [
        "/api/v1/audit?actor=local",
        "/api/v1/audit?actor=local&cursor=2",
    ]


def test_a_row_is_shown_with_its_time_and_the_hash_of_the_row_before() -> None:
    shown = describe_row(AuditRow(1500, "local", "keys.create", "key_1", "", "", 7, b"\x01\xff"))
    assert shown == AuditEntry(7, "1970-01-01T00:00:01.500+00:00", "local", "", "keys.create", "key_1", None, "01ff")
