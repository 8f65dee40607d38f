"""An edited configuration takes effect for the next request, the server's own settings too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.upstream import Answer
from gateway import provider_section
from surface.outside import JSON, ONCE, Outside, outside, request_body
from surface.vendor_replies import WHOLE


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Outside]:
    with outside(tmp_path) as gate:
        gate.play("chat", Answer(WHOLE["chat"], content_type=JSON))
        yield gate


def edit(gate: Outside, settings: str) -> None:
    gate.gateway.adopt(settings + provider_section("chat", gate.fakes["chat"].url, "chat"))


def test_an_edit_changes_the_largest_body(fresh: Outside) -> None:
    body = request_body("chat", "chat/m", user="x" * 5000)
    assert fresh.send("POST", "/v1/chat/completions", body).status == 200
    edit(fresh, ONCE + "[server]\nmax_body_mb = 0.002\n")
    assert fresh.send("POST", "/v1/chat/completions", body).status == 413
    edit(fresh, ONCE)
    assert fresh.send("POST", "/v1/chat/completions", body).status == 200


def test_the_hosts_that_are_answered_for(fresh: Outside) -> None:
    assert fresh.send("GET", "/health", host="box.lan").status == 421
    edit(fresh, ONCE + "[server]\nallowed_hosts = ['box.lan']\n")
    assert fresh.send("GET", "/health", host="box.lan").status == 200


def test_attempts_and_targets(fresh: Outside) -> None:
    edit(fresh, "[retry]\nattempts = 3\nbase_s = 0.01\n[[models]]\nname = 'mine'\nto = ['chat/m']\n")
    fake = fresh.play("chat", Answer(b"{}", status=500, content_type=JSON))
    assert fresh.ask("messages", "mine").status == 500
    assert len(fake.calls) == 3


def test_an_address_is_kept_until_the_restart(fresh: Outside, caplog: pytest.LogCaptureFixture) -> None:
    edit(fresh, ONCE + "[server]\nhost = 'localhost'\n")
    assert "restart" in caplog.text
    assert fresh.ask("chat", "chat/m").status == 200
