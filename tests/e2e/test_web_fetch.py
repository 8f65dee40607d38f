"""Web pages that the gateway fetches for a model, judged by Anthropic's SDK; no request leaves the loopback."""

import base64
import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from anthropic.types import Message, ServerToolUseBlock, TextBlock, WebFetchBlock, WebFetchToolResultBlock

from e2e.search_scene import (
    FETCH,
    FOUND,
    MORE,
    SEARCH,
    SEARCHES,
    SearchScene,
    calls,
    content_of,
    outcomes,
    run_scene,
    says,
)
from fakes.service import json_answer
from fakes.upstream import Answer, End, FakeUpstream
from fakes.web import FakeWeb, Names
from scripting.replies import ScriptedReply
from wire_json import JsonObject

PUBLIC = "93.184.216.34"
TOOLS = [{**FETCH, "max_uses": 5}, SEARCH]
PAGE = b"<html><head><title>The page</title></head><body><h1>Hello</h1><p>See <a href='/more'>more</a>.</body></html>"
ANSWER = says("Done.")
SETTINGS = """
[tools.web_search]
backend = "searxng"
endpoint = "{url}"
[tools.web_fetch]
timeout_s = {timeout_s}
max_mb = 0.25
max_chars = 2000
ports = [80, 443, 8080]
"""


@dataclass
class Scene:
    chat: SearchScene
    web: FakeWeb
    names: Names

    def play(self, *rounds: ScriptedReply) -> None:
        self.chat.play(*rounds)
        self.web.requests.clear()
        self.web.tunnels.clear()

    def add_page(self, place: str, answer: Answer, *addresses: str) -> None:
        """Put a page on the web, at a host that has a public address unless others are given."""
        self.web.sites[place] = answer
        self.names.add(place.partition("/")[0].partition(":")[0], list(addresses or (PUBLIC,)))

    def fetches(self, url: str, **more: object) -> Message:
        """Let the model fetch an address that the user has named, and return the whole reply."""
        self.play(fetch(url), ANSWER)
        return self.streams(f"Read {url} please.", **more)

    def streams(self, text: str, **more: object) -> Message:
        request: JsonObject = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **more}
        return self.chat.reply(**request)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with run_web(tmp_path_factory.mktemp("fetch"), timeout_s=60) as patient:
        yield patient


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A scene for pages that never come."""
    with run_web(tmp_path_factory.mktemp("hurried"), timeout_s=0.2) as scene:
        yield scene


@contextmanager
def run_web(directory: Path, timeout_s: float) -> Iterator[Scene]:
    with (
        FakeUpstream(intercept=lambda request: json_answer(FOUND)) as searxng,
        FakeWeb() as web,
        pytest.MonkeyPatch.context() as patch,
    ):
        names = Names(socket.getaddrinfo)
        patch.setattr(socket, "getaddrinfo", names)
        settings = SETTINGS.format(url=searxng.url, timeout_s=timeout_s)
        with run_scene(directory, backend="", settings=settings, environ=web.environment()) as chat:
            yield Scene(chat, web, names)


def fetch(url: str) -> ScriptedReply:
    return calls(("call_1", "web_fetch", {"url": url}))


def html(body: bytes, *headers: tuple[str, str]) -> Answer:
    return Answer(body, content_type="text/html; charset=utf-8", headers=headers, chunked=False)


def redirect(location: str) -> Answer:
    return Answer(b"", status=302, content_type="text/html", headers=(("location", location),), chunked=False)


def results(message: Message) -> list[object]:
    return [block.content for block in message.content if isinstance(block, WebFetchToolResultBlock)]


def code_of(message: Message) -> str:
    """Return the error code of the only fetch; the reply around it has to be whole."""
    assert [block.type for block in message.content] == ["text", "server_tool_use", "web_fetch_tool_result", "text"]
    assert message.stop_reason == "end_turn"
    last = message.content[-1]
    assert isinstance(last, TextBlock)
    assert last.text == "Done."
    [code] = outcomes(message)
    return str(code)


def text_of(message: Message) -> tuple[str | None, str]:
    """Return the title and the text of the only page."""
    [result] = results(message)
    assert isinstance(result, WebFetchBlock), result
    return result.content.title, result.content.source.data


def tool_text(scene: Scene, place: int = -1) -> str:
    """Return what the model was sent as the tool's result."""
    return str(scene.chat.sent[-1]["messages"][place]["content"])


# Pages


def test_a_page_becomes_readable_text_with_its_links(scene: Scene) -> None:
    scene.add_page("page.example/a", html(PAGE))
    message = scene.fetches("http://page.example/a")
    title, text = text_of(message)
    assert title == "The page"
    assert "Hello" in text
    assert "http://page.example/more" in text
    [result] = results(message)
    assert isinstance(result, WebFetchBlock)
    assert (result.url, result.content.source.type) == ("http://page.example/a", "text")
    assert result.retrieved_at
    use = message.content[1]
    assert isinstance(use, ServerToolUseBlock)
    assert (use.name, use.input) == ("web_fetch", {"url": "http://page.example/a"})
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_fetch_requests == 1
    assert "Hello" in tool_text(scene)
    assert scene.web.tunnels == [f"{PUBLIC}:80"]


