"""Web pages that the gateway fetches for a model, judged by Anthropic's SDK; no request leaves the loopback."""

import base64
import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from anthropic.types import Message, ServerToolUseBlock, TextBlock, WebFetchBlock, WebFetchToolResultBlock
from anthropic.types.web_fetch_tool_result_error_block import WebFetchToolResultErrorBlock

from e2e.search_scene import FOUND, chat_calls, chat_text
from fakes.upstream import Answer, End, FakeUpstream
from fakes.web import FakeWeb, Names
from gateway import KEY, provider_section, running
from sdk_replies import Sdk
from wire_json import JsonObject

PUBLIC = "93.184.216.34"
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 5}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
ANSWER = chat_text("Done.")
PAGE = b"<html><head><title>The page</title></head><body><h1>Hello</h1><p>See <a href='/more'>more</a>.</body></html>"


@dataclass
class Scene:
    sdk: Sdk
    upstream: FakeUpstream
    web: FakeWeb
    names: Names

    def play(self, *rounds: bytes) -> None:
        self.upstream.requests.clear()
        self.web.requests.clear()
        self.web.tunnels.clear()
        self.upstream.answers = [Answer(body) for body in rounds]

    def add_page(self, place: str, answer: Answer, *addresses: str) -> None:
        """Put a page on the web, at a host that has a public address unless others are given."""
        self.web.sites[place] = answer
        self.names.add(place.partition("/")[0].partition(":")[0], list(addresses or (PUBLIC,)))

    def fetches(self, url: str, **more: object) -> Message:
        """Let the model fetch an address that the user has named, and return the whole reply."""
        self.play(fetch(url), ANSWER)
        return self.streams(f"Read {url} please.", **more)

    def streams(self, text: str, **more: object) -> Message:
        user = {"role": "user", "content": text}
        request: JsonObject = {"model": "chat/m", "max_tokens": 100, "messages": [user], "tools": [FETCH, SEARCH]}
        with self.sdk.anthropic.messages.stream(**{**request, **more}) as stream:
            return stream.get_final_message()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with run_scene(tmp_path_factory.mktemp("fetch"), timeout_s=60) as patient:
        yield patient


@pytest.fixture
def hurried(tmp_path: Path) -> Iterator[Scene]:
    """A scene for pages that never come."""
    with run_scene(tmp_path, timeout_s=0.2) as scene:
        yield scene


@contextmanager
def run_scene(directory: Path, timeout_s: float) -> Iterator[Scene]:
    with (
        FakeUpstream() as upstream,
        FakeUpstream(intercept=lambda request: make_json_answer(FOUND)) as searxng,
        FakeWeb() as web,
        pytest.MonkeyPatch.context() as patch,
    ):
        names = Names(socket.getaddrinfo)
        patch.setattr(socket, "getaddrinfo", names)
        settings = "\n".join(
            [
                "[retry]\nattempts = 1",
                f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{searxng.url}"',
                f"[tools.web_fetch]\ntimeout_s = {timeout_s}\nmax_mb = 0.25\nmax_chars = 2000\nports = [80, 443, 8080]",
                provider_section("chat", upstream.url, "chat"),
            ]
        )
        with running(settings, directory, web.environment()) as gateway:
            sdk = Sdk(gateway.url, KEY)
            yield Scene(sdk, upstream, web, names)
            sdk.close()


def make_json_answer(value: object) -> Answer:
    return Answer(json.dumps(value).encode(), content_type="application/json")


def fetch(url: str) -> bytes:
    return chat_calls(("call_1", "web_fetch", json.dumps({"url": url})))


def html(body: bytes, *headers: tuple[str, str]) -> Answer:
    return Answer(body, content_type="text/html; charset=utf-8", headers=headers, chunked=False)


def redirect(location: str) -> Answer:
    return Answer(b"", status=302, content_type="text/html", headers=(("location", location),), chunked=False)


def results(message: Message) -> list[WebFetchBlock | WebFetchToolResultErrorBlock]:
    return [block.content for block in message.content if isinstance(block, WebFetchToolResultBlock)]


def code_of(message: Message) -> str:
    """Return the error code of the only fetch; the reply around it has to be whole."""
    assert [block.type for block in message.content] == ["text", "server_tool_use", "web_fetch_tool_result", "text"]
    assert message.stop_reason == "end_turn"
    last = message.content[-1]
    assert isinstance(last, TextBlock)
    assert last.text == "Done."
    [result] = results(message)
    assert isinstance(result, WebFetchToolResultErrorBlock), result
    return result.error_code


