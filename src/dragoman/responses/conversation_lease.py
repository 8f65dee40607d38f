"""The lock of a conversation: one request at a time works on it. It ends by itself if its process does."""

import asyncio
import logging
import secrets
import time

from dragoman.net.tasks import spawn
from dragoman.store import StoreError
from dragoman.store.response_rows import ConversationLock, ResponseStore

log = logging.getLogger(__name__)

LEASE_S = 60
EXTEND_EVERY_S = 20.0


class ConversationLease:
    """Holds the lock of one conversation, and extends it until it is released."""

    def __init__(self, store: ResponseStore, owner: str, conversation: str) -> None:
        self._store = store
        self._owner = owner
        self._conversation = conversation
        self._token = secrets.token_hex(16)
        self._extending: asyncio.Task[None] | None = None

    async def take(self) -> bool:
        """Return whether the lock was free."""
        if not await self._lock():
            return False
        self._extending = spawn(self._extend_forever(), name="conversation lock")
        return True

    async def release(self) -> None:
        if self._extending is not None:
            self._extending.cancel()
        try:
            await self._store.unlock_conversation(self._owner, self._conversation, self._token)
        except StoreError as error:
            log.warning("a conversation stays locked for up to %d s: %s", LEASE_S, error)

    async def _extend_forever(self) -> None:
        while True:
            await asyncio.sleep(EXTEND_EVERY_S)
            try:
                await self._lock()
            except StoreError as error:
                log.warning("the lock of a conversation could not be extended: %s", error)

    async def _lock(self) -> bool:
        now = int(time.time())
        lock = ConversationLock(self._token, now + LEASE_S)
        return await self._store.lock_conversation(self._owner, self._conversation, lock, now)
