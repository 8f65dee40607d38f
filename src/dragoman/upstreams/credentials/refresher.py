"""One account's credential: cached, and renewed once however many requests need it.

The vendor's own tools and other processes of ours renew the same credential, and refresh tokens rotate: so the source
is read again before it is used, after a rejection, and before it is written.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Generic, Protocol

from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.translate.framing.redaction import SHORTEST, mask_text
from dragoman.translate.hub.failure import Failure, Kind, RequestError, describe_cause
from dragoman.upstreams.credentials.credential import (
    NEVER_EXPIRES,
    AccountChanged,
    C,
    CredentialError,
    CredentialSource,
    TokenRejected,
)
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceResponse

log = logging.getLogger(__name__)

RETRY_S = 30.0  # between attempts to renew early, and before a rejected refresh token is tried again
READ_TIMEOUT_S = 0.25  # how long a request waits for the source to be read when a renewal is due


class _Given(Struct, frozen=True):
    """A token that requests are given, and how often the credential had been renewed by then."""

    token: str
    renewals: int


# What this request was last given. A request authorizes itself and renews within one task.
_NOTHING_GIVEN = _Given("", 0)
_given: ContextVar[_Given] = ContextVar("token_given", default=_NOTHING_GIVEN)


class CredentialIssuer(Protocol[C]):
    """Renews credentials, and describes a rejection and its remedy to a person."""

    @property
    def remedy(self) -> str: ...
    async def renew(self, old: C) -> C:
        """Raise TokenRejected if the refresh token is not accepted, CredentialError if that is not known."""

    def describe_rejection(self, credential: C, rejected: TokenRejected) -> str: ...


class _Renewed(Struct, Generic[C], frozen=True):
    credential: C


class _Failed(Struct, frozen=True):
    reason: CredentialError


class _Rejection(Struct, frozen=True):
    """A refresh token that its issuer rejected, why, and until when it is not tried again."""

    token: str
    until: float
    reason: TokenRejected


class RenewalTiming(Struct, frozen=True):
    """When a credential is renewed, in seconds before it expires by the clock of its issuer."""

    clock: ServerClock
    margin_s: float


class CredentialRefresher(Generic[C]):
    """Hands out one account's credential and keeps it valid."""

    def __init__(
        self,
        name: str,
        source: Callable[[], CredentialSource[C]],
        issuer: CredentialIssuer[C],
        timing: RenewalTiming,
    ) -> None:
        self._name = name
        self._source = source
        self._issuer = issuer
        self.clock = timing.clock
        self._margin_s = timing.margin_s
        self._current: C | None = None
        self._handed_out = _NOTHING_GIVEN  # made once for all requests that are given the current token
        self._renewals = 0
        self._secrets: deque[bytes] = deque(maxlen=12)  # redacted in every message
        self._due_at = 0.0
        self._retry_early_at = 0.0
        self._tried_early = ""  # the refresh token that was last tried before it had to be
        self._warned = ""
        self._warn_again_at = 0.0
        self._rejection = _Rejection("", 0.0, TokenRejected(""))
        self._renewal: asyncio.Task[_Renewed[C] | _Failed] | None = None
        self._was_read = asyncio.Event()  # set once the running renewal has read the source
        self._renewal_for = ""  # the rejected token that the renewal was started for

    async def get(self) -> C:
        """Return a valid credential. Raises RequestError if there is none. Early renewal runs in the background."""
        _given.set(_NOTHING_GIVEN)
        current, now = self._current, self.clock.now()
        if current is None or now >= current.expires_at:
            current = self._unwrap(await self._join(""))
        elif now >= self._due_at and self._renewal is None:
            current = await self._reread(current)
        _given.set(self._handed_out)
        return current

    async def fetch(
        self,
        send: Callable[[C], Awaitable[ServiceResponse]],
        read_failure: Callable[[int, Mapping[bytes, bytes], bytes], Failure],
    ) -> ServiceResponse:
        """Return a response of the account's services with status 200. Raises RequestError.

        After a rejected credential, the request is sent once more if the credential can be renewed.
        """
        is_repeated = False
        while True:
            try:
                response = await send(await self.get())
            except CredentialError as lost:
                raise RequestError(Failure(lost.kind, str(lost))) from lost
            if response.status == 200:
                return response
            failure = read_failure(response.status, {}, response.body)
            if is_repeated or failure.kind is not Kind.CREDENTIAL or not await self.renew():
                raise RequestError(failure)
            is_repeated = True

    def expires_at(self) -> float | None:
        """Return when the credential in use expires, in Unix seconds; None if there is none yet, or it does not."""
        current = self._current
        return None if current is None or not math.isfinite(current.expires_at) else current.expires_at

    async def _reread(self, current: C) -> C:
        """Take over at once what another program has renewed; do not wait for our own renewal."""
        self._was_read.clear()
        renewal = self._start("")
        renewal.add_done_callback(lambda _: self._was_read.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self._was_read.wait()
        return self._unwrap(renewal.result()) if renewal.done() else self._current or current

    async def renew(self) -> bool:
        """Renew after a rejection; return whether the token is now newer than the one this request was given.

        A token that its issuer has just given out is newer even if it is spelled the same.
        """
        given = _given.get()
        if not given.token or self._current is None:
            return False
        if self._handed_out != given:
            return True
        ours = self._renewal is None or self._renewal_for == given.token
        result = await self._join(given.token)
        if not ours and self._handed_out == given:  # the renewal had started before the rejection was known
            result = await self._join(given.token)
        return isinstance(result, _Renewed) and self._handed_out != given

    async def _join(self, rejected_token: str) -> _Renewed[C] | _Failed:
        """Wait for the running renewal, or a new one; all waiting requests share its result."""
        renewal = self._renewal or self._start(rejected_token)
        return await asyncio.shield(renewal)

    def _start(self, rejected_token: str) -> asyncio.Task[_Renewed[C] | _Failed]:
        renewal = spawn(self._run(rejected_token), name=f"credential of {self._name}")
        self._renewal, self._renewal_for = renewal, rejected_token
        renewal.add_done_callback(self._finish)
        return renewal

    def _finish(self, renewal: asyncio.Task[_Renewed[C] | _Failed]) -> None:
        if self._renewal is renewal:
            self._renewal = None

    def _unwrap(self, result: _Renewed[C] | _Failed) -> C:
        if isinstance(result, _Renewed):
            return result.credential
        raise RequestError(Failure(result.reason.kind, f"Provider {self._name!r}: {result.reason}"))

    async def _run(self, rejected_token: str) -> _Renewed[C] | _Failed:
        try:
            source = await asyncio.to_thread(self._source)
            stored = await self._read(source)
            if self._is_fresh(stored, rejected_token):
                return _Renewed(self._adopt(stored, self._margin_s))
            async with source.hold(stored) as held:
                return _Renewed(await self._renew_if_needed(held, rejected_token))
        except CredentialError as error:
            reason = CredentialError(mask_text(str(error), self._secrets), error.kind)
            current = self._current
            if (
                current is not None
                and self._is_valid(current, rejected_token)
                and not isinstance(error, AccountChanged)
            ):
                self._warn(str(reason))
                return _Renewed(current)
            return _Failed(reason)

    def _warn(self, reason: str) -> None:
        """Log a failed renewal once, not for every request."""
        now = self.clock.now()
        if reason != self._warned or now >= self._warn_again_at:
            log.warning("provider %s: cannot renew its token, the old one is still valid: %s", self._name, reason)
            self._warned, self._warn_again_at = reason, now + RETRY_S

    async def _renew_if_needed(self, source: CredentialSource[C], rejected_token: str) -> C:
        stored = await self._read(source)
        if self._is_fresh(stored, rejected_token):
            return self._adopt(stored, self._margin_s)
        if self._is_valid(stored, rejected_token):
            self._adopt(stored, self._margin_s)  # used if it cannot be renewed
        if self._current is not None and self._is_valid(self._current, rejected_token) and self._was_just_tried(stored):
            return self._current
        if not stored.refresh_token:
            why = "its token has expired or was rejected, and cannot be renewed"
            raise CredentialError(f"{source.location}: {why}; {source.remedy or self._issuer.remedy}")
        try:
            return await self._renew(source, stored)
        except TokenRejected as rejected:
            return await self._retry_with_stored(source, stored, rejected_token, rejected)

    def _was_just_tried(self, stored: C) -> bool:
        """Return whether this refresh token was tried a moment ago: while a token is valid, renewal can wait."""
        now = self.clock.now()
        if stored.refresh_token == self._tried_early and now < self._retry_early_at:
            return True
        self._tried_early, self._retry_early_at = stored.refresh_token, now + RETRY_S
        return False

    async def _read(self, source: CredentialSource[C]) -> C:
        """Return the stored credential. Raises AccountChanged if it is of another account than before."""
        stored = await source.load()
        self._record_secrets(stored)
        if self._current is not None and self._current.account and stored.account != self._current.account:
            raise AccountChanged(
                f"{source.location} belongs to another account now: restart the gateway to use that one"
            )
        return stored

    async def _retry_with_stored(
        self, source: CredentialSource[C], tried: C, rejected_token: str, rejected: TokenRejected
    ) -> C:
        """Read the source again after a rejection: another program may just have used the refresh token."""
        stored = await self._read(source)
        if stored.refresh_token != tried.refresh_token:
            if self._is_fresh(stored, rejected_token):
                return self._adopt(stored, self._margin_s)
            try:
                return await self._renew(source, stored)
            except TokenRejected as again:
                rejected = again
        wait_s = NEVER_EXPIRES if rejected.is_permanent else RETRY_S
        self._rejection = _Rejection(stored.refresh_token, self.clock.now() + wait_s, rejected)
        raise CredentialError(
            f"{source.location}: {self._issuer.describe_rejection(stored, rejected)}; "
            f"{source.remedy or self._issuer.remedy}",
            rejected.kind,
        )

    async def _renew(self, source: CredentialSource[C], old: C) -> C:
        known = self._rejection
        if old.refresh_token == known.token and self.clock.now() < known.until:
            raise TokenRejected(known.reason.code, is_permanent=known.reason.is_permanent, kind=known.reason.kind)
        self._was_read.set()
        fresh = await self._issuer.renew(old)
        self._renewals += 1
        self._adopt(fresh, min(self._margin_s, (fresh.expires_at - self.clock.now()) / 2))
        await self._write_back(source, old, fresh)
        return fresh

    async def _write_back(self, source: CredentialSource[C], old: C, fresh: C) -> None:
        """Write the new credential to its source. A failure may cost a login after a restart, but no request now."""
        try:
            written = await source.save(old, fresh)
        except (CredentialError, OSError) as error:
            log.warning("provider %s: the renewed token is kept in memory only: %s", self._name, describe_cause(error))
            return
        if not written:
            log.info(
                "provider %s: %s was renewed by another program, and is not overwritten", self._name, source.location
            )

    def _record_secrets(self, credential: C) -> None:
        self._secrets.extend(secret.encode() for secret in credential.secrets if len(secret) >= SHORTEST)

    def _adopt(self, credential: C, margin_s: float) -> C:
        self._record_secrets(credential)
        self._current = credential
        self._handed_out = _Given(credential.access_token, self._renewals)
        self._due_at = credential.expires_at - margin_s
        return credential

    def _is_fresh(self, credential: C, rejected_token: str) -> bool:
        """Return whether it is valid for longer than the margin."""
        return self._is_valid(credential, rejected_token) and self.clock.now() < credential.expires_at - self._margin_s

    def _is_valid(self, credential: C, rejected_token: str) -> bool:
        known = bool(credential.access_token) and credential.access_token != rejected_token
        return known and self.clock.now() < credential.expires_at
