"""Chains of digests: what is remembered of a prompt instead of its content.

A digest covers everything up to the end of its block. Two chains that agree in one digest therefore agree in all
before it.
"""

from collections.abc import Iterable
from hashlib import blake2b

DIGEST_BYTES = 8


class Chain:
    """Digest a prompt block by block."""

    __slots__ = ("_digest", "_digests")

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._digests: list[bytes] = []

    def add(self, kind: bytes, blocks: Iterable[bytes]) -> None:
        """Add blocks of JSON; `kind` distinguishes equal content in different places, such as a role."""
        update, digest, add = self._digest.update, self._digest.digest, self._digests.append
        update(kind)
        for block in blocks:
            update(block)
            add(digest())

    def join(self) -> bytes:
        return b"".join(self._digests)


def count_common(first: bytes, second: bytes) -> int:
    """Return how many blocks two chains have in common from their beginning."""
    low, high = 0, min(len(first), len(second)) // DIGEST_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * DIGEST_BYTES
        if first[end - DIGEST_BYTES : end] == second[end - DIGEST_BYTES : end]:
            low = middle
        else:
            high = middle - 1
    return low


def extends(chain: bytes, branch: bytes) -> bool:
    """Return whether a prompt continues the one of a branch, or repeats it."""
    return chain[len(branch) - DIGEST_BYTES : len(branch)] == branch[-DIGEST_BYTES:]


def extends_any(chain: bytes, branches: Iterable[bytes]) -> bool:
    return any(extends(chain, branch) for branch in branches)
