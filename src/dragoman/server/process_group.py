"""All processes of all replicas: the workers of this gateway over their sockets, the others over Valkey.

A process is named after its replica and its number among the workers: `3f0c9a1e-0`.
"""

import asyncio
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING

from dragoman.server.worker_group import ANSWER_S, Answer, GroupMember, Question, WorkerGroup

if TYPE_CHECKING:
    from dragoman.server.valkey_group import ValkeyGroup


def name_process(member: GroupMember | None) -> str:
    """Return a name for this process, which begins like those of the other workers of its gateway."""
    if member is None:
        return f"{secrets.token_hex(8)}-0"
    return f"{blake2b(member.secret, digest_size=8).hexdigest()}-{member.number}"


class ProcessGroup:
    """The other processes, as this one sees them. It exists only if there may be others."""

    def __init__(self, own: str, workers: WorkerGroup | None, replicas: "ValkeyGroup | None") -> None:
        self.own = own
        self._workers = workers
        self._replicas = replicas
        replica = own.rpartition("-")[0]
        self._siblings = {} if workers is None else {f"{replica}-{number}": number for number in range(workers.count)}

    def start(self) -> None:
        """Let the other replicas know of this process."""
        if self._replicas is not None:
            self._replicas.start()

    async def stop(self) -> None:
        """Leave the other replicas."""
        if self._replicas is not None:
            await self._replicas.stop()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that are known to live, this one included."""
        near = tuple(self._siblings) or (self.own,)
        return near if self._replicas is None else near + self._replicas.others

    @property
    def is_partial(self) -> bool:
        """Whether there may be others which cannot be asked now."""
        return self._replicas is not None and self._replicas.is_out

    def answer(self, name: str, answer: Answer) -> None:
        """Answer questions of this name, which others ask, with what `answer` returns."""
        if self._workers is not None:
            self._workers.answer(name, answer)
        if self._replicas is not None:
            self._replicas.answer(name, answer)

    async def ask(self, process: str, name: str, question: Question, within_s: float = ANSWER_S) -> bytes | None:
        """Return the answer of another process; None if it did not answer in time or could not."""
        number = self._siblings.get(process)
        if number is not None and self._workers is not None:
            return await self._workers.ask(number, name, question, within_s)
        return None if self._replicas is None else await self._replicas.ask(process, name, question, within_s)

    async def ask_all(self, name: str, question: Question) -> dict[str, bytes]:
        """Return the answers of all others that answer in time."""
        others = [process for process in self.names if process != self.own]
        answers = await asyncio.gather(*(self.ask(process, name, question) for process in others))
        return {process: answer for process, answer in zip(others, answers, strict=True) if answer is not None}
