"""One account's credential: cached, and renewed once however many requests need it.

The vendor's own tools and other processes of ours renew the same credential, and refresh tokens rotate: so the source
is read again before it is used, after a rejection, and before it is written.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Generic, Protocol

from msgspec import Struct

from dragoman.accounts.credential import NEVER_EXPIRES, AccountChanged, C, CredentialError, Source, TokenRejected
from dragoman.accounts.credential_files import hold_lock
from dragoman.accounts.timestamps import ServerClock
from dragoman.framing.redaction import SHORTEST, mask_text
from dragoman.hub.failure import Failure, RequestError
from dragoman.net.tasks import spawn

log = logging.getLogger(__name__)

RETRY_S = 30.0  # between attempts to renew ahead of time, and before a refused refresh token is tried again
READ_TIMEOUT_S = 0.25  # how long a request waits for a look at the source, where a renewal is due

# What this request was last given. A request authorises itself and asks for renewal within one task.
_given: ContextVar[str] = ContextVar("token_given", default="")


class Issuer(Protocol[C]):
    """Who renews; and how a refusal, and what helps against it, is told to a person."""

    @property
    def remedy(self) -> str: ...
    async def renew(self, old: C) -> C: ...  # Declined where the refresh token is no good, Unusable where nobody knows
    def describe_rejection(self, credential: C, declined: TokenRejected) -> str: ...


class _Obtained(Struct, Generic[C], frozen=True):
    credential: C


class _Missed(Struct, frozen=True):
    reason: CredentialError


class _Refusal(Struct, frozen=True):
    """A refresh token that its issuer would not take, until when it is not tried again, and the issuer's word."""

    token: str
    until: float
    why: TokenRejected


