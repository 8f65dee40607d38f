"""What looks like a secret is covered, and what it stands in stays what it was."""

from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.eventstream import EventStreamFramer, EventStreamMessage, update_checksums
from dragoman.translate.framing.redaction import MAX_PATH, WINDOW, mask, mask_fields, mask_url, redact, redact_path
from dragoman.translate.framing.sse import Broken
from fakes.eventstream import event
from tables import each_row

SHAPED = [
    *("sk-fake-0123456789", "dgm_fake-client-key", "dga_fake-admin-token", "ksk_fake0123456789", "ghp_fake0123456789"),
    *("AIzaFAKE0123456789abcdefgh", "AKIAFAKEFAKEFAKEFAKE", "xoxb-fake-0123456789"),
    *("aoaFAKE-access-token-0123456789", "eyJfakefakefake.eyJfakefakefake.fake"),
]
HELD = [
    '{"api_key": "fake0secret"}',
    '{"headers": {"Authorization": "Bearer fake0secret"}}',
    '{"arguments": "{\\"password\\": \\"fake0secret\\"}"}',
    "curl -H 'Authorization: Bearer fake0secret'",
    "https://host.example/v1?key=fake0secret",
    "https://user:fake0secret@host.example/",
    "OPENAI_API_KEY=fake0secret",
    '{"client_secret":"fake0secret"}',
    '{"mcp_servers": [{"url": "https://host.example", "authorization_token": "fake0secret"}]}',
    r"-----BEGIN RSA PRIVATE KEY-----\nMIIEfakefakefake+/fake0secret=\n-----END RSA PRIVATE KEY-----",
]
HARMLESS = [
    '{"properties": {"password": {"type": "string"}, "api_key": {"type": "string"}}}',
    "Bearer authentication is described in RFC 6750.",
    '{"max_tokens": 4096, "token": "the"}',
    "basic knowledge of keys and secrets",
    "task-force, risk-averse, ask-me-anything",
    '{"begin": "-----BEGIN PRIVATE KEY-----", "end": "-----END PRIVATE KEY-----"}',
]
texts = st.text(max_size=40)


@pytest.mark.parametrize("secret", SHAPED)
def test_what_has_the_shape_of_a_secret_is_covered(secret: str) -> None:
    hidden = mask(f'{{"content":"use {secret}, please"}}'.encode())
    assert secret.encode() not in hidden
    assert hidden.endswith(b', please"}')


@each_row("text", HELD)
def test_what_is_labelled_as_a_secret_is_covered(text: str) -> None:
    hidden = mask(text.encode())
    assert b"fake0secret" not in hidden
    assert len(hidden) == len(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_label_alone_is_no_secret(text: str) -> None:
    assert mask(text.encode()) == text.encode()


@given(texts, st.sampled_from(SHAPED), texts, st.sampled_from(["password", "api_key", "note", "Authorization"]))
@settings(max_examples=100)
def test_json_stays_json_of_the_same_length(before: str, secret: str, after: str, label: str) -> None:
    body = msgspec.json.encode({label: f"{before} {secret} {after}", "nested": {"text": f'{{"{label}": "{before}"}}'}})
    hidden = mask(body)
    assert len(hidden) == len(body)
    assert secret.encode() not in hidden
    assert set(msgspec.json.decode(hidden)) == {label, "nested"}
    assert mask(hidden) == hidden


def test_a_known_secret_of_any_shape_is_covered_everywhere() -> None:
    assert mask(b"open sesame7 and sesame7", [b"sesame7"]) == b"open xxxxxx0 and xxxxxx0"


def test_a_secret_on_the_edge_of_a_window_is_covered() -> None:
    for shift in range(-20, 4):
        data = b"a " * (WINDOW // 2) + b" " * (40 + shift)
        placed = data[: WINDOW + shift] + b" sk-fake-0123456789 " + data[:100]
        assert b"fake" not in mask(placed)


def test_fields_and_queries_go_by_their_names() -> None:
    fields = [("authorization", "Bearer abc"), ("x-api-key", "abc"), ("cookie", "abc"), ("x-left-tokens", "12")]
    assert mask_fields(fields) == (
        ("authorization", "Bearer ***"),
        ("x-api-key", "***"),
        ("cookie", "***"),
        ("x-left-tokens", "12"),
    )
    assert mask_url("https://host.example/p?key=abc&alt=sse") == "https://host.example/p?key=***&alt=sse"


def test_masked_frames_have_right_checksums_and_broken_ones_stay_broken() -> None:
    whole = event("assistantResponseEvent", {"content": "sk-fake-0123456789"})
    broken = bytearray(event("assistantResponseEvent", {"content": "sk-fake-9876543210"}))
    broken[-1] ^= 1
    data = whole + bytes(broken)
    out = EventStreamFramer().feed(update_checksums(mask(data), data))
    assert isinstance(out[0], EventStreamMessage)
    assert msgspec.json.decode(out[0].payload) == {"content": "sk-xxxx-0000000000"}
    assert isinstance(out[1], Broken)
    assert crc32(whole[:8]).to_bytes(4, "big") == whole[8:12]


@each_row("every", [1, 2, 3])
@each_row("slashes", ["\\", "\\\\"])
@each_row("secret", ["correct-horse-battery", *SHAPED[:3]])
def test_escapes_do_not_hide_a_secret(secret: str, slashes: str, every: int) -> None:
    written = "".join(f"{slashes}u{ord(c):04x}" if at % every == 0 else c for at, c in enumerate(secret))
    body = f'{{"é": "\\u00e9", "b": "{written}, more"}}'.encode()
    hidden = mask(body, [b"correct-horse-battery"])
    assert len(hidden) == len(body)
    assert hidden.startswith('{"é": "\\u00e9", "b": "'.encode())
    assert hidden.endswith(b', more"}')
    assert written[-12:].encode() not in hidden
    assert msgspec.json.decode(hidden)["b"].endswith(", more")


@pytest.mark.parametrize("text", [r'{"a":"\u0022 body"}', r"\u007f\u0041", r"no \u0073ecret here"])
def test_escapes_that_hide_no_secret_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


@each_row(
    ("path", "shown"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1beta/models/gemini-2.5-flash-preview-09-2025:countTokens",) * 2,
        ("/responses/resp_0123456789abcdef0123456789abcdef",) * 2,
        ("/openai/deployments/claude-sonnet-4-5-20250929-fast/chat",) * 2,
        ("/v1/dgm_fakefakefake/models", "/v1/***/models"),
        ("/api/v1/keys/dga_fakefakefake", "/api/v1/keys/***"),
        ("/v1/messages?key=fake&beta=true", "/v1/messages?key=***&beta=true"),
        ("/token=fake/x", "/token=***/x"),
        ("/hooks;sig=fake;v=1", "/hooks;sig=***;v=1"),
        ("/webhook/Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5", "/webhook/***"),
        ("/" + "a" * 200, "/" + "a" * (MAX_PATH - 2) + "…"),
        ("/x" * 49 + "/dgm_" + "fake" * 600, "/x" * 49 + "/…"),
    ],
)
def test_a_path_in_a_log_line_is_short_and_has_no_secrets(path: str, shown: str) -> None:
    assert redact_path(path) == shown
