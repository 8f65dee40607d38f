"""The audit log for commands: of the running gateway, or of the configured store."""

from contextlib import aclosing
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from dragoman.operate.admin_access import AdminPart
from dragoman.operate.gateway.running_gateway import GatewayClient
from dragoman.store import Store
from dragoman.store.audit import AuditCheck, AuditFilter, AuditRow

PATH = "/api/v1/audit"
LATEST = 2**62
AT_ONCE = 1000  # rows


class AuditEntry(Struct, frozen=True):
    """What was done, by which key and from where. `previous` is the hash of the entry before."""

    number: int
    time: str
    actor: str
    address: str
    action: str
    subject: str
    detail: dict[str, object] | None
    previous: str


class AuditPage(Struct, frozen=True):
    audit: list[AuditEntry]
    next: str | None


class StoredAudit(Struct, frozen=True):
    store: Store

    async def list(self, fits: AuditFilter, limit: int) -> list[AuditEntry]:
        rows = await self.store.list_audit_rows(LATEST, limit, fits)
        return [describe_row(row) for row in rows]

    async def verify(self) -> AuditCheck:
        return await self.store.verify_audit()


class RemoteAudit(Struct, frozen=True):
    gateway: GatewayClient

    async def list(self, fits: AuditFilter, limit: int) -> list[AuditEntry]:
        filters = {name: str(value) for name, value in asdict(fits).items() if value}
        found: list[AuditEntry] = []
        async with aclosing(self.gateway.read_pages(PATH, AuditPage, filters)) as pages:
            async for page in pages:
                found += page.audit
                if len(found) >= limit:
                    break
        return found[:limit]

    async def verify(self) -> AuditCheck:
        return msgspec.json.decode(await self.gateway.get(f"{PATH}/verify"), type=AuditCheck)


AuditAccess = StoredAudit | RemoteAudit
AUDIT: AdminPart[AuditAccess] = AdminPart(
    f"{PATH}?limit=1", lambda keyring, config: StoredAudit(keyring.store), RemoteAudit
)


def describe_row(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        number=row.number,
        time=datetime.fromtimestamp(row.time_ms / 1000, UTC).isoformat("T", "milliseconds"),
        actor=row.actor,
        address=row.address,
        action=row.action,
        subject=row.subject,
        detail=msgspec.json.decode(row.detail) if row.detail else None,
        previous=row.previous.hex(),
    )
