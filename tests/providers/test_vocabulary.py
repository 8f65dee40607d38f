"""The vocabulary of this package is that of cl100k_base, and its counts are close to those of a real tokenizer."""

from pathlib import Path

import pytest
import splintr

from dragoman.providers.vocabulary import _count_word, count_tokens, load_vocabulary, pack_vocabulary, unpack_vocabulary
from laws import assert_linear_function

TOKENS = 100_256
ROOT = Path(__file__).parents[2]
JUDGE = splintr.Tokenizer.from_pretrained("cl100k_base")

# How far a count may be from the tokenizer's, and for which text.
TEXTS = {
    "prose": (0.01, "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))),
    "code": (0.01, "".join(path.read_text() for path in sorted((ROOT / "src/dragoman/flow").glob("*.py")))),
    "JSON": (0.01, (ROOT / "src/dragoman/prices/sheet.json").read_text()),
    "Chinese": (0.05, "网关读取客户端的请求，选择一个上游，转换请求，并在流式传输时将回复转换回来。" * 20),
    "Russian": (0.05, "Шлюз читает запрос клиента, выбирает сервер и переводит ответ обратно во время передачи. " * 20),
    "German": (0.05, "Das Gateway wählt einen Dienst und übersetzt die Antwort zurück, während sie überträgt. " * 20),
    "emoji": (0.05, "Hello 👋🏽 world 🎉🎊 “quotes” … naïve café 🧑‍💻\n" * 20),
    "base64": (0.05, "SGVsbG8gd29ybGQhIFRoaXMgaXMgYSB0ZXN0IG9mIGJhc2U2NA" * 40),
}


def test_the_vocabulary_is_complete() -> None:
    tokens, longest = load_vocabulary()
    assert tokens == {JUDGE.decode_token_bytes(number) for number in range(TOKENS)}
    assert longest[b" t"] == 16


@pytest.mark.parametrize("name", TEXTS)
def test_a_count_is_close_to_the_tokenizers(name: str) -> None:
    tolerance, text = TEXTS[name]
    assert count_tokens(text) == pytest.approx(len(JUDGE.encode_ordinary(text)), rel=tolerance)


@pytest.mark.parametrize("text", ["", " ", "hello world", "I'm 12345", "a\n\n\nb", "f(x) -> [1, 2]", "\ttab", "naïve"])
def test_short_texts_have_the_tokenizers_count(text: str) -> None:
    assert count_tokens(text) == len(JUDGE.encode_ordinary(text))


def test_packing_keeps_every_token() -> None:
    tokens = [bytes((number,)) for number in range(256)] + [b"abc", b"abd", b"x" * 128]
    unpacked = unpack_vocabulary(pack_vocabulary(tokens))
    assert sorted(token for group in unpacked.values() for token in group) == sorted(tokens)


@pytest.mark.parametrize("letter", ["a", " ", "\n", "-", "é", "字", "9", "qzx", " \t"])
def test_time_is_linear_in_the_length(letter: str) -> None:
    def count(text: str) -> int:
        _count_word.cache_clear()
        return count_tokens(text)

    assert_linear_function(count, lambda size: letter * size, 2_000)


def test_kept_words_are_short() -> None:
    _count_word.cache_clear()
    count_tokens("x" * 100_000 + " " * 100_000 + "\n" * 100_000 + "-" * 100_000)
    assert _count_word.cache_info().currsize < 100
