"""Linked media: what is to be fetched, and the request once it was."""

from dragoman.hub.request import Document, Image, Inline, Link, Part, Request, Role, Text, ToolResult, Turn
from dragoman.passes.inline_media import find_links, inline_links

PNG = "https://a.example/a.png"
PDF = "https://a.example/b.pdf"
REQUEST = Request(
    "responses",
    "m",
    (
        Turn(Role.USER, (Text("see"), Image(Link(PNG), detail="low"), Document(Link(PDF), title="b.pdf"))),
        Turn(Role.USER, (ToolResult("c", (Image(Link(PNG)), Text("x"))), Image(Inline("image/png", "AA==")))),
    ),
)


def is_document(part: Part) -> bool:
    return isinstance(part, Document)


def test_each_link_to_fetch_is_listed_once() -> None:
    assert find_links(REQUEST, lambda part: True) == [PNG, PDF]
    assert find_links(REQUEST, is_document) == [PDF]


def test_fetched_links_are_replaced_wherever_they_stand() -> None:
    image = Inline("image/png", "iVBO")
    found = inline_links(REQUEST, {PNG: image})
    assert found.turns[0].parts == (Text("see"), Image(image, detail="low"), Document(Link(PDF), title="b.pdf"))
    assert found.turns[1].parts[0] == ToolResult("c", (Image(image), Text("x")))
    assert found.turns[1].parts[1] is REQUEST.turns[1].parts[1]


def test_a_request_without_fetched_links_comes_back_itself() -> None:
    assert inline_links(REQUEST, {}) is REQUEST
    assert inline_links(REQUEST, {"https://a.example/other": Inline("image/png", "")}) is REQUEST
