"""What the gateway remembers between requests contains no secret: a revoked key would stay in memory with it."""

import gc
import sys
from collections import deque
from collections.abc import Iterator
from functools import _lru_cache_wrapper, lru_cache
from pathlib import Path

import msgspec

from asking import send
from dragoman.config.proxies import parse_proxy
from dragoman.net.client import OutgoingRequest, write_head
from dragoman.net.dial import parse_url
from dragoman.net.headers import CREDENTIAL_FIELDS
from dragoman.proxy.request_headers import KEPT_BACK
from dragoman.translate.framing.known_secrets import LatestForms
from dragoman.translate.protocols import KEY_PLACES
from gateway import KEY
from rig import Rig, run_rig

CONTAINERS = (tuple, list, dict, set, frozenset, deque, msgspec.Struct)
MARK = "fake-7c1e"  # part of every secret of this test that has no form of its own
WRONG = f"wrong-key-{MARK}-of-a-client"
TOKEN = f"token-{MARK}-in-a-header"
COOKIE = f"cookie-{MARK}"
UPSTREAM_KEY = "sk-fake-upstream"
BODIES = {
    "/v1/chat/completions": {"model": "chat/m", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"model": "messages/m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1beta/models/chat/m:generateContent": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}


def find_remembered(word: str, package: str = "dragoman") -> list[str]:
    """Return the names of caches and tables of a package's modules that contain a word."""
    found = []
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == package]:
        for name, value in vars(module).items():
            if isinstance(value, (_lru_cache_wrapper, *CONTAINERS)) and any(word in text for text in list_texts(value)):
                found.append(f"{module.__name__}.{name}")
    return found


def list_texts(root: object) -> Iterator[str]:
    """Yield all texts and bytes within a cache or a container."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        for value in gc.get_referents(waiting.pop()):
            if isinstance(value, bytes):
                yield value.decode("latin-1")
            elif isinstance(value, str):
                yield value
            elif isinstance(value, CONTAINERS) and id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)


@lru_cache
def remember(secret: bytes, number: int) -> tuple[int, bytes]:
    return number, secret


def test_a_cache_that_remembers_a_secret_is_found() -> None:
    remember(f"control-{MARK}".encode(), 1)
    assert any(name.endswith(".remember") for name in find_remembered(f"control-{MARK}", __name__.partition(".")[0]))


def ask_in_every_way(rig: Rig, key: str) -> Iterator[int]:
    """Present a key in each place, in each protocol, again and again; yield the statuses."""
    rest = {"cookie": f"session={COOKIE}", "x-other-token": TOKEN}
    ways: list[tuple[str, dict[str, str]]] = [
        ("", {"authorization": f"Bearer {key}"}),
        ("", {"x-api-key": key}),
        ("", {"api-key": key}),
        ("", {"x-goog-api-key": key}),
        ("", {"x-api-key": key, **rest}),
        (f"?key={key}", {}),
    ]
    for path, body in BODIES.items():
        for query, headers in ways:
            for _ in range(2):
                yield send(rig, "POST", path + query, body, key=None, headers=headers).status


def test_no_cache_contains_a_key_after_its_request(tmp_path: Path) -> None:
    with run_rig(tmp_path, upstreams=("chat", "messages")) as rig:
        rig.play("chat", *["Hello"] * 20, stream=False)
        rig.play("messages", *["Hello"] * 10, stream=False)
        assert set(ask_in_every_way(rig, KEY)) == {200}
        assert all(call.headers for call in rig.calls("chat"))
        assert {send(rig, "GET", f"/v1/models?key={WRONG}", key=WRONG).status for _ in range(2)} == {401}
        assert send(rig, "POST", "/v1/messages", {}, key=WRONG).status == 401
        for secret in (KEY, WRONG, TOKEN, COOKIE, UPSTREAM_KEY):
            assert find_remembered(secret) == [], secret


def test_no_cache_contains_the_secrets_of_urls_and_proxies() -> None:
    signed = f"http://127.0.0.1/file?expires=1700000000&signature={MARK}-signed"
    write_head(OutgoingRequest("GET", signed, ()), parse_url(signed), None)
    proxy = parse_proxy(f"http://user:{MARK}-password@127.0.0.1:3128")
    plain = "http://127.0.0.1/v1"
    head = write_head(OutgoingRequest("GET", plain, ((b"x-team", f"{MARK}-team".encode()),)), parse_url(plain), proxy)
    assert b"proxy-authorization: Basic" in head
    encoded = head.partition(b"Basic ")[2].partition(b"\r\n")[0].decode()
    for secret in (f"{MARK}-signed", f"{MARK}-password", f"{MARK}-team", encoded):
        assert find_remembered(secret) == [], secret


def test_the_forms_of_a_credential_that_was_replaced_are_forgotten() -> None:
    latest = LatestForms()
    first = latest.find(((b"authorization", b"Bearer first-fake-token"),), (b"fake-header",))
    assert b"first-fake-token" in first
    assert latest.find(((b"authorization", b"Bearer first-fake-token"),), (b"fake-header",)) is first
    second = latest.find(((b"authorization", b"Bearer second-fake-token"),), (b"fake-header",))
    assert b"second-fake-token" in second
    assert not any(b"first" in value for value in gc.get_referents(*gc.get_referents(latest)) if type(value) is bytes)


def test_every_place_of_a_key_is_cut_out_of_remembered_heads_and_never_forwarded() -> None:
    assert set(KEY_PLACES.headers) | {b"authorization"} <= CREDENTIAL_FIELDS <= KEPT_BACK
