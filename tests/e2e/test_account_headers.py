"""Headers about the gateway's own account pass to its owner's key only; what `Connection` names, to none."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from e2e.test_replays import Kept, assert_same, debug
from gateway import KEY
from rig import ONCE, PROTOCOLS, Rig, run_rig
from scripting import write_error, write_reply

ACCOUNT = {
    "x-ratelimit-remaining-tokens": "12",
    "x-ratelimit-limit-requests": "500",
    "ratelimit-policy": "100;w=60",
    "anthropic-ratelimit-unified-status": "allowed",
    "anthropic-ratelimit-requests-remaining": "5",
    "anthropic-organization-id": "org-fake",
    "openai-organization": "org-fake",
    "openai-project": "proj_fake",
    "x-codex-primary-used-percent": "7.5",
    "x-codex-plan-type": "plus",
    "x-other-limit-secondary-reset-at": "1800000000",
    "x-quota-snapshot-premium_models": "ent=300&rem=12",
    "retry-after-tokens": "9",
}
PLAIN = {
    "x-should-retry": "true",
    "request-id": "req_vendor",
    "x-codex-turn-state": "opaque",
    "openai-processing-ms": "5",
    "x-odd": "a, b",
}

WAYS = list(product(PROTOCOLS, (False, True)))  # protocol, and whether the reply is streamed
HOPS = {"x-hop-one": "1", "x-hop-two": "2"}
NAMED = {"connection": "keep-alive, X-Hop-One , x-hop-two"}
KEPT = {"x-kept": "3"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), upstreams=PROTOCOLS, keys=("alice",)) as shared:
        yield shared


def play(rig: Rig, protocol: str, headers: Mapping[str, str], *, stream: bool = False) -> None:
    rig.play(protocol, write_reply(protocol, "Hello", stream=stream, headers=tuple(headers.items())))


def select(headers: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def test_account_headers_pass_to_the_owners_key_only(rig: Rig) -> None:
    """Of a good answer and of a refusal."""
    for row in product(WAYS, (200, 429)):
        (protocol, stream), status = row
        if status == 200:
            play(rig, protocol, ACCOUNT | PLAIN, stream=stream)
        else:
            refusal = write_error(429, "Slow down.")
            rig.play(protocol, replace(refusal, headers=tuple((ACCOUNT | PLAIN | {"retry-after": "7"}).items())))
        owner, stored = (
            rig.ask(protocol, protocol, stream=stream, key=key) for key in (KEY, rig.gateway.keys["alice"])
        )
        assert (owner.status, stored.status) == (status, status), row
        assert select(owner.headers, ACCOUNT) == ACCOUNT, row
        assert select(stored.headers, ACCOUNT) == {}, row
        assert select(stored.headers, PLAIN) == PLAIN, row
        if status == 200:
            assert select(owner.headers, PLAIN) == PLAIN, row
        else:
            assert owner.headers["retry-after"] == stored.headers["retry-after"] == "7", row


def test_what_connection_names_does_not_pass_in_either_direction(rig: Rig) -> None:
    for row in WAYS:
        protocol, stream = row
        play(rig, protocol, NAMED | HOPS | KEPT, stream=stream)
        reply = rig.ask(protocol, protocol, stream=stream, headers=NAMED | HOPS | KEPT)
        assert (reply.status, select(reply.headers, HOPS | KEPT)) == (200, KEPT), row
        [request] = rig.calls(protocol)
        assert select(request.headers, HOPS | KEPT) == KEPT, row


def test_a_version_that_connection_names_is_sent_all_the_same(rig: Rig) -> None:
    play(rig, "messages", {})
    version = {"anthropic-version": "2023-06-01"}
    rig.ask("messages", "messages", headers={"connection": "anthropic-version"} | version)
    assert select(rig.calls("messages")[0].headers, version) == version


def test_only_the_owners_key_chooses_an_organisation_upstream(rig: Rig) -> None:
    chosen = {"openai-organization": "org-fake", "openai-project": "proj_fake"}
    play(rig, "chat", {})
    for key in (KEY, rig.gateway.keys["alice"]):
        rig.ask("chat", "chat", key=key, headers=chosen)
    owner, stored = (select(request.headers, chosen) for request in rig.calls("chat"))
    assert (owner, stored) == (chosen, {})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_capture_of_a_stored_keys_request_replays_as_it_was(tmp_path: Path, stream: bool) -> None:
    settings = ONCE + debug(tmp_path / "captures")
    with run_rig(tmp_path, settings, upstreams=["chat"], keys=("alice",)) as rig:
        play(rig, "chat", ACCOUNT, stream=stream)
        for key in (rig.gateway.keys["alice"], KEY):
            rig.ask("chat", "chat", stream=stream, key=key)
        captures = Kept(tmp_path / "captures", rig.gateway).take_new(2)
    shown = [sum(name in ACCOUNT for name, _ in capture.response.headers) for capture in captures if capture.response]
    assert sorted(shown) == [0, len(ACCOUNT)]
    assert_same(captures)
