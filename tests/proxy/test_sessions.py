"""What names the conversation that a request belongs to."""

import msgspec
import pytest

from dragoman.net.headers import Header, Headers
from dragoman.proxy.sessions import find_session, response_name, tenant_session
from dragoman.translate.caching.session_names import SESSION_HEADERS, derive_key, name_session
from dragoman.translate.hub.request import Request, Role, Text, Turn
from proxy.in_memory import make_call


def session(
    body: dict[str, object], *headers: Header, protocol: str = "responses", known: tuple[str, ...] = ()
) -> str | None:
    call = make_call(protocol, msgspec.json.encode({"model": "m", **body}), headers)
    return find_session(call, known.__contains__)


def test_a_name_belongs_to_its_client_key_and_a_long_one_is_kept_as_a_digest() -> None:
    assert (tenant_session("key", "abc"), tenant_session("other", "abc")) == ("key\0abc", "other\0abc")
    assert tenant_session("key", None) is None
    long = [tenant_session("key", "x" * 8_000_000), tenant_session("key", "x" * 8_000_001)]
    assert all(name is not None and len(name) < 100 for name in long)
    assert long[0] != long[1] == tenant_session("key", "x" * 8_000_001)


@pytest.mark.parametrize("name", ["\ud800", "x" * 1_000_000, "ok"])
def test_every_name_has_a_key(name: str) -> None:
    request = Request("responses", "m", (), cache_key=name)
    key = derive_key("tenant", name_session(Headers([]).get, request))
    assert len(key) == 36
    assert key == derive_key("tenant", name_session(Headers([]).get, request))


@pytest.mark.parametrize("header", SESSION_HEADERS)
def test_a_header_of_the_client_names_it(header: bytes) -> None:
    body: dict[str, object] = {"input": "Hi", "prompt_cache_key": "in the body"}
    assert session(body, (header, b"in the header")) == "in the header"
    assert session(body, (header, b"")) == "in the body"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"input": "Hi", "prompt_cache_key": "k"}, "k"),
        ({"input": "Hi", "prompt_cache_key": "k", "conversation": "conv_1"}, "k"),
        ({"input": "Hi", "conversation": "conv_1"}, "conv_1"),
        ({"input": "Hi", "conversation": {"id": "conv_2"}}, "conv_2"),
        ({"input": "Hi", "previous_response_id": "resp_1"}, "response resp_1"),
        ({"input": "Hi", "previous_response_id": "resp_1", "conversation": "conv_1"}, "conv_1"),
    ],
)
def test_fields_of_the_body_name_it(body: dict[str, object], name: str) -> None:
    assert session(body) == name


def test_the_target_that_wrote_the_reply_to_be_continued_comes_first() -> None:
    body: dict[str, object] = {"input": "Hi", "previous_response_id": "resp_1", "prompt_cache_key": "k"}
    header = (b"session-id", b"s")
    assert session(body, header, known=("response resp_1",)) == "response resp_1"
    assert session(body, header) == "s"


@pytest.mark.parametrize(
    ("user_id", "name"), [("user_1_account__session_abc", "abc"), ('{"device_id":"d","session_id":"s-1"}', "s-1")]
)
def test_the_session_in_a_user_id_names_it(user_id: str, name: str) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "metadata": {"user_id": user_id}}
    assert session(body, protocol="messages") == name


@pytest.mark.parametrize("metadata", [{"user_id": "somebody"}, {"user_id": ""}, {}])
def test_a_user_without_a_session_is_no_conversation(metadata: object) -> None:
    turns = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    assert session({**turns, "metadata": metadata}, protocol="messages") == session(turns, protocol="messages")


def turns(*texts: str, system: str = "Be brief.") -> dict[str, object]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"messages": [{"role": "system", "content": system}, *messages]}


def test_without_a_name_the_first_bytes_decide() -> None:
    first = session(turns("Hi"), protocol="chat")
    assert first is not None
    assert session(turns("Hi", "Hello.", "How are you?"), protocol="chat") == first
    assert session(turns("Ho"), protocol="chat") != first
    assert session(turns("Hi", system="Be long."), protocol="chat") != first


def test_what_changes_late_in_the_first_message_does_not_matter() -> None:
    """aider's repository map follows a constant text, in the same message."""
    constant = "I am your editor. " * 8
    first = session(turns(constant + "map 1"), protocol="chat")
    assert session(turns(constant + "map 2", "Hello.", "More."), protocol="chat") == first


@pytest.mark.parametrize(
    ("protocol", "body", "header"),
    [
        ("responses", {"input": "Hi", "prompt_cache_key": "k"}, None),
        ("chat", turns("Hi", "Hello."), None),
        ("chat", turns("Hi"), b"s-1"),
        (
            "messages",
            {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "metadata": {"user_id": "_session_a"}},
            None,
        ),
    ],
)
def test_a_parsed_request_has_the_same_name(protocol: str, body: dict[str, object], header: bytes | None) -> None:
    headers = [] if header is None else [(b"session-id", header)]
    call = make_call(protocol, msgspec.json.encode({"model": "m", **body}), tuple(headers))
    assert name_session(call.headers.get, call.request()) == find_session(call, lambda name: False)


def test_a_conversation_names_a_parsed_request_and_a_stored_response_does_not() -> None:
    turns = (Turn(Role.USER, (Text("Hi"),)),)
    named = Request("responses", "m", turns, raw={"conversation": {"id": "conv_1"}, "previous_response_id": "resp_1"})
    assert name_session(Headers([]).get, named) == "conv_1"
    first, second = (Request("responses", "m", turns, raw={"previous_response_id": id}) for id in ("resp_1", "resp_2"))
    assert name_session(Headers([]).get, first) == name_session(Headers([]).get, second)


def test_what_cannot_be_parsed_is_no_conversation() -> None:
    assert session({"messages": 7}, protocol="chat") is None


@pytest.mark.parametrize(("id", "name"), [("resp_1", "response resp_1"), ("", None), (None, None), (7, None)])
def test_the_name_of_a_reply_that_is_kept_upstream(id: object, name: str | None) -> None:
    assert response_name(id) == name
