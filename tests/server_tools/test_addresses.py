"""Domain rules, and where an address comes from."""

import pytest

from dragoman.server_tools.addresses import DomainRules, find_named
from laws import assert_linear_function
from tables import each_row


@pytest.mark.parametrize(
    ("entry", "url", "matches"),
    [
        ("example.com", "https://example.com/a", True),
        ("example.com", "https://www.EXAMPLE.com./a", True),
        ("Example.COM", "https://docs.example.com/", True),
        ("example.com", "https://notexample.com/", False),
        ("example.com", "https://example.com.evil.test/", False),
        ("docs.example.com", "https://example.com/", False),
        ("example.com/blog", "https://example.com/blog", True),
        ("example.com/blog", "https://www.example.com/blog/post", True),
        ("example.com/blog", "https://example.com/blogs", False),
        ("example.com/blog/*", "https://example.com/blog/post", True),
        ("https://example.com", "https://example.com/x", True),
        ("*.example.com", "https://a.example.com/x", True),
        ("müller.example", "https://xn--mller-kva.example/", True),
        ("xn--mller-kva.example", "https://müller.example/", True),
        ("", "https://example.com/", False),
        ("example.com", "http://[", False),
    ],
)
def test_an_entry_matches_its_host_and_subdomains(entry: str, url: str, matches: bool) -> None:
    assert DomainRules(allowed=(entry,)).permits(url) is matches
    assert DomainRules(blocked=(entry,)).permits(url) is not matches


def test_without_lists_everything_is_permitted() -> None:
    assert DomainRules().permits("https://example.com/")


URL = "https://a.example/one?x=1"


@pytest.mark.parametrize(
    "text",
    [
        URL,
        f"Read {URL} please",
        f"Read {URL}.",
        f"Is it {URL}?",
        f"({URL})",
        f"<{URL}>",
        f"[One]({URL})",
        f'{{"url": "{URL}"}}',
        f"URL: {URL}\nDate: today",
        f"**{URL}**",
        f"見て{URL}。",
        f"{URL}#part",
        "a.example/one?x=1",
        "see http://a.example/one?x=1, it is good",
    ],
)
def test_an_address_is_found_in_prose_markdown_and_json(text: str) -> None:
    assert find_named(URL, text) in (URL, URL.replace("https", "http"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://a.example/one?x=10",
        "https://a.example/one?x=1&y=2",
        "https://a.example/one",
        "https://b.a.example/one?x=1",
        "https://evil.example/https://a.example/one?x=1",
        "user@a.example/one?x=1",
        "https://evil-a.example/one?x=1",
    ],
)
def test_a_part_of_another_address_is_not_the_address(text: str) -> None:
    assert find_named(URL, text) is None


@each_row(
    ("url", "text", "found"),
    [
        ("https://a.example/", "look at a.example", "https://a.example"),
        ("https://a.example", "a.example/", "https://a.example/"),
        ("https://a.example/one/", "see http://a.example/one.", "http://a.example/one"),
        ("http://a.example/one", "see https://a.example/one/.", "https://a.example/one/"),
        ("http://a.example/one#data", "see http://a.example/one#part", "http://a.example/one"),
        ("https://köln.example/%c3%84", "see https://xn--kln-sna.example/%C3%84", "https://xn--kln-sna.example/%C3%84"),
        ("https://köln.example/Ä", "see https://köln.example/%c3%84", "https://köln.example/%c3%84"),
    ],
)
def test_an_address_is_fetched_in_the_spelling_that_the_model_was_shown(url: str, text: str, found: str) -> None:
    assert find_named(url, text) == found


@each_row(
    "url",
    [
        *(
            "http://evil.test/%61aaa",
            "http://evil.test/a%61%61a",
            "http://evil.test/aaaa//",
            "http://evil.test/aaaa////",
        ),
        *("http://EVIL.test/aaaa", "http://evil.test/aaaa?", "http://evil.test:80/aaaa", "http://evil.test//aaaa"),
        *("http://evil.test/AAAA", "http://a@evil.test/aaaa", "http://evil.test/aaaa%2F", "http://evil.test/./aaaa"),
    ],
)
def test_a_model_cannot_carry_data_away_in_the_spelling_of_an_address(url: str) -> None:
    assert find_named(url, "see http://evil.test/aaaa ok") is None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://köln.example/Äpfel?q=ü", "see https://köln.example/Äpfel?q=ü."),
        ("https://xn--kln-sna.example/%C3%84pfel", "see https://köln.example/Äpfel."),
        ("https://köln.example/Äpfel", "see https://xn--kln-sna.example/%C3%84pfel."),
        ("https://köln.example/%C3%84pfel", "see https://köln.example/Äpfel."),
    ],
)
def test_letters_may_be_encoded_or_not(url: str, text: str) -> None:
    found = find_named(url, text)
    assert found is not None
    assert found in text
    assert find_named(url + "x", text) is None


@pytest.mark.parametrize("url", ["", "https://", "/", "#", "ftp://"])
def test_what_is_no_address_is_never_named(url: str) -> None:
    assert find_named(url, "https://a.example/ # x") is None


def test_an_address_that_occurs_often_takes_linear_time() -> None:
    assert_linear_function(lambda text: find_named(URL, text), lambda size: f"{URL}0 " * size, 5000)
