"""The clock of a database that several gateways share: windows of limits go by it, and not by that of each machine."""

import asyncio
import logging
import time
from collections.abc import Callable

from dragoman.store.database import Database, Session, StoreError

LEARN_S = 60.0
RETRY_S = 1.0  # while the store does not answer
LEARN_AGAIN_S = 5.0  # as long as the clocks are too far apart
LOGGED_S = 2.0  # a difference that is logged
MOST_S = 60.0  # a difference with which a gateway serves nothing

ASK = "SELECT extract(epoch FROM clock_timestamp())::float8"

log = logging.getLogger(__name__)


class StoreClock:
    """The time of a database, in Unix seconds: that of this machine, corrected by what is learned each minute."""

    def __init__(self, database: Database, own: Callable[[], float] = time.time) -> None:
        self.ahead_s = 0.0  # by which this machine's clock is ahead
        self._database = database
        self._own = own
        self._is_logged = False

    def now(self) -> float:
        return self._own() - self.ahead_s

    @property
    def problem(self) -> str:
        """Why this machine must not serve; empty: its clock is near enough."""
        if abs(self.ahead_s) <= MOST_S:
            return ""
        return f"the clock of this machine is {self._describe()} that of {self._database.name}"

    async def learn(self) -> None:
        """Compare the clocks. Raises StoreError."""
        began = self._own()
        server_s = await self._database.read(_read_clock)
        self.ahead_s = (began + self._own()) / 2 - server_s
        is_off = abs(self.ahead_s) > LOGGED_S
        if is_off and not self._is_logged:
            log.warning("the clock of this machine is %s that of %s", self._describe(), self._database.name)
        self._is_logged = is_off

    async def watch(self) -> None:
        """Learn how far apart the clocks are, now and each minute; more often while nothing is served for it."""
        while True:
            try:
                await self.learn()
            except StoreError as error:
                log.debug("the clock of the store cannot be read now: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(LEARN_AGAIN_S if self.problem else LEARN_S)

    def _describe(self) -> str:
        return f"{abs(self.ahead_s):.1f} s {'ahead of' if self.ahead_s > 0 else 'behind'}"


async def _read_clock(session: Session) -> float:
    [seconds] = await session.fetch(float, ASK)
    return seconds
