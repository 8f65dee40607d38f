"""What a call uses of its surroundings, as small interfaces.

The gateway's own classes implement them, and so do those that record a request's surroundings for a capture and those
that replay them. The choice among several credentials is another one: `accounts.pool.CredentialChooser`.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from dragoman.hub.request import Inline
from dragoman.passes.truncation_notice import LostCall
from dragoman.providers.provider import ModelInfo


class ModelCatalogue(Protocol):
    """The models of one provider."""

    @property
    def complete(self) -> bool:
        """Whether a model that is not listed is known not to exist."""

    def known(self) -> tuple[ModelInfo, ...]:
        """Return the models known now."""

    async def wait_for_list(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        """Return the models known once the list has been read, or after `at_most_s` seconds."""

    def max_output(self, model: str) -> int | None:
        """Return the most tokens that the model writes, if the list says so."""

    def list_problem(self) -> str:
        """Return why the list could not be read; empty if it could, or if there is none."""


class MediaFetcher(Protocol):
    """Fetches linked images and documents."""

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        """Return the content of each URL; raises RequestError if one cannot be fetched."""


class LostCallMemory(Protocol):
    """Keeps the tool calls that a reply cut off for the next request of its conversation."""

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        """Keep the calls that were lost in the conversation with this digest."""

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        """Return the lost calls of the first of these conversations that is known."""
