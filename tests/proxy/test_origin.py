"""The session and the agent of a request, as its headers name them."""

from dragoman.net.headers import Headers
from dragoman.proxy.outcome import Origin
from dragoman.proxy.request_record import find_origin

SESSION = b"x-claude-code-session-id"


def test_claude_code_names_its_session_and_its_agents() -> None:
    headers = Headers([(SESSION, b"s1"), (b"x-claude-code-agent-id", b"a"), (b"x-claude-code-parent-agent-id", b"p")])
    assert find_origin(headers) == Origin(session="s1", agent="a", parent_agent="p")


def test_codex_names_its_session() -> None:
    assert find_origin(Headers([(b"session-id", b"c1")])) == Origin(session="c1")


def test_names_that_are_long_or_not_printable_are_left_out() -> None:
    for name in (b"x" * 201, b"a\x01b", b"\xe9", b" "):
        assert find_origin(Headers([(SESSION, name)])) == Origin()
    assert find_origin(Headers([(SESSION, b"x" * 200)])).session == "x" * 200


def test_other_requests_have_no_origin() -> None:
    assert find_origin(Headers([(b"user-agent", b"curl/8")])) == Origin()
