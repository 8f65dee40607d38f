"""Chains of digests: what is remembered of a prompt instead of its content, 8 bytes a block.

Two prompts agree up to a block if their chains agree up to it.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import pack
from zlib import crc32

from msgspec import Raw

DIGEST_BYTES = 8


def digest_blocks(blocks: Sequence[bytes | Raw], sizes: Sequence[int], kinds: Iterable[int]) -> bytes:
    """Return the chain of blocks of JSON: the checksum and the length of each.

    The kind of a block, as `checksum_kind` returns it, distinguishes equal content in different places, such as a role.
    Digests are compared within the sessions of one client key, and a wrong one costs it tokens. So they need not
    withstand forgery, which would cost five times as much.
    """
    digests = [0] * (2 * len(blocks))
    digests[::2] = map(crc32, blocks, kinds)
    digests[1::2] = sizes
    return array("I", digests).tobytes()


@lru_cache(maxsize=64)
def checksum_kind(kind: str) -> int:
    return crc32(kind.encode())


def digest_head(chain: bytes, blocks: int) -> bytes:
    """Return a short digest of the first blocks of a chain; empty for none."""
    return pack(">II", crc32(chain[: blocks * DIGEST_BYTES]), blocks) if blocks else b""


def count_common(first: bytes, second: bytes) -> int:
    """Return how many blocks two chains have in common from their beginning."""
    if first.startswith(second):  # as in most requests
        return len(second) // DIGEST_BYTES
    low, high = 0, min(len(first), len(second)) // DIGEST_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        known, end = low * DIGEST_BYTES, middle * DIGEST_BYTES
        if first[known:end] == second[known:end]:
            low = middle
        else:
            high = middle - 1
    return low


def extends(chain: bytes, branch: bytes) -> bool:
    """Return whether a prompt continues the one of a branch, or repeats it."""
    return chain.startswith(branch)


def extends_any(chain: bytes, branches: Iterable[bytes]) -> bool:
    return any(extends(chain, branch) for branch in branches)