def text_of(message: Message) -> tuple[str | None, str]:
    """Return the title and the text of the only page."""
    [result] = results(message)
    assert isinstance(result, WebFetchBlock), result
    return result.content.title, result.content.source.data


def tool_text(scene: Scene, place: int = -1) -> str:
    """Return what the model was sent as the tool's result."""
    return str(scene.upstream.calls[-1].json["messages"][place]["content"])


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
    content = [block.model_dump(exclude_none=True) for block in message.content]
    user = {"role": "user", "content": "Read http://page.example/a please."}
    history = [user, {"role": "assistant", "content": content}, {"role": "user", "content": "more"}]
    scene.play(ANSWER)
    scene.streams("", messages=history)
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


def test_an_address_that_a_search_has_found_is_fetched(hurried: Scene) -> None:
    hurried.add_page("a.example/1", html(PAGE))
    search = chat_calls(("call_1", "web_search", '{"query": "x"}'))
    hurried.play(search, fetch("https://a.example/1"), ANSWER)
    message = hurried.streams("Find something.")
    kinds = [block.type for block in message.content if block.type != "text"]
    assert kinds == ["server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result"]
    assert hurried.web.tunnels == [f"{PUBLIC}:443"]  # there is no TLS behind it, so the page itself does not come


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


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://127.0.0.1/", "url_not_accessible"),
        ("http://[::ffff:10.0.0.1]/", "url_not_accessible"),
        ("http://[fe80::1%25eth0]/", "url_not_accessible"),
        ("http://2130706433/", "url_not_accessible"),
        ("http://0177.0.0.1/", "url_not_accessible"),
        ("http://metadata.google.internal/", "url_not_accessible"),
        ("http://mixed.example/", "url_not_accessible"),
        ("http://inner.example/", "url_not_accessible"),
        ("http://user:secret@page.example/", "invalid_tool_input"),
        ("ftp://page.example/", "invalid_tool_input"),
        ("http://page.example:6379/", "url_not_allowed"),
        ("http://page.example/" + "x" * 2048, "url_too_long"),
    ],
)
def test_no_connection_is_made_to_what_is_not_public(scene: Scene, url: str, code: str) -> None:
    scene.names.add("mixed.example", [PUBLIC, "10.0.0.1"])
    scene.names.add("inner.example", ["192.168.0.1"])
    scene.names.add("metadata.google.internal", [PUBLIC])
    assert code_of(scene.fetches(url)) == code
    assert scene.web.tunnels == []
    assert "secret" not in tool_text(scene)


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
        "file:///etc/passwd",
        "http://user:secret@page.example/",
        "http://[",
        "//inner.example/",
    ],
)
def test_a_redirect_inwards_is_not_followed(scene: Scene, location: str) -> None:
    scene.names.add("inner.example", ["192.168.0.1"])
    scene.add_page("page.example/go", redirect(location))
    assert code_of(scene.fetches("http://page.example/go")) == "url_not_accessible"
    assert scene.web.tunnels == [f"{PUBLIC}:80"]


def test_a_name_that_changes_its_address_is_fetched_where_it_was_checked(scene: Scene) -> None:
    scene.add_page("rebinding.example/", html(PAGE))
    scene.names.add("rebinding.example", [PUBLIC], ["127.0.0.1"])
    scene.names.requests.clear()
    assert text_of(scene.fetches("http://rebinding.example/"))[0] == "The page"
    assert scene.web.tunnels == [f"{PUBLIC}:80"]
    assert scene.names.requests == ["rebinding.example"]


# Bodies


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(b"x" * 65536, content_type="text/html", floods=True), "content_too_large"),
        (html(gzip.compress(bytes(64 * 1024 * 1024), 1), ("content-encoding", "gzip")), "content_too_large"),
        (Answer(b"png", content_type="image/png"), "unsupported_content_type"),
        (Answer(b"", status=429, content_type="text/html"), "too_many_requests"),
    ],
    ids=["endless", "gzip bomb", "image", "429"],
)
def test_a_body_is_bounded_in_size(scene: Scene, answer: Answer, code: str) -> None:
    scene.add_page("page.example/body", answer)
    assert code_of(scene.fetches("http://page.example/body")) == code


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"x" * 10_000, content_type="text/html", cut=1, pause_s=0.05),
        Answer(b"", content_type="text/html", end=End.HANG),
        Answer(b"", headless=True, end=End.HANG),
    ],
    ids=["slow", "no body", "no head"],
)
def test_a_page_is_bounded_in_time(hurried: Scene, answer: Answer) -> None:
    """None of these would end within the 60 seconds that the SDK waits for its next event."""
    hurried.add_page("page.example/body", answer)
    assert code_of(hurried.fetches("http://page.example/body")) == "url_not_accessible"
