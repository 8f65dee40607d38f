"""Count the tokens of text with the vocabulary of cl100k_base, which is part of this package.

A word that the vocabulary contains is one token, as it is for a tokenizer. Any other word is split into the longest
tokens from its start, where a tokenizer merges pairs of them: the counts differ by less than one per cent for prose,
code and JSON, and by a few per cent for languages with few whole words in the vocabulary (docs/adr/0057-size.md).
"""

import re
import struct
import zlib
from collections import Counter
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path

MAX_CACHED_WORDS = 20_000
_LONGEST = 16  # bytes of a token inside a word; longer ones are whole words, or runs of one character
_START = 2  # bytes that decide how long the tokens are that begin with them

# Words with the space or sign before them, digits by threes, signs, and white space, as cl100k_base divides a text. The
# length of a run is bounded, so that a word can be kept and no text takes quadratic time.
_WORDS = re.compile(
    r"'(?i:s|t|re|ve|m|ll|d)|(?:[^\r\n\w]|_)?[^\W\d_]{1,64}|\d{1,3}| ?(?:[^\s\w]|_){1,64}[\r\n]{0,64}"
    r"|\s{0,64}[\r\n]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
)


def count_tokens(text: str) -> int:
    """Return about how many tokens a text is; raises UnicodeEncodeError for half a surrogate pair."""
    return sum(map(_count_word, _WORDS.findall(text)))


@lru_cache(maxsize=MAX_CACHED_WORDS)
def _count_word(word: str) -> int:
    tokens, longest = load_vocabulary()
    data = word.encode()
    if data in tokens:
        return 1
    count = at = 0
    while at < len(data):
        end = min(len(data), at + longest.get(data[at : at + _START], 1))
        while end > at + 1 and data[at:end] not in tokens:
            end -= 1
        count += 1
        at = end
    return count


@cache
def load_vocabulary() -> tuple[frozenset[bytes], dict[bytes, int]]:
    """Return all tokens, and for the start of each the length of the longest one that may stand inside a word."""
    by_length = unpack_vocabulary((Path(__file__).parent / "cl100k_base.bin").read_bytes())
    longest: dict[bytes, int] = {}
    for length in range(_START, _LONGEST + 1):
        longest |= dict.fromkeys({token[:_START] for token in by_length.get(length, ())}, length)
    return frozenset(chain.from_iterable(by_length.values())), longest


def pack_vocabulary(tokens: list[bytes]) -> bytes:
    """Return the tokens as bytes: how many there are of each length, then all of them by length, compressed."""
    counts = Counter(map(len, tokens))
    head = b"".join(struct.pack(">BI", length, counts[length]) for length in sorted(counts))
    in_order: list[bytes] = sorted(tokens)
    in_order.sort(key=len)
    body = b"".join(in_order)
    return zlib.compress(bytes((len(counts),)) + head + body, 9)


def unpack_vocabulary(packed: bytes) -> dict[int, list[bytes]]:
    """Return the tokens that `pack_vocabulary` packed, by length."""
    data = zlib.decompress(packed)
    at = 1 + 5 * data[0]
    by_length: dict[int, list[bytes]] = {}
    for length, count in struct.iter_unpack(">BI", data[1:at]):
        end = at + length * count
        by_length[length] = [data[start : start + length] for start in range(at, end, length)]
        at = end
    return by_length
