"""Sign in to a provider over HTTP: the prompt is streamed, the credential is stored, and no token is shown."""

import time
from pathlib import Path

import msgspec
import pytest

from fakes.kiro import FakeKiro
from gateway import running
from http_api.rig import ECHO, call

PATH = "/api/v1/accounts/sign-in"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


def section(fake: FakeKiro) -> str:
    return f'[providers.kiro]\nkind = "kiro"\nendpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\n'


def test_a_sign_in_by_code_streams_what_to_do_and_stores_the_credential(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    with FakeKiro() as fake, running(section(fake), tmp_path, environ, ["someone"]) as gateway:
        fake.device.append("authorization_pending")
        found = call(gateway, "POST", PATH, body={"kind": "kiro"})
        lines = [msgspec.json.decode(line) for line in found.body.splitlines()]
        assert call(gateway, "GET", "/api/v1/accounts/quotas").json["problems"] == {}
        [account] = call(gateway, "GET", "/api/v1/accounts").json["accounts"]
        assert account["credentials"][0]["expires_at"] > time.time()
        audit = call(gateway, "GET", "/api/v1/audit").json["audit"][0]
    assert lines[0] == {
        "event": "prompt",
        "link": f"{fake.root}/device?user_code=FAKE-CODE",
        "code": "FAKE-CODE",
    }
    assert {line["event"] for line in lines[1:-1]} == {"waiting"}
    assert lines[-1] == {"event": "signed_in", "provider": "kiro", "use": "used"}
    assert (audit["action"], audit["subject"], audit["detail"]) == ("accounts.sign_in", "kiro", {"method": "code"})
    stored = tmp_path / ".local" / "share" / "dragoman" / "kiro.json"
    assert msgspec.json.decode(stored.read_bytes())["accessToken"] == "aoaFAKE-access-token-1"
    assert b"aoaFAKE" not in found.body


def test_a_sign_in_that_is_denied_says_so(tmp_path: Path) -> None:
    with FakeKiro() as fake, running(section(fake), tmp_path, stored=["someone"]) as gateway:
        fake.device.append("access_denied")
        found = call(gateway, "POST", PATH, body={"kind": "kiro"})
    last = msgspec.json.decode(found.body.splitlines()[-1])
    assert last["event"] == "failed"
    assert "denied" in last["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "kind"),
        ({"kind": "openai"}, "kind"),
        ({"kind": "copilot", "method": "browser"}, "method"),
        ({"kind": "codex", "region": "us-east-1"}, "region"),
        ({"kind": "kiro", "method": "browser"}, "social"),
        ({"kind": "kiro", "method": "browser", "social": "google", "start_url": "https://x"}, "start_url"),
        ({"kind": "kiro", "file": "/etc/passwd"}, "file"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path: Path, body: object, field: str) -> None:
    with running(ECHO, tmp_path, stored=["someone"]) as gateway:
        refused = call(gateway, "POST", PATH, body=body)
    assert (refused.status, refused.json["error"]["field"]) == (400, field)
