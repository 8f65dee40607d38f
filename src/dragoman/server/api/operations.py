"""What an operator does to the gateway: recorded in the audit log, and done in all of its workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.ports import OtherWorkers
from dragoman.server.api.wire import PAGE, Operation, convert_errors, invalid_cursor, make_cursor
from dragoman.server.routes import RoutedRequest
from dragoman.store.audit import AuditRow
from dragoman.tenancy.keys import Keyring
from dragoman.translate.hub.failure import RequestError
from dragoman.upstreams.models import CachedCatalogue

if TYPE_CHECKING:
    from dragoman.operate.configuration.effective import ConfigReader
    from dragoman.operate.provider_state import ProviderAccount
    from dragoman.server.worker_group import Question

LATEST = 2**62
STORE_TIMEOUT_S = 10.0
MAX_SUBJECT = 200
RELOAD, USE_ACCOUNT, REFRESH_KEYS = "reload", "use-account", "refresh-keys"
END_COOLDOWNS, LIST_ACCOUNTS = "end-cooldowns", "list-accounts"


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


LIST_AUDIT = Operation("List what was done and looked at, the newest first.", (AuditPage,), PAGE)


class AdminAudit:
    """Adds rows to the store's log, and lists them."""

    def __init__(self, writer: UsageWriter) -> None:
        self._writer = writer

    async def record(
        self,
        request: RoutedRequest,
        action: str,
        subject: str,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        """Add a row before the action is done, by the request's key; raises RequestError if it cannot be stored."""
        now = time.time_ns() // 1_000_000
        text = "" if detail is None else msgspec.json.encode(detail).decode()
        row = AuditRow(now, request.key, action, subject[:MAX_SUBJECT], request.http.address, text)
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._writer.store.add_audit(row)

    @asynccontextmanager
    async def recording(
        self, request: RoutedRequest, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> AsyncIterator[None]:
        """Add a row before an action, and a second one, `ACTION.failed`, if the action raises RequestError."""
        await self.record(request, action, subject, detail)
        try:
            yield
        except RequestError as refused:
            with suppress(RequestError):  # the caller gets the reason of the action
                await self.record(request, f"{action}.failed", subject, {"error": refused.failure.message})
            raise

    @LIST_AUDIT.handled_by
    async def list_audit(self, request: RoutedRequest) -> None:
        query = LIST_AUDIT.read_query(request)
        limit, position = query.limit(), query.cursor()
        before = LATEST if position is None else int.from_bytes(position, "big")
        if before > LATEST:
            raise invalid_cursor()
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                rows = await self._writer.store.list_audit_rows(before, limit)
        following = make_cursor(rows[-1].number.to_bytes(8, "big")) if len(rows) == limit else None
        LIST_AUDIT.respond(request, AuditPage([_describe(row) for row in rows], following))


def _describe(row: AuditRow) -> AuditEntry:
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


class ReloadSettings(Protocol):
    @property
    def read(self) -> "ConfigReader": ...


class Process(Protocol):
    """This worker's gateway."""

    @property
    def settings(self) -> ReloadSettings | None: ...
    def reload(self) -> None: ...


class EveryWorker:
    """Does what an operator does in this worker first, then in the others.

    Another one that does not answer in time finds out later, or not at all.
    """

    def __init__(self, gateway: Gateway, keyring: Keyring, process: Process) -> None:
        self.gateway = gateway
        self.keyring = keyring
        self._process = process
        self._group: OtherWorkers | None = None

    def join_group(self, group: OtherWorkers) -> None:
        """Repeat here what an operator does in another worker, and there what is done here."""
        self._group = group
        group.answer(RELOAD, self._reload)
        group.answer(USE_ACCOUNT, self._use_account)
        group.answer(REFRESH_KEYS, self._refresh_keys)
        group.answer(END_COOLDOWNS, self._end_cooldowns)
        group.answer(LIST_ACCOUNTS, self._list_accounts)

    @property
    def settings(self) -> ReloadSettings | None:
        return self._process.settings

    async def reload(self) -> None:
        """Use the configuration file as it is now."""
        await self._reload({})
        await self._ask(RELOAD)

    async def use_account(self, provider: str) -> None:
        """Read a provider's models with its new credential. One without a section appears with its credential."""
        await self._use_account({"provider": provider})
        await self._ask(USE_ACCOUNT, provider=provider)

    async def refresh_keys(self) -> None:
        """Let the other workers know that a key was created, changed or revoked in this one."""
        await self._ask(REFRESH_KEYS)

    async def end_cooldowns(self, provider: str) -> int:
        """End the cooldowns of a provider; return how many. Raises NotFound if there is no such provider."""
        ended = [await self._end_cooldowns({"provider": provider})]
        ended += await self._ask(END_COOLDOWNS, provider=provider)
        return sum(map(int, ended))

    async def list_accounts(self) -> "list[ProviderAccount]":
        """Return the state of every provider's credentials; a cooldown in one worker is one of the gateway."""
        from dragoman.operate.provider_state import ProviderAccount, merge_accounts

        answers = [await self._list_accounts({}), *await self._ask(LIST_ACCOUNTS)]
        return merge_accounts([msgspec.json.decode(answer, type=list[ProviderAccount]) for answer in answers])

    async def _ask(self, name: str, **question: str) -> list[bytes]:
        return [] if self._group is None else list((await self._group.ask_all(name, question)).values())

    # In this worker

    async def _reload(self, question: "Question") -> bytes:
        self._process.reload()
        return b""

    async def _use_account(self, question: "Question") -> bytes:
        provider = question["provider"]
        if provider not in self.gateway.runtime.providers:
            self._process.reload()
        catalogue = self.gateway.runtime.catalogues.get(provider)
        if isinstance(catalogue, CachedCatalogue):
            spawn(catalogue.refresh(), name=f"models of {provider}")
        return b""

    async def _refresh_keys(self, question: "Question") -> bytes:
        await self.keyring.refresh()
        return b""

    async def _end_cooldowns(self, question: "Question") -> bytes:
        from dragoman.operate.provider_state import end_cooldowns

        return b"%d" % end_cooldowns(self.gateway.runtime.providers, question["provider"])

    async def _list_accounts(self, question: "Question") -> bytes:
        from dragoman.operate.provider_state import list_accounts

        runtime = self.gateway.runtime
        problems = {name: catalogue.list_problem() for name, catalogue in runtime.catalogues.items()}
        return msgspec.json.encode(list_accounts(runtime.providers, problems, time.time()))
