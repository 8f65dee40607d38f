"""Local token counts: near enough, never downloaded, and total on any text."""

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
    count_request,
    count_text,
    estimate_request_tokens,
)


def asked(*parts: Part, **fields: object) -> Request:
    return replace(Request("messages", "m", (Turn(Role.USER, parts),)), **fields)


def test_words_are_counted_as_the_vocabulary_has_them() -> None:
    assert count_text("") == 0
    assert count_text("hello world") == 2
    assert count_text("<|endoftext|>") > 1  # text, not a control token


def test_nothing_is_asked_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_claude_gets_the_correction_and_others_do_not() -> None:
    request = asked(Text("word " * 400))
    plain = estimate_request_tokens(request, "gpt-6-sol")
    assert plain == count_request(request)
    assert estimate_request_tokens(request, "Claude-Opus-5") == round(plain * 1.15)


def test_everything_a_request_says_makes_the_count_grow() -> None:
    plain = count_request(asked(Text("hi")))
    more = (
        asked(Text("hi"), Text("there")),
        asked(Text("hi"), ToolCall("c", "read_file", '{"path":"a"}')),
        asked(Text("hi"), ToolResult("c", (Text("contents"),))),
        asked(Text("hi"), Document("the whole text")),
        asked(Text("hi"), tools=(Function("f", description="does it", parameters={"type": "object"}),)),
        asked(Text("hi"), tools=(Custom("f", grammar=Grammar("lark", "start: x")),)),
        asked(Text("hi"), tools=(Hosted("web_search", {"type": "web_search"}),)),
        asked(Text("hi"), format=Format(Shape.SCHEMA, "/f", schema={"type": "object"})),
    )
    assert all(count_request(request) > plain for request in more)


def test_media_count_by_what_vendors_make_of_them_and_not_by_their_base64() -> None:
    plain = count_request(asked(Text("hi")))
    image = Inline("image/png", "A" * 400_000)
    assert count_request(asked(Text("hi"), Image(image))) == plain + IMAGE_TOKENS
    assert count_request(asked(Text("hi"), Image(Link("https://a.example/x"), detail="low"))) == plain + 85
    assert count_request(asked(Text("hi"), ToolResult("c", (Image(image),)))) == plain + IMAGE_TOKENS
    pdf = Inline("application/pdf", "A" * 400_000)
    assert count_request(asked(Text("hi"), Document(pdf))) == plain + 4 * PAGE_TOKENS


def test_a_long_text_is_sampled_and_still_about_right() -> None:
    paragraphs = [f"Paragraph {n}: the quick brown fox costs ${n * 37}.50, says `f(x) = {n}`.\n" for n in range(30_000)]
    text = "".join(paragraphs)
    exact = sum(count_text(text[at : at + 400_000]) for at in range(0, len(text), 400_000))
    began = time.process_time()
    assert count_text(text * 10) == pytest.approx(exact * 10, rel=0.05)
    assert time.process_time() - began < 1.0
