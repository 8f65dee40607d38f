"""Names that become part of a URL's path."""

import pytest

from dragoman.translate.framing.url_paths import BadName, quote_name
from tables import each_row


@each_row(
    ("name", "path"),
    [
        ("gemini-2.5-flash", "gemini-2.5-flash"),
        ("tuned/my-model@1:x", "tuned/my-model@1:x"),
        ("a b?c#d", "a%20b%3Fc%23d"),
        ("..a/b..", "..a/b.."),
        ("100%", "100%25"),
        ("größer", "gr%C3%B6%C3%9Fer"),
    ],
)
def test_a_name_is_quoted(name: str, path: str) -> None:
    assert quote_name(name, "/model") == path


@each_row(
    "name",
    [
        *("..", ".", "../x", "a/../../x", "a/./b", "a//b", "/a", "a/", "", "a\\b", "..\\x", "%2e%2e/x", "%2E%2E%2Fx"),
        *("a/%2e", "%252e%252e/x", "a%2f%2fb", "a%5Cb", "a/.%2e/b"),
    ],
)
def test_a_name_that_would_lead_to_another_path_is_refused_with_its_field(name: str) -> None:
    with pytest.raises(BadName) as refused:
        quote_name(name, "/model")
    assert refused.value.failure.at == "/model"
