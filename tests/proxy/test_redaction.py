"""What an upstream repeats of its secrets is hidden in every disguise, and wherever a stream is cut."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.proxy.redaction import EventRedactor, redact_failure
from dragoman.translate.framing.known_secrets import MASK_BYTES, StreamRedactor, list_secrets, redact_known
from dragoman.translate.framing.redaction import unescape
from dragoman.translate.hub.events import Closed, Delta, Ended, Opened, Stop, TextBlock
from dragoman.translate.hub.failure import Failure, Kind

KEY = 'fake/key+with="signs"&more'
SECRETS = list_secrets(((b"authorization", b"Bearer " + KEY.encode()),), (b"fake-proxy-password",))
DISGUISES = {
    "as it is": KEY,
    "in JSON": json.dumps(KEY)[1:-1],
    "with escaped slashes": KEY.replace("/", r"\/"),
    "in a URL": quote(KEY, safe=""),
    "of another kind": "fake-proxy-password",
}


def escape_text(key: str, which: list[bool]) -> str:
    return "".join(f"\\u{ord(c):04x}" if which[place % len(which)] else c for place, c in enumerate(key))


ESCAPED = {
    name: escape_text(KEY, which)
    for name, which in {"all": [True], "half": [True, False], "some": [False, False, True]}.items()
}


@pytest.mark.parametrize("secret", [*DISGUISES.values(), *ESCAPED.values()], ids=[*DISGUISES, *ESCAPED])
def test_a_secret_is_known_in_its_disguises_wherever_the_stream_is_cut(secret: str) -> None:
    assert redact_known(f"before {secret} after".encode(), SECRETS) == b"before *** after"
    whole = f'data: {{"a":"fake {secret}, fak"}}\n\ndata: f', f'data: {{"a":"fake {secret}\\\\u00"}}\n\ndata: \\u00'
    for text in (stream.encode() for stream in whole):
        assert redact_known(text, SECRETS).count(MASK_BYTES) == 1
        for size in range(1, len(text)):
            redactor = StreamRedactor(SECRETS)
            pieces = [redactor.feed(text[at : at + size]) for at in range(0, len(text), size)]
            assert b"".join([*pieces, redactor.finish()]) == redact_known(text, SECRETS), size


def test_what_is_no_secret_is_not_held_back_for_long() -> None:
    redactor = StreamRedactor(SECRETS)
    assert redactor.feed(b"data: fake\n\n") == b"data: fake\n\n"
    assert redactor.feed(b"data: fak") == b"data: "
    assert redactor.feed(b"ir") == b"fakir"
    assert redactor.finish() == b""


def test_most_of_a_secret_at_the_very_end_is_hidden_too() -> None:
    redactor = StreamRedactor(SECRETS)
    assert redactor.feed(b"x fake-proxy-passwor") == b"x "
    assert redactor.finish() == MASK_BYTES
    assert redactor.feed(b"x fake-") == b"x "
    assert redactor.finish() == b"fake-"


@pytest.mark.parametrize("before", ["", "x", "Bearer ", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_in_base64_is_hidden_but_for_its_edges(before: str, encode: Callable[[bytes], bytes]) -> None:
    text = encode(f"{before}{KEY}, and more".encode())
    hidden = redact_known(text, SECRETS)
    assert MASK_BYTES in hidden
    left = hidden.split(MASK_BYTES)
    assert len(b"".join(left)) <= len(text) - len(KEY)


def test_a_short_word_is_no_secret() -> None:
    assert list_secrets(((b"x-team", b"red"),), (b"blue",)) == ()


def test_a_failures_code_and_details_are_redacted_like_its_message() -> None:
    failure = Failure(Kind.UPSTREAM, f"bad {KEY}", code=KEY, detail={"seen": [KEY], "kept": 1})
    redacted = redact_failure(failure, SECRETS)
    assert (redacted.message, redacted.code, redacted.detail) == ("bad ***", "***", {"seen": ["***"], "kept": 1})
    innocent = Failure(Kind.UPSTREAM, "bad luck")
    assert redact_failure(innocent, SECRETS) is innocent


WORDS = st.lists(st.sampled_from(["fake", "/", "key", " ", "f", "fa", "\\", "\\u00", "66", KEY, KEY[:9], KEY[3:], "é"]))


@given(WORDS, st.lists(st.integers(1, 9), min_size=1), st.lists(st.booleans(), min_size=1))
def test_deltas_hold_no_secret_however_they_are_cut_and_lose_nothing_else(
    words: list[str], sizes: list[int], which: list[bool]
) -> None:
    text = "".join(escape_text(word, which) if word == KEY else word for word in words) + " end."
    redactor, out, at, turn = EventRedactor(SECRETS), "", 0, 0
    redactor.feed(Opened(0, TextBlock()))
    while at < len(text):
        size = sizes[turn % len(sizes)]
        out += "".join(event.text for event in redactor.feed(Delta(0, text[at : at + size])) if type(event) is Delta)
        at, turn = at + size, turn + 1
    *rest, closed = redactor.feed(Closed(0))
    assert closed == Closed(0)
    out += "".join(event.text for event in rest if type(event) is Delta)
    assert KEY not in unescape(out)
    if KEY not in unescape(text):
        assert out == text


def test_held_back_text_is_sent_before_its_block_or_the_reply_ends() -> None:
    redactor = EventRedactor(SECRETS)
    assert list(redactor.feed(Delta(0, "a fake/k"))) == [Delta(0, "a ")]
    assert list(redactor.feed(Delta(1, "b fake/"))) == [Delta(1, "b ")]
    assert list(redactor.feed(Closed(0))) == [Delta(0, "fake/k"), Closed(0)]
    assert list(redactor.feed(Ended(Stop.END))) == [Delta(1, "fake/"), Ended(Stop.END)]


def test_a_delta_without_the_beginning_of_a_secret_passes_as_it_is() -> None:
    redactor = EventRedactor(SECRETS)
    events = [Delta(0, text) for text in ("Hello", " of", " f", "a", "r ", "\\n", "\\u00e9")]
    assert [list(redactor.feed(event)) for event in events] == [[event] for event in events]


@pytest.mark.parametrize("which", [[True], [True, False], [False, True], [False, False, True]])
def test_arguments_are_still_json_when_an_escaped_secret_in_them_was_hidden(which: list[bool]) -> None:
    text = f'{{"a": "{escape_text(KEY.replace(chr(34), "_"), which)}", "b": "\\u0066ine\\n"}}'
    secrets = list_secrets(((b"authorization", b"Bearer " + KEY.replace('"', "_").encode()),))
    for size in range(1, 20):
        redactor, out = EventRedactor(secrets), ""
        for at in range(0, len(text), size):
            out += "".join(
                event.text for event in redactor.feed(Delta(0, text[at : at + size])) if type(event) is Delta
            )
        out += "".join(event.text for event in redactor.feed(Closed(0)) if type(event) is Delta)
        arguments = json.loads(out)
        assert arguments["b"] == "fine\n"
        assert arguments["a"] in ("***", "f***", "fa***", "fak***")
