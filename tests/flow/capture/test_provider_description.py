"""What a capture tells of a provider: enough to make it again, and neither secrets nor places of this machine."""

from pathlib import Path

import msgspec

from dragoman.config.secret import SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.flow.capture.provider_description import covered, described, texts
from dragoman.framing.redaction import MASK
from dragoman.net.headers import Header
from dragoman.providers.provider import Endpoint
from flow.in_memory import URL, make_pooled, make_provider, send_nothing

FIELDS: tuple[Header, ...] = ((b"user-agent", b"dragoman"), (b"x-team", b"hidden-value-1"))
STANZA = ProviderConfig(
    name="up",
    kind="openai-compatible",
    endpoint="http://127.0.0.1:9/v1",
    protocols=("chat",),
    api_key=SecretSource("sk-secret-0123456789"),
    headers={"X-Team": SecretSource("hidden-value-1")},
    ca_file=Path("/home/somebody/ca.pem"),
    extra_credentials=(SecretSource("sk-secret-9876543210"),),
)


def test_a_stanza_is_told_without_secrets_and_paths() -> None:
    endpoint = Endpoint(URL, ("chat",), send_nothing, headers=FIELDS)
    told = described(make_provider(endpoint=endpoint), STANZA, {b"x-team"})
    text = msgspec.json.encode(told)
    for hidden in (b"secret", b"hidden-value", b"somebody"):
        assert hidden not in text
    assert isinstance(told, dict)
    assert told["endpoint"] == "http://127.0.0.1:9/v1"
    assert told["fields"] == [["user-agent", "dragoman"], ["x-team", MASK]]
    assert told["credentials"] == []
    stanza = told["stanza"]
    assert isinstance(stanza, dict)
    assert (stanza["name"], stanza["kind"]) == ("up", "openai-compatible")
    assert not {"api_key", "headers", "ca_file", "extra_credentials"} & set(stanza)


def test_a_provider_that_was_found_has_no_stanza() -> None:
    told = described(make_provider("found"), None, set())
    assert isinstance(told, dict)
    assert told["stanza"] == {"name": "found", "kind": "openai-compatible"}


def test_several_credentials_are_told_by_their_labels() -> None:
    told = described(make_pooled(make_provider(), 2), None, set())
    assert isinstance(told, dict)
    assert told["credentials"] == ["1 of 2", "2 of 2"]


def test_headers_are_told_as_text_with_values_covered_by_name() -> None:
    assert texts(covered(FIELDS, {b"x-team"})) == (("user-agent", "dragoman"), ("x-team", MASK))
    assert texts([(b"x", b"\xfc")]) == (("x", "ü"),)
