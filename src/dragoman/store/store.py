"""The store: named operations come in; a database, this process's or another's, carries them out."""

from collections.abc import Sequence
from typing import Protocol

from dragoman.store.client_keys import KeyId, KeyRow
from dragoman.store.usage_rows import By, Span, UsageRow, UsageSum


class StoreError(Exception):
    """The store cannot be opened, read or written; says which and why, and never a password."""


class Store(Protocol):
    """Every operation may raise StoreError, waits without holding up the event loop, and works again by itself
    once the trouble is over."""

    @property
    def name(self) -> str:
        """For people to read."""

    async def open(self) -> None:
        """Connects and brings the schema up to date; any other operation does so too where it was not possible yet."""

    async def close(self) -> None:
        """Finishes the work begun and closes; nothing may be asked afterwards."""

    async def version(self) -> int:
        """A number that changes whenever somebody else, in any process, has changed the client keys."""

    async def add_key(self, row: KeyRow, digest: bytes) -> None:
        """NameTaken if a live key has the name."""

    async def add_first_key(self, row: KeyRow, digest: bytes) -> bool:
        """Adds it where there has never been a key; whether it did."""

    async def keys(self) -> tuple[KeyRow, ...]:
        """Every key ever made, the revoked ones too, oldest first."""

    async def live_digests(self) -> dict[bytes, KeyId]:
        """The digests that open the door."""

    async def find_key(self, digest: bytes) -> KeyRow | None:
        """The key with this digest, live or revoked."""

    async def revoke_key(self, which: str, now: int) -> KeyRow | None:
        """Revokes the live key with this id or name, and returns it; None if there is none."""

    async def touch_keys(self, used: frozenset[KeyId], now: int) -> None:
        """Notes when keys were last used."""

    async def remember_cut(self, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
        """Keeps what the last reply of a tenant's conversation lost, for a while."""

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        """What the first known of this tenant's conversations lost. It stays until it expires: a client may retry."""

    async def has_cuts(self, now: int) -> bool:
        """Whether anything is kept that any conversation lost."""

    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        """All of them or none. A row that is there already is left as it is."""

    async def remove_usage(self, before_ms: int, most: int) -> int:
        """Removes requests that began before that moment, the oldest first and no more than so many; how many."""

    async def usage_rows(self, span: Span) -> tuple[UsageRow, ...]:
        """The requests that began in this span, oldest first."""

    async def usage_sums(self, span: Span, by: By) -> tuple[UsageSum, ...]:
        """The same, added up by group and quarter of an hour."""
