"""An edited configuration takes effect for the next request, the server's own settings too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import ask
from fakes.upstream import Answer
from gateway import provider_section
from rig import ONCE, PROTOCOLS, Rig, run_rig
from scripting import JSON, write_reply


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Rig]:
    with run_rig(tmp_path, upstreams=PROTOCOLS) as gate:
        gate.play("chat", write_reply("chat", "Hello", stream=False))
        yield gate


def edit(gate: Rig, settings: str) -> None:
    gate.gateway.adopt(settings + provider_section("chat", gate.fakes["chat"].url, "chat"))


def test_an_edit_changes_the_largest_body(fresh: Rig) -> None:
    text = "x" * 5000
    assert fresh.ask("chat", "chat", text).status == 200
    edit(fresh, ONCE + "[server]\nmax_body_mb = 0.002\n")
    assert fresh.ask("chat", "chat", text).status == 413
    edit(fresh, ONCE)
    assert fresh.ask("chat", "chat", text).status == 200


def test_the_hosts_that_are_answered_for(fresh: Rig) -> None:
    assert fresh.send("GET", "/health", headers={"host": "box.lan"}).status == 421
    edit(fresh, ONCE + "[server]\nallowed_hosts = ['box.lan']\n")
    assert fresh.send("GET", "/health", headers={"host": "box.lan"}).status == 200


def test_attempts_and_targets(fresh: Rig) -> None:
    edit(fresh, "[retry]\nattempts = 3\nbase_s = 0.01\n[[models]]\nname = 'mine'\nto = ['chat/m']\n")
    fake = fresh.play("chat", Answer(b"{}", status=500, content_type=JSON))
    assert ask(fresh, "messages", "mine").status == 500
    assert len(fake.calls) == 3


def test_an_address_is_kept_until_the_restart(fresh: Rig, caplog: pytest.LogCaptureFixture) -> None:
    edit(fresh, ONCE + "[server]\nhost = 'localhost'\n")
    assert "restart" in caplog.text
    assert fresh.ask("chat", "chat").status == 200
