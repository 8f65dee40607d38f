"""Write the vocabulary cl100k_base.bin of translate/profiles: the tokens as the splintr package holds them (MIT)."""

from pathlib import Path

import splintr

from dragoman.translate.profiles.token_count import pack_vocabulary

FILE = Path(__file__).parent.parent / "src" / "dragoman" / "translate" / "profiles" / "cl100k_base.bin"
NAME = "cl100k_base"
TOKENS = 100_256  # without control tokens


def read_tokens() -> list[bytes]:
    """Return all tokens of the vocabulary."""
    tokenizer = splintr.Tokenizer.from_pretrained(NAME)
    return [tokenizer.decode_token_bytes(number) for number in range(TOKENS)]


if __name__ == "__main__":
    FILE.write_bytes(pack_vocabulary(read_tokens()))
    print(f"{FILE.name}: {FILE.stat().st_size // 1024} KB")
