"""Local token counts: accurate enough, without downloads, for any text, and close to those of a real tokenizer."""

import socket
import time
from pathlib import Path

import pytest
import splintr
from tools.write_vocabulary import pack_vocabulary

from dragoman.translate.hub.request import (
    Custom,
    Document,
    Format,
    Function,
    Grammar,
    Hosted,
    Image,
    Inline,
    Link,
    Part,
    Request,
    Role,
    Shape,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.profiles.token_count import (
    IMAGE_TOKENS,
    PAGE_TOKENS,
    SLICE_CHARACTERS,
    _count_word,
    count_text,
    count_tokens,
    estimate_request_tokens,
    estimate_text_tokens,
    estimate_written_tokens,
    load_vocabulary,
    unpack_vocabulary,
)
from laws import assert_linear_function
from request_fields import set_fields


def make_request(*parts: Part, **fields: object) -> Request:
    return set_fields(Request("messages", "m", (Turn(Role.USER, parts),)), **fields)


def test_words_are_counted_by_the_vocabulary() -> None:
    assert count_text("") == 0
    assert count_text("hello world") == 2
    assert count_text("<|endoftext|>") > 1  # text, not a control token


def test_the_network_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a count must not open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert count_text("still counted") > 0


def test_slices_change_a_count_by_no_more_than_their_edges() -> None:
    sentence = " The quick brown fox jumps over the lazy dog."
    times = 3 * SLICE_CHARACTERS // len(sentence)
    assert abs(count_text(sentence * times) - times * count_text(sentence)) <= 3


def test_half_a_surrogate_pair_and_emoji_are_counted() -> None:
    assert count_text("\ud83d") > 0
    assert count_text("👩‍👩‍👧 über") > 0


def count_request(request: Request) -> int:
    return estimate_request_tokens(request, request.model)


def test_claude_gets_the_correction_and_others_do_not() -> None:
    request = make_request(Text("word " * 400))
    plain = estimate_request_tokens(request, "gpt-6-sol")
    assert plain == count_request(request)  # of a model that is not known
    assert estimate_request_tokens(request, "Claude-Opus-5") == round(plain * 1.15)


def test_what_claude_has_written_gets_the_correction_too() -> None:
    text = "word " * 400
    plain = count_text(text)
    assert estimate_text_tokens(text, "gpt-6-sol") == plain
    assert estimate_text_tokens(text, "us.anthropic.claude-opus-5") == round(plain * 1.15)
    assert estimate_written_tokens(4000, "gpt-6-sol") == 1000
    assert estimate_written_tokens(4000, "claude-opus-5") == 1150


def test_every_part_of_a_request_increases_the_count() -> None:
    plain = count_request(make_request(Text("hi")))
    more = (
        make_request(Text("hi"), Text("there")),
        make_request(Text("hi"), ToolCall("c", "read_file", '{"path":"a"}')),
        make_request(Text("hi"), ToolResult("c", (Text("contents"),))),
        make_request(Text("hi"), Document("the whole text")),
        make_request(Text("hi"), tools=(Function("f", description="does it", parameters={"type": "object"}),)),
        make_request(Text("hi"), tools=(Custom("f", grammar=Grammar("lark", "start: x")),)),
        make_request(Text("hi"), tools=(Hosted("web_search", {"type": "web_search"}),)),
        make_request(Text("hi"), format=Format(Shape.SCHEMA, "/f", schema={"type": "object"})),
    )
    assert all(count_request(request) > plain for request in more)


def test_media_count_by_the_vendors_formulas_and_not_by_base64() -> None:
    plain = count_request(make_request(Text("hi")))
    image = Inline("image/png", "A" * 400_000)
    assert count_request(make_request(Text("hi"), Image(image))) == plain + IMAGE_TOKENS
    assert count_request(make_request(Text("hi"), Image(Link("https://a.example/x"), detail="low"))) == plain + 85
    assert count_request(make_request(Text("hi"), ToolResult("c", (Image(image),)))) == plain + IMAGE_TOKENS
    pdf = Inline("application/pdf", "A" * 400_000)
    assert count_request(make_request(Text("hi"), Document(pdf))) == plain + 4 * PAGE_TOKENS


def test_a_long_text_is_sampled_and_about_right() -> None:
    paragraphs = [f"Paragraph {n}: the quick brown fox costs ${n * 37}.50, says `f(x) = {n}`.\n" for n in range(30_000)]
    text = "".join(paragraphs)
    exact = sum(count_text(text[at : at + 400_000]) for at in range(0, len(text), 400_000))
    began = time.process_time()
    assert count_text(text * 10) == pytest.approx(exact * 10, rel=0.05)
    assert time.process_time() - began < 1.0


TOKENS = 100_256
ROOT = Path(__file__).parents[3]
JUDGE = splintr.Tokenizer.from_pretrained("cl100k_base")

# How far a count may be from the tokenizer's, and for which text.
TEXTS = {
    "prose": (0.01, "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))),
    "code": (0.01, "".join(path.read_text() for path in sorted((ROOT / "src/dragoman/proxy").glob("*.py")))),
    "JSON": (0.01, (ROOT / "src/dragoman/operate/prices/sheet.json").read_text()),
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
