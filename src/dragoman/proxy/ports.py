"""What a call uses of its surroundings, as small interfaces.

The gateway's own classes implement them, and so do those that look everything up for a capture or in one
(`proxy/capture/lookups.py`). The choice among several credentials is another one: `CredentialChooser` of
`upstreams/credentials/pool.py`.
"""

import math
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.proxy.outcome import Outcome, TurnUsage
from dragoman.state.lost_calls import FindDigests, LostCall
from dragoman.tenancy.reservation import RequestSize
from dragoman.translate.caching.memory import SessionId
from dragoman.translate.caching.rejected_reasoning import ReasoningSession
from dragoman.translate.hub.caching import SentPrompt, SessionMemory
from dragoman.translate.hub.request import Inline
from dragoman.upstreams.provider import ModelInfo


class PricedTarget(Struct, frozen=True):
    """A model of a provider, and the kind of request that it is asked for."""

    provider: str
    model: str
    is_charged_by_tokens: bool = True  # False: images and the like
    at: float = 0.0  # Unix seconds


class ModelCatalogue(Protocol):
    """The models of one provider."""

    @property
    def complete(self) -> bool:
        """Whether a model that is not listed is known not to exist."""

    def list_known(self) -> tuple[ModelInfo, ...]:
        """Return the models known now."""

    async def wait_for_list(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        """Return the models known once the list has been read, or after `at_most_s` seconds."""

    def max_output(self, model: str) -> int | None:
        """Return the most tokens that the model writes, if the list says so."""

    def list_problem(self) -> str:
        """Return why the list could not be read; empty if it could, or if there is none."""


class OtherWorkers(Protocol):
    """The other workers of this gateway, which have the same configuration: questions that they answer."""

    number: int  # of this process, from 0
    count: int  # of all

    def answer(self, name: str, answer: Callable[[dict[str, str]], Awaitable[bytes]]) -> None:
        """Answer what others ask under this name."""

    async def ask_all(self, name: str, question: dict[str, str]) -> dict[int, bytes]:
        """Return the answers of all others that answer in time."""


class OtherProcesses(Protocol):
    """The other processes of all replicas, their workers included: news for all of them, and questions."""

    own: str  # the name of this process

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that are known to live, this one included."""

    @property
    def is_partial(self) -> bool:
        """Whether there may be others which cannot be asked now."""

    def answer(self, name: str, answer: Callable[[dict[str, str]], Awaitable[bytes]]) -> None:
        """Answer what others ask under this name."""

    async def ask(self, process: str, name: str, question: dict[str, str], within_s: float = ...) -> bytes | None:
        """Return the answer of another one; None if it did not answer in time or could not."""

    async def ask_all(self, name: str, question: dict[str, str]) -> dict[str, bytes]:
        """Return the answers of all others that answer in time."""


class MediaFetcher(Protocol):
    """Fetches linked images and documents."""

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        """Return the content of each URL; raises RequestError if one cannot be fetched."""


class LostCallMemory(Protocol):
    """Keeps the tool calls that a reply cut off for the next request of its conversation."""

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        """Keep the calls that were lost in the conversation with this digest."""

    async def recall(self, tenant: str, find_digests: FindDigests) -> tuple[LostCall, ...]:
        """Return the lost calls of the first of the conversations that is known; most often there are none to find."""


class PromptMemory(Protocol):
    """Keeps digests of what sessions have sent, by which the marks of prompt caches are placed."""

    async def recall(self, id: SessionId, at: float) -> SessionMemory | None:
        """Return what is known when a request of the session starts; None: the memory cannot be asked now."""

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        """Remember a request that started at `at`, once its reply has begun."""


NameSession = Callable[[], Awaitable[str | None]]  # None: the session cannot be named


class ReasoningMemory(Protocol):
    """Keeps digests of the reasoning that providers have rejected, for later requests of its session."""

    @property
    def known(self) -> Container[tuple[str, str]]:
        """The tenants and providers for which `recall` may return something: asked in every request."""

    async def recall(self, tenant: str, provider: str, name: NameSession) -> bytes:
        """Return the digests, one after the other; the session is named only if the client key has any."""

    def record(self, id: ReasoningSession, digests: bytes) -> None:
        """Remember what was rejected, once the request without it has been answered."""


class PriceList(Protocol):
    """What requests cost; amounts are nanodollars."""

    def find_size(self, target: PricedTarget, input_tokens: int, max_tokens: int | None) -> RequestSize | None:
        """Return what a request of this size may cost; None if the target has no price for it."""

    def cost_nano(self, outcome: Outcome) -> int | None:
        """Return what a request has cost; None if that is not known."""

    def price_turn(self, turn: TurnUsage, at: float) -> int | None:
        """Return what one upstream request has cost that began at this time, in Unix seconds."""
