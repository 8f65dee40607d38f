"""Local token counts: accurate enough, without downloads, for any text."""

import socket
import time

import pytest
from msgspec.structs import replace

from dragoman.hub.request import (
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
from dragoman.providers.token_count import (
    IMAGE_TOKENS,
    PAGE_TOKENS,
    SLICE_CHARACTERS,
    count_text,
    estimate_request_tokens,
)


def make_request(*parts: Part, **fields: object) -> Request:
    return replace(Request("messages", "m", (Turn(Role.USER, parts),)), **fields)


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
