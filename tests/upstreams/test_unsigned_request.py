"""A request without its credential: what a signer sees of it, and what is sent."""

from dragoman.upstreams.provider import UnsignedRequest

OWN = ((b"content-type", b"application/json"), (b"x-tenant", b"sk-fake-tenant"))
URL = "https://api.example/v1/chat?key=sk-fake-query"
REQUEST = UnsignedRequest(
    "chat", "POST", URL, OWN, ((b"x-tenant", b"of the client"), (b"x-trace", b"17")), b"sk-fake-body"
)


def test_a_header_of_ours_replaces_the_clients() -> None:
    assert REQUEST.headers == (*OWN, (b"x-trace", b"17"))


def test_the_credential_is_all_that_is_added() -> None:
    out = REQUEST.add_credentials(((b"authorization", b"Signature 1"),))
    assert sorted(out.headers) == sorted((*REQUEST.headers, (b"authorization", b"Signature 1")))
    assert (out.method, out.url, out.body, out.upload) == ("POST", URL, b"sk-fake-body", None)


def test_a_client_cannot_send_a_credential_in_place_of_ours() -> None:
    request = UnsignedRequest("chat", "GET", URL, (), ((b"authorization", b"of the client"),))
    assert request.add_credentials(((b"authorization", b"ours"),)).headers == ((b"authorization", b"ours"),)


def test_it_is_written_without_secrets() -> None:
    assert "sk-fake" not in repr(REQUEST)
    assert "api.example" in repr(REQUEST)
