"""A capture describes a provider well enough to make it again, without secrets and local paths."""

from pathlib import Path

import msgspec

from dragoman.config.secret import SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.flow.capture.provider_description import describe_provider, hide_values, to_text
from dragoman.framing.redaction import MASK
from dragoman.net.headers import Header
from dragoman.providers.provider import Endpoint
from flow.in_memory import URL, make_pooled, make_provider, send_nothing

FIELDS: tuple[Header, ...] = ((b"user-agent", b"dragoman"), (b"x-team", b"hidden-value-1"))
SECTION = ProviderConfig(
    name="up",
    kind="openai-compatible",
    endpoint="http://127.0.0.1:9/v1",
    protocols=("chat",),
    api_key=SecretSource("sk-secret-0123456789"),
    headers={"X-Team": SecretSource("hidden-value-1")},
    ca_file=Path("/home/somebody/ca.pem"),
    extra_credentials=(SecretSource("sk-secret-9876543210"),),
)


def test_a_section_is_described_without_secrets_and_paths() -> None:
    endpoint = Endpoint(URL, ("chat",), send_nothing, headers=FIELDS)
    description = describe_provider(make_provider(endpoint=endpoint), SECTION, {b"x-team"})
    text = msgspec.json.encode(description)
    for hidden in (b"secret", b"hidden-value", b"somebody"):
        assert hidden not in text
    assert isinstance(description, dict)
    assert description["endpoint"] == "http://127.0.0.1:9/v1"
    assert description["fields"] == [["user-agent", "dragoman"], ["x-team", MASK]]
    assert description["credentials"] == []
    section = description["stanza"]
    assert isinstance(section, dict)
    assert (section["name"], section["kind"]) == ("up", "openai-compatible")
    assert not {"api_key", "headers", "ca_file", "extra_credentials"} & set(section)


def test_a_provider_that_was_discovered_has_no_section() -> None:
    description = describe_provider(make_provider("found"), None, set())
    assert isinstance(description, dict)
    assert description["stanza"] == {"name": "found", "kind": "openai-compatible"}


def test_several_credentials_are_described_by_their_labels() -> None:
    description = describe_provider(make_pooled(make_provider(), 2), None, set())
    assert isinstance(description, dict)
    assert description["credentials"] == ["1 of 2", "2 of 2"]


def test_headers_are_text_with_hidden_values() -> None:
    assert to_text(hide_values(FIELDS, {b"x-team"})) == (("user-agent", "dragoman"), ("x-team", MASK))
    assert to_text([(b"x", b"\xfc")]) == (("x", "ü"),)
