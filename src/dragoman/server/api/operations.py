"""What an operator does to the gateway: recorded in the audit log, and done in all of its workers."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.headers import Header
from dragoman.net.tasks import spawn
from dragoman.operate.audit import LATEST, AuditPage, describe_row
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.ports import OtherWorkers
from dragoman.server.api.wire import (
    IDEMPOTENCY_KEY,
    PAGE,
    Operation,
    convert_errors,
    forbid_field,
    invalid_cursor,
    make_cursor,
    number_parameter,
    read_idempotency_key,
    respond_bytes,
    text_parameter,
)
from dragoman.server.routes import RoutedRequest
from dragoman.store import Store
from dragoman.store.audit import Actor, AuditCheck, AuditFilter, AuditRow, make_audit_row
from dragoman.store.meter import Meter
from dragoman.store.repeatable_requests import RepeatedAnswer
from dragoman.tenancy.keys import Keyring
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.models import CachedCatalogue

if TYPE_CHECKING:
    from dragoman.operate.configuration.effective import ConfigReader
    from dragoman.operate.provider_state import ProviderAccount
    from dragoman.server.worker_group import Question

STORE_TIMEOUT_S = 10.0
RELOAD, USE_ACCOUNT, REFRESH_KEYS = "reload", "use-account", "refresh-keys"
END_COOLDOWNS, LIST_ACCOUNTS = "end-cooldowns", "list-accounts"


LIST_AUDIT = Operation(
    "List what was changed and viewed, newest first.",
    (AuditPage,),
    (
        *PAGE,
        number_parameter("since_ms", "Milliseconds since the epoch; 0 if it is absent."),
        text_parameter("actor", "The id of the key that did it, or local."),
        text_parameter("action", "An action, or the first words of several: keys, keys.create."),
        text_parameter("subject", "What it was done to."),
    ),
)


VERIFY_AUDIT = Operation("Check that no row of the audit log was changed or removed.", (AuditCheck,))


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
        row = make_audit_row(action, subject, detail, Actor(request.key, request.http.address))
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._writer.store.add_audit(row)

    @asynccontextmanager
    async def changing(
        self, request: RoutedRequest, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> AsyncIterator[AuditRow]:
        """Yield the row that a change of the store adds in its own transaction.

        If the change raises RequestError, the row is `ACTION.failed` instead.
        """
        try:
            yield make_audit_row(action, subject, detail, Actor(request.key, request.http.address))
        except RequestError as refused:
            with suppress(RequestError):  # the caller gets the reason of the action
                await self.record(request, f"{action}.failed", subject, {"error": refused.failure.message})
            raise

    @asynccontextmanager
    async def recording(
        self, request: RoutedRequest, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> AsyncIterator[None]:
        """Add a row before an action, and a second one, `ACTION.failed`, if the action raises RequestError."""
        await self.record(request, action, subject, detail)
        async with self.changing(request, action, subject):
            yield

    @LIST_AUDIT.handled_by
    async def list_audit(self, request: RoutedRequest) -> None:
        query = LIST_AUDIT.read_query(request)
        limit, position = query.limit(), query.cursor()
        before = LATEST if position is None else int.from_bytes(position, "big")
        if before > LATEST:
            raise invalid_cursor()
        fits = AuditFilter(
            query.number("since_ms", 0), *((query.text(name) or "") for name in ("actor", "action", "subject"))
        )
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                rows = await self._writer.store.list_audit_rows(before, limit, fits)
        following = make_cursor(rows[-1].number.to_bytes(8, "big")) if len(rows) == limit else None
        LIST_AUDIT.respond(request, AuditPage([describe_row(row) for row in rows], following))

    @VERIFY_AUDIT.handled_by
    async def verify_audit(self, request: RoutedRequest) -> None:
        VERIFY_AUDIT.read_query(request)
        with convert_errors():
            found = await self._writer.store.verify_audit()
        VERIFY_AUDIT.respond(request, found)


class Answer(Struct, frozen=True):
    """What a write answers; `kept` is what a repetition of it is answered, without a secret."""

    body: bytes
    kept: bytes
    etag: str = ""

    @property
    def headers(self) -> list[Header]:
        return [(b"etag", self.etag.encode())] if self.etag else []


class RepeatableWrites:
    """Handles each request with an Idempotency-Key once, and gives its answer to those that repeat it for a day."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def respond(
        self, request: RoutedRequest, status: int, body: Struct, write: Callable[[], Awaitable[Answer]]
    ) -> None:
        """Respond with what `write` answers, or with what it answered to the same request before."""
        key = read_idempotency_key(request)
        if key is None:
            answer = await write()
            respond_bytes(request, answer.body, answer.headers, status)
            return
        content = f"{request.http.method} {request.path} ".encode() + msgspec.json.encode(body)
        claim = RepeatedAnswer(hashlib.sha256(content).digest(), 0, "", b"", int(time.time()))
        with convert_errors():
            earlier = await self._store.claim_request(request.key, key, claim)
        if earlier is None:
            await self._handle_first(request, key, replace(claim, status=status), write)
            return
        if earlier.request != claim.request:
            raise _refuse_repetition("idempotency_mismatch", "was sent with another request before: use a new one.")
        if not earlier.status:
            raise _refuse_repetition("idempotency_in_progress", "is of a request that has not ended yet.")
        repeated = Answer(earlier.body, earlier.body, earlier.etag)
        respond_bytes(request, repeated.body, repeated.headers, earlier.status)

    async def _handle_first(
        self, request: RoutedRequest, key: str, claim: RepeatedAnswer, write: Callable[[], Awaitable[Answer]]
    ) -> None:
        try:
            answer = await write()
        except RequestError:
            with convert_errors():
                await self._store.forget_request(request.key, key)
            raise
        with convert_errors():
            await self._store.keep_answer(request.key, key, replace(claim, etag=answer.etag, body=answer.kept))
        respond_bytes(request, answer.body, answer.headers, claim.status)


def _refuse_repetition(code: str, message: str) -> RequestError:
    at = f"/{IDEMPOTENCY_KEY}"
    return RequestError(Failure(Kind.CONFLICT, f"This {IDEMPOTENCY_KEY} {message}", code=code, at=at))


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
        self.meter: Meter | None = None  # of what is spent; None: it is not known
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


class PolicyApi:
    """What the parts for keys, teams and limits share: changes are audited, and every worker reads them."""

    def __init__(self, workers: EveryWorker, audit: AdminAudit) -> None:
        self._workers = workers
        self._keyring = workers.keyring
        self._policies = workers.keyring.policies
        self._audit = audit
        self._repeatable = RepeatableWrites(workers.keyring.store)

    async def _refresh(self) -> None:
        with convert_errors():
            await self._keyring.refresh()

    async def _publish(self) -> None:
        await self._refresh()
        await self._workers.refresh_keys()

    async def _check_users(self, request: RoutedRequest, users: Iterable[str], field: str) -> None:
        """Raise RequestError if a token of one team would take over a user who has keys outside that team."""
        team = request.access.team
        if not team:
            return
        await self._refresh()
        for user in users:
            key = self._policies.find_key_outside(team, user)
            if key is not None:
                message = f'The user "{user}" has a key outside the team "{team}" of this admin token.'
                raise forbid_field(message, field)