def test_a_page_with_letters_in_its_address_is_fetched(scene: Scene) -> None:
    scene.add_page("xn--kln-sna.example/%C3%84pfel", Answer(PAGE, content_type="text/html"))
    reply = scene.fetches("http://köln.example/Äpfel")
    assert [result.url for result in results(reply) if isinstance(result, WebFetchBlock)] == [
        "http://xn--kln-sna.example/%C3%84pfel"
    ]


def test_a_page_is_fetched_from_a_configured_port_and_from_no_other(scene: Scene) -> None:
    scene.add_page("page.example:8080/", html(PAGE))
    assert text_of(scene.fetches("http://page.example:8080/"))[0] == "The page"
    assert scene.web.tunnels == [f"{PUBLIC}:8080"]
    assert code_of(scene.fetches("http://page.example:8081/")) == "url_not_allowed"


def test_json_is_passed_on_as_it_is(scene: Scene) -> None:
    scene.add_page("page.example/data.json", Answer(b'{"a": [1, 2]}', content_type="application/json"))
    assert text_of(scene.fetches("http://page.example/data.json")) == ("data.json", '{"a": [1, 2]}')
    assert '{"a": [1, 2]}' in tool_text(scene)


def test_a_pdf_is_a_document_for_the_client_and_an_error_for_a_model_that_reads_none(scene: Scene) -> None:
    scene.add_page("page.example/a.pdf", Answer(b"%PDF-1.7 fake", content_type="application/pdf"))
    message = scene.fetches("http://page.example/a.pdf")
    [result] = results(message)
    assert isinstance(result, WebFetchBlock)
    source = result.content.source
    assert (source.type, source.media_type) == ("base64", "application/pdf")
    assert base64.b64decode(source.data) == b"%PDF-1.7 fake"


def test_a_long_page_is_cut_and_marked_for_the_model(scene: Scene) -> None:
    scene.add_page("page.example/long", Answer(b"word " * 2000, content_type="text/plain"))
    _, text = text_of(scene.fetches("http://page.example/long"))
    assert len(text) == 2000
    assert "The page is longer" in tool_text(scene)


def test_a_page_that_was_fetched_can_be_sent_back(scene: Scene) -> None:
    scene.add_page("page.example/a", html(PAGE))
    message = scene.fetches("http://page.example/a")
    user = {"role": "user", "content": "Read http://page.example/a please."}
    scene.play(ANSWER)
    scene.streams("", messages=[user, content_of(message), MORE])
    assert "Hello" in tool_text(scene, 2)


# Where an address may come from


def test_an_address_that_only_the_model_has_named_is_not_fetched(scene: Scene) -> None:
    scene.add_page("a.example/1", html(PAGE))
    scene.play(fetch("https://a.example/1"), ANSWER)
    assert code_of(scene.streams("Read something.")) == "url_not_in_prior_context"
    assert scene.web.tunnels == []


def test_an_address_that_only_the_model_wrote_before_is_not_fetched_either(scene: Scene) -> None:
    scene.add_page("page.example/said", html(PAGE))
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I like http://page.example/said."},
        {"role": "user", "content": "Read it."},
    ]
    scene.play(fetch("http://page.example/said"), ANSWER)
    assert code_of(scene.streams("", messages=turns)) == "url_not_in_prior_context"


def test_an_address_that_a_search_has_found_is_fetched(scene: Scene) -> None:
    scene.add_page("a.example/1", html(PAGE))
    scene.play(SEARCHES, fetch("https://a.example/1"), ANSWER)
    message = scene.streams("Find something.")
    kinds = [block.type for block in message.content if block.type != "text"]
    assert kinds == ["server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result"]
    assert scene.web.tunnels == [f"{PUBLIC}:443"]  # which is closed, so the page itself does not come


def test_a_link_of_a_fetched_page_is_fetched(scene: Scene) -> None:
    scene.add_page("page.example/a", html(PAGE))
    scene.add_page("page.example/more", html(b"<title>More</title><p>That is all."))
    scene.play(fetch("http://page.example/a"), fetch("http://page.example/more"), ANSWER)
    message = scene.streams("Read http://page.example/a please.")
    assert [isinstance(result, WebFetchBlock) for result in results(message)] == [True, True]


def test_an_address_that_is_the_beginning_of_a_named_one_is_not_fetched(scene: Scene) -> None:
    scene.add_page("page.example/secret", html(PAGE))
    scene.play(fetch("http://page.example/secret"), ANSWER)
    assert code_of(scene.streams("Read http://page.example/secret-plan")) == "url_not_in_prior_context"


