"""Write the vocabulary cl100k_base.bin of translate/profiles: the tokens as the splintr package holds them (MIT)."""

import struct
import zlib
from collections import Counter
from pathlib import Path

import splintr

FILE = Path(__file__).parent.parent / "src" / "dragoman" / "translate" / "profiles" / "cl100k_base.bin"
NAME = "cl100k_base"
TOKENS = 100_256  # without control tokens


def pack_vocabulary(tokens: list[bytes]) -> bytes:
    """Return the tokens as bytes: how many there are of each length, then all of them by length, compressed."""
    counts = Counter(map(len, tokens))
    head = b"".join(struct.pack(">BI", length, counts[length]) for length in sorted(counts))
    in_order: list[bytes] = sorted(tokens)
    in_order.sort(key=len)
    body = b"".join(in_order)
    return zlib.compress(bytes((len(counts),)) + head + body, 9)


def read_tokens() -> list[bytes]:
    """Return all tokens of the vocabulary."""
    tokenizer = splintr.Tokenizer.from_pretrained(NAME)
    return [tokenizer.decode_token_bytes(number) for number in range(TOKENS)]


if __name__ == "__main__":
    FILE.write_bytes(pack_vocabulary(read_tokens()))
    print(f"{FILE.name}: {FILE.stat().st_size // 1024} KB")
