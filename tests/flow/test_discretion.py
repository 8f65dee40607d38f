"""What an upstream repeats of its secrets is hidden in every disguise, and wherever a stream is cut."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from dragoman.flow.discretion import HIDDEN, Veil, hide, hushed, secrets_in
from dragoman.hub.failure import Failure, Kind

KEY = 'fake/key+with="signs"&more'
SECRETS = secrets_in([(b"authorization", b"Bearer " + KEY.encode())], [b"fake-proxy-password"])
DISGUISES = {
    "as it is": KEY,
    "in JSON": json.dumps(KEY)[1:-1],
    "with escaped slashes": KEY.replace("/", r"\/"),
    "in a URL": quote(KEY, safe=""),
    "of another kind": "fake-proxy-password",
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_secret_is_known_in_its_disguises(disguise: str) -> None:
    said = f"before {DISGUISES[disguise]} after".encode()
    assert hide(said, SECRETS) == b"before *** after"


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_secret_is_hidden_wherever_the_stream_is_cut(disguise: str) -> None:
    said = f'data: {{"a":"fake {DISGUISES[disguise]}, fak"}}\n\ndata: f'.encode()
    for size in range(1, len(said)):
        veil = Veil(SECRETS)
        pieces = [veil.feed(said[at : at + size]) for at in range(0, len(said), size)]
        assert b"".join([*pieces, veil.finish()]) == hide(said, SECRETS), size


def test_what_is_no_secret_is_not_held_back_for_long() -> None:
    veil = Veil(SECRETS)
    assert veil.feed(b"data: fake\n\n") == b"data: fake\n\n"
    assert veil.feed(b"data: fak") == b"data: "
    assert veil.feed(b"ir") == b"fakir"
    assert veil.finish() == b""


def test_most_of_a_secret_at_the_very_end_is_not_told_either() -> None:
    veil = Veil(SECRETS)
    assert veil.feed(b"x fake-proxy-passwor") == b"x "
    assert veil.finish() == HIDDEN
    assert veil.feed(b"x fake-") == b"x "
    assert veil.finish() == b"fake-"


@pytest.mark.parametrize("before", ["", "x", "Bearer ", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_in_base64_is_hidden_but_for_its_edges(before: str, encode: Callable[[bytes], bytes]) -> None:
    text = encode(f"{before}{KEY}, and more".encode())
    hidden = hide(text, SECRETS)
    assert HIDDEN in hidden
    left = hidden.split(HIDDEN)
    assert len(b"".join(left)) <= len(text) - len(KEY)


def test_a_short_word_is_no_secret() -> None:
    assert secrets_in([(b"x-team", b"red")], [b"blue"]) == ()


def test_a_failures_code_and_details_are_as_discreet_as_its_message() -> None:
    failure = Failure(Kind.UPSTREAM, f"bad {KEY}", code=KEY, detail={"seen": [KEY], "kept": 1})
    told = hushed(failure, SECRETS)
    assert (told.message, told.code, told.detail) == ("bad ***", "***", {"seen": ["***"], "kept": 1})
    innocent = Failure(Kind.UPSTREAM, "bad luck")
    assert hushed(innocent, SECRETS) is innocent
