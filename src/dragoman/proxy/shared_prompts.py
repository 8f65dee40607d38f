"""One memory of prompts for all processes of all replicas: each session has a holder, which the others ask.

A holder that is dead or slow costs a short wait, and prompts are then placed as without a memory.
"""

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.proxy.ports import OtherProcesses, PromptMemory
from dragoman.translate.caching.memory import SessionId
from dragoman.translate.hub.caching import SentPrompt, SessionMemory

log = logging.getLogger(__name__)

RECALL_PROMPTS, RECORD_PROMPT = "recall-prompts", "record-prompt"
WAIT_S = 0.02  # for a holder, by a request that waits for it
RECORD_S = 2.0
MAX_RECORDING = 100  # at the same time; a holder that is stuck loses the others
_FIELD = "about"


class _Recall(Struct):
    id: SessionId
    at: float


class _Record(Struct):
    id: SessionId
    sent: SentPrompt
    at: float


class SharedPrompts:
    """The memory of all processes, as one of them sees it."""

    def __init__(self, own: PromptMemory, others: OtherProcesses) -> None:
        self._own = own
        self._others = others
        self._recording = 0
        others.answer(RECALL_PROMPTS, self._answer_recall)
        others.answer(RECORD_PROMPT, self._answer_record)

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        holder = find_holder(id.tenant, id.session, self._others.names)
        if holder == self._others.own:
            return await self._own.recall(id, at)
        answer = await self._others.ask(holder, RECALL_PROMPTS, _write(_Recall(id, at)), WAIT_S)
        return None if answer is None else msgspec.json.decode(answer, type=SessionMemory | None)

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        holder = find_holder(id.tenant, id.session, self._others.names)
        if holder == self._others.own:
            self._own.record(id, sent, at)
        elif self._recording < MAX_RECORDING:
            self._recording += 1
            spawn(self._have_recorded(holder, _Record(id, sent, at)), name="record a prompt")

    async def _have_recorded(self, holder: str, record: _Record) -> None:
        try:
            if await self._others.ask(holder, RECORD_PROMPT, _write(record), RECORD_S) is None:
                log.debug("process %s did not record a prompt of a session that it holds", holder)
        finally:
            self._recording -= 1

    async def _answer_recall(self, question: Mapping[str, str]) -> bytes:
        given = msgspec.json.decode(question[_FIELD], type=_Recall)
        return msgspec.json.encode(await self._own.recall(given.id, given.at))

    async def _answer_record(self, question: Mapping[str, str]) -> bytes:
        given = msgspec.json.decode(question[_FIELD], type=_Record)
        self._own.record(given.id, given.sent, given.at)
        return b""


def find_holder(tenant: str, session: str, processes: Sequence[str]) -> str:
    """Return the name of the process that has the memory of a session: one that joins or leaves moves only its own."""
    about = f"{tenant}\0{session}".encode(errors="surrogatepass")
    return max(processes, key=lambda process: blake2b(about, key=process.encode(), digest_size=8).digest())


def _write(message: Struct) -> dict[str, str]:
    return {_FIELD: msgspec.json.encode(message).decode()}