# Domain lists


def test_domain_lists_hold_at_every_hop(scene: Scene) -> None:
    scene.add_page("page.example/go", redirect("http://other.example/"))
    scene.add_page("other.example/", html(PAGE))
    allowed = [{**FETCH, "allowed_domains": ["page.example"]}]
    assert code_of(scene.fetches("http://page.example/go", tools=allowed)) == "url_not_allowed"
    assert len(scene.web.tunnels) == 1
    blocked = [{**FETCH, "blocked_domains": ["page.example"]}]
    assert code_of(scene.fetches("http://page.example/go", tools=blocked)) == "url_not_allowed"
    assert scene.web.tunnels == []
    assert text_of(scene.fetches("http://page.example/go"))[0] == "The page"


# What is never reached


PRIVATE = {
    "http://127.0.0.1/": "url_not_accessible",
    "http://[::ffff:10.0.0.1]/": "url_not_accessible",
    "http://[fe80::1%25eth0]/": "url_not_accessible",
    "http://2130706433/": "url_not_accessible",
    "http://0177.0.0.1/": "url_not_accessible",
    "http://metadata.google.internal/": "url_not_accessible",
    "http://mixed.example/": "url_not_accessible",
    "http://inner.example/": "url_not_accessible",
    "http://user:secret@page.example/": "invalid_tool_input",
    "ftp://page.example/": "invalid_tool_input",
    "http://page.example:6379/": "url_not_allowed",
    "http://page.example/" + "x" * 2048: "url_too_long",
}
INWARDS = (
    "http://169.254.169.254/latest/meta-data/",
    "https://10.0.0.1/",
    "file:///etc/passwd",
    "http://user:secret@page.example/",
    "http://[",
    "//inner.example/",
)


def test_no_connection_is_made_to_what_is_not_public_and_no_redirect_there_is_followed(scene: Scene) -> None:
    scene.names.add("mixed.example", [PUBLIC, "10.0.0.1"])
    scene.names.add("inner.example", ["192.168.0.1"])
    scene.names.add("metadata.google.internal", [PUBLIC])
    for url, code in PRIVATE.items():
        assert code_of(scene.fetches(url)) == code, url
        assert scene.web.tunnels == [], url
        assert "secret" not in tool_text(scene), url
    for location in INWARDS:
        scene.add_page("page.example/go", redirect(location))
        assert code_of(scene.fetches("http://page.example/go")) == "url_not_accessible", location
        assert scene.web.tunnels == [f"{PUBLIC}:80"], location


def test_a_name_that_changes_its_address_is_fetched_where_it_was_checked(scene: Scene) -> None:
    scene.add_page("rebinding.example/", html(PAGE))
    scene.names.add("rebinding.example", [PUBLIC], ["127.0.0.1"])
    scene.names.requests.clear()
    assert text_of(scene.fetches("http://rebinding.example/"))[0] == "The page"
    assert scene.web.tunnels == [f"{PUBLIC}:80"]
    assert scene.names.requests == ["rebinding.example"]


# Bodies


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined"])
def test_a_page_that_names_no_charset_of_the_web_does_not_cut_the_reply(scene: Scene, charset: str) -> None:
    page = Answer("<p>größer</p>".encode(), content_type=f"text/html; charset={charset}", chunked=False)
    scene.add_page("page.example/charset", page)
    message = scene.fetches("http://page.example/charset")
    assert text_of(message)[1] == "größer"
    assert message.stop_reason == "end_turn"


BODIES = {
    "endless": (Answer(b"x" * 65536, content_type="text/html", floods=True), "content_too_large"),
    "bomb": (html(gzip.compress(bytes(16 << 20), 1), ("content-encoding", "gzip")), "content_too_large"),
    "image": (Answer(b"png", content_type="image/png"), "unsupported_content_type"),
    "429": (Answer(b"", status=429, content_type="text/html"), "too_many_requests"),
}
# None of these would end within the 60 seconds that the SDK waits for its next event.
SLOW = {
    "slow": Answer(b"x" * 10_000, content_type="text/html", cut=1, pause_s=0.05),
    "no body": Answer(b"", content_type="text/html", end=End.HANG),
    "no head": Answer(b"", headless=True, end=End.HANG),
}


def test_a_page_is_bounded_in_size_and_time(scene: Scene, hurried: Scene) -> None:
    for row, (answer, code) in BODIES.items():
        scene.add_page("page.example/body", answer)
        assert code_of(scene.fetches("http://page.example/body")) == code, row
    for row, answer in SLOW.items():
        hurried.add_page("page.example/body", answer)
        assert code_of(hurried.fetches("http://page.example/body")) == "url_not_accessible", row
