"""Lists of allowed and blocked domains."""

import pytest

from dragoman.tools.domains import DomainRules


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