class CredentialRefresher(Generic[C]):
    """One account's credential."""

    def __init__(
        self, name: str, source: Callable[[], Source[C]], issuer: Issuer[C], clock: ServerClock, margin_s: float
    ) -> None:
        self._name = name
        self._source = source
        self._issuer = issuer
        self.clock = clock
        self._margin_s = margin_s
        self._current: C | None = None
        self._known: deque[bytes] = deque(maxlen=12)  # secrets that no message may repeat, whoever quotes them
        self._due_at = 0.0
        self._rest_until = 0.0
        self._rests_for = ""  # the refresh token that was last tried ahead of time
        self._warned = ""
        self._warn_again_at = 0.0
        self._refusal = _Refusal("", 0.0, TokenRejected(""))
        self._flight: asyncio.Task[_Obtained[C] | _Missed] | None = None
        self._looked = asyncio.Event()  # the source, by the flight that is under way
        self._flight_for = ""  # the refused token that it was begun for

    async def get(self) -> C:
        """One that lives; RequestError where there is none. Renewal ahead of time goes on in the background."""
        _given.set("")
        current, now = self._current, self.clock.now()
        if current is None or now >= current.expires_at:
            current = self._landed(await self._join(""))
        elif now >= self._due_at and self._flight is None:
            current = await self._looked_up(current)
        _given.set(current.access_token)
        return current

    async def _looked_up(self, current: C) -> C:
        """What another program has renewed is taken over at once; our own renewal is not waited for."""
        self._looked.clear()
        flight = self._begin("")
        flight.add_done_callback(lambda _: self._looked.set())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), READ_TIMEOUT_S)
        return self._landed(flight.result()) if flight.done() else self._current or current

    async def renew(self) -> bool:
        """After a refusal: whether there is another token now than the one that this request was given."""
        refused = _given.get()
        current = self._current
        if not refused or current is None:
            return False
        if current.access_token != refused:
            return True
        ours = self._flight is None or self._flight_for == refused
        landed = await self._join(refused)
        if not ours and not _is_another(landed, refused):  # it was under way before anyone knew of the refusal
            landed = await self._join(refused)
        return _is_another(landed, refused)

    async def _join(self, refused: str) -> _Obtained[C] | _Missed:
        """The flight that is under way, or a new one; all who wait share its end."""
        flight = self._flight or self._begin(refused)
        return await asyncio.shield(flight)

    def _begin(self, refused: str) -> asyncio.Task[_Obtained[C] | _Missed]:
        flight = spawn(self._fly(refused), name=f"credential of {self._name}")
        self._flight, self._flight_for = flight, refused
        flight.add_done_callback(self._end)
        return flight

    def _end(self, flight: asyncio.Task[_Obtained[C] | _Missed]) -> None:
        if self._flight is flight:
            self._flight = None

    def _landed(self, landed: _Obtained[C] | _Missed) -> C:
        if isinstance(landed, _Obtained):
            return landed.credential
        raise RequestError(Failure(landed.reason.kind, f"Provider {self._name!r}: {landed.reason}"))

    async def _fly(self, refused: str) -> _Obtained[C] | _Missed:
        try:
            source = await asyncio.to_thread(self._source)
            async with hold_lock(source.lock):
                return _Obtained(await self._obtained(source, refused))
        except CredentialError as unusable:
            reason = CredentialError(mask_text(str(unusable), self._known), unusable.kind)
            living = self._current
            if living is not None and self._lives(living, refused) and not isinstance(unusable, AccountChanged):
                self._warn(str(reason))
                return _Obtained(living)
            return _Missed(reason)

    def _warn(self, reason: str) -> None:
        """Every request looks while a renewal is due; the log hears of it once."""
        now = self.clock.now()
        if reason != self._warned or now >= self._warn_again_at:
            log.warning("provider %s: its token is not renewed, the old one still lives: %s", self._name, reason)
            self._warned, self._warn_again_at = reason, now + RETRY_S

    async def _obtained(self, source: Source[C], refused: str) -> C:
        stored = await self._read(source)
        if self._is_fresh(stored, refused):
            return self._adopt(stored, self._margin_s)
        if self._lives(stored, refused):
            self._adopt(stored, self._margin_s)  # served if it cannot be renewed
        if self._current is not None and self._lives(self._current, refused) and self._rests(stored):
            return self._current
        if not stored.refresh_token:
            why = "its token has expired or was refused, and cannot be renewed"
            raise CredentialError(f"{source.location}: {why}; {self._issuer.remedy}")
        try:
            return await self._renewed(source, stored)
        except TokenRejected as declined:
            return await self._second_look(source, stored, refused, declined)

    def _rests(self, stored: C) -> bool:
        """Whether this refresh token was tried a moment ago: while a token lives, there is no hurry."""
        now = self.clock.now()
        if stored.refresh_token == self._rests_for and now < self._rest_until:
            return True
        self._rests_for, self._rest_until = stored.refresh_token, now + RETRY_S
        return False

    async def _read(self, source: Source[C]) -> C:
        """What is stored, if it is still the account that we began with: its conversations are bound to it."""
        stored = await asyncio.to_thread(source.read)
        self._learn(stored)
        if self._current is not None and self._current.account and stored.account != self._current.account:
            raise AccountChanged(
                f"{source.location} belongs to another account now: restart the gateway to use that one"
            )
        return stored

    async def _second_look(self, source: Source[C], tried: C, refused: str, declined: TokenRejected) -> C:
        """The refresh token was no good: perhaps because somebody else has just used it."""
        stored = await self._read(source)
        if stored.refresh_token != tried.refresh_token:
            if self._is_fresh(stored, refused):
                return self._adopt(stored, self._margin_s)
            try:
                return await self._renewed(source, stored)
            except TokenRejected as again:
                declined = again
        rest_s = NEVER_EXPIRES if declined.is_permanent else RETRY_S
        self._refusal = _Refusal(stored.refresh_token, self.clock.now() + rest_s, declined)
        raise CredentialError(
            f"{source.location}: {self._issuer.describe_rejection(stored, declined)}; {self._issuer.remedy}",
            declined.kind,
        )

    async def _renewed(self, source: Source[C], old: C) -> C:
        known = self._refusal
        if old.refresh_token == known.token and self.clock.now() < known.until:
            raise TokenRejected(known.why.code, is_permanent=known.why.is_permanent, kind=known.why.kind)
        self._looked.set()
        fresh = await self._issuer.renew(old)
        self._adopt(fresh, min(self._margin_s, (fresh.expires_at - self.clock.now()) / 2))
        await self._write_back(source, old, fresh)
        return fresh

    async def _write_back(self, source: Source[C], old: C, fresh: C) -> None:
        """A failure costs the next start a login perhaps, but no request now."""
        try:
            written = await asyncio.to_thread(source.write, old, fresh)
        except (CredentialError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("provider %s: the renewed token is kept in memory only: %s", self._name, reason)
            return
        if not written:
            log.info("provider %s: %s was renewed by another program, and is left alone", self._name, source.location)

    def _learn(self, credential: C) -> None:
        words = (credential.access_token, credential.refresh_token, getattr(credential, "client_secret", ""))
        self._known.extend(word.encode() for word in words if len(word) >= SHORTEST)

    def _adopt(self, credential: C, margin_s: float) -> C:
        self._learn(credential)
        self._current = credential
        self._due_at = credential.expires_at - margin_s
        return credential

    def _is_fresh(self, credential: C, refused: str) -> bool:
        """Worth taking over instead of renewing."""
        return self._lives(credential, refused) and self.clock.now() < credential.expires_at - self._margin_s

    def _lives(self, credential: C, refused: str) -> bool:
        known = bool(credential.access_token) and credential.access_token != refused
        return known and self.clock.now() < credential.expires_at


def _is_another(landed: _Obtained[C] | _Missed, refused: str) -> bool:
    return isinstance(landed, _Obtained) and landed.credential.access_token != refused
