"""Sign in to a provider over HTTP: the prompt is streamed, the credential is stored, and no token is shown."""

import http.client
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest

import asking
from fakes.codex import FakeCodex
from fakes.copilot import CLIENT_ID, FakeCopilot
from fakes.kiro import FakeKiro
from fakes.service import json_answer
from fakes.upstream import FakeUpstream
from gateway import KEY, Running, running, running_workers
from server.api.rig import ECHO
from waiting import wait_until
from wire_json import Json, JsonObject

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
        found = asking.send(gateway, "POST", PATH, body={"kind": "kiro"})
        lines = [msgspec.json.decode(line) for line in found.body.splitlines()]
        assert asking.send(gateway, "GET", "/api/v1/accounts/quotas").json["problems"] == {}
        [account] = asking.send(gateway, "GET", "/api/v1/accounts").json["accounts"]
        assert account["credentials"][0]["expires_at"] > time.time()
        audit = asking.send(gateway, "GET", "/api/v1/audit").json["audit"][0]
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


def test_an_account_is_used_by_all_workers_after_its_sign_in(tmp_path: Path) -> None:
    with FakeKiro() as fake, running_workers(section(fake), tmp_path, {"HOME": str(tmp_path)}) as (first, other):
        [before] = asking.send(other, "GET", "/api/v1/accounts").json["accounts"]
        assert before["credentials"][0]["expires_at"] is None
        assert b'"signed_in"' in asking.send(first, "POST", PATH, body={"kind": "kiro"}).body
        wait_until(lambda: is_signed_in(other))


def is_signed_in(gateway: Running) -> bool:
    """Return whether the account has a credential, and its models are listed."""
    [account] = asking.send(gateway, "GET", "/api/v1/accounts").json["accounts"]
    return account["credentials"][0]["expires_at"] is not None and not account["problem"]


def test_a_sign_in_that_is_denied_says_so(tmp_path: Path) -> None:
    with FakeKiro() as fake, running(section(fake), tmp_path, stored=["someone"]) as gateway:
        fake.device.append("access_denied")
        found = asking.send(gateway, "POST", PATH, body={"kind": "kiro"})
    last = msgspec.json.decode(found.body.splitlines()[-1])
    assert last["event"] == "failed"
    assert "denied" in last["message"]


def codex_section(fake: FakeCodex) -> str:
    prompt = {"device_auth_id": "fake-device", "user_code": "FAKE-CODE", "interval": "0.1"}
    fake.script("/api/accounts/deviceauth/usercode", json_answer(prompt))
    return f'[providers.codex]\nkind = "codex"\nendpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\n'


def copilot_section(fake: FakeCopilot) -> str:
    roots = f'endpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\ncontrol_endpoint = "{fake.root}"\n'
    return f'[providers.copilot]\nkind = "copilot"\n{roots}'


@contextmanager
def signing_in(gateway: Running, body: object) -> Iterator[Iterator[JsonObject]]:
    """Start a sign-in, and yield the lines of its response as they arrive."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection.request("POST", PATH, msgspec.json.encode(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    yield (msgspec.json.decode(line, type=JsonObject) for line in response)
    connection.close()


def return_from_browser(prompt: Json) -> None:
    """Do what the provider's page does after the user has agreed: send the browser back to the gateway's machine."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(prompt["link"]).query).items()}
    back = query["redirect_uri"].replace("localhost", "127.0.0.1")
    with urllib.request.urlopen(f"{back}?{urlencode({'state': query['state'], 'code': 'fake-code'})}") as page:
        assert page.status == 200


@pytest.mark.parametrize(
    ("fake", "section", "body"),
    [
        (FakeCodex, codex_section, {"kind": "codex"}),
        (FakeCopilot, copilot_section, {"kind": "copilot", "client_id": CLIENT_ID}),
    ],
)
def test_a_code_signs_in_to_the_other_kinds_too(
    tmp_path: Path, fake: Callable[[], FakeUpstream], section: Callable[[FakeUpstream], str], body: JsonObject
) -> None:
    with fake() as service, running(section(service), tmp_path, stored=["someone"]) as gateway:
        found = asking.send(gateway, "POST", PATH, body=body)
        first, *_, last = (msgspec.json.decode(line) for line in found.body.splitlines())
    assert (first["event"], first["code"]) == ("prompt", "FAKE-CODE")
    assert last == {"event": "signed_in", "provider": body["kind"], "use": "used"}
    assert (tmp_path / ".local" / "share" / "dragoman" / f"{body['kind']}.json").stat().st_mode & 0o777 == 0o600
    assert not any(sign in found.body for sign in (b"access_token", b"gho_", b"eyJ"))


@pytest.mark.parametrize(
    ("fake", "section", "body"),
    [
        (FakeCodex, codex_section, {"kind": "codex", "method": "browser"}),
        (FakeKiro, section, {"kind": "kiro", "method": "browser", "social": "google"}),
        (FakeKiro, section, {"kind": "kiro", "method": "browser", "social": "github"}),
    ],
)
def test_a_browser_on_the_gateways_machine_signs_in(
    tmp_path: Path, fake: Callable[[], FakeUpstream], section: Callable[[FakeUpstream], str], body: JsonObject
) -> None:
    with fake() as service, running(section(service), tmp_path, stored=["someone"]) as gateway:
        with signing_in(gateway, body) as lines:
            prompt = next(lines)
            assert prompt["event"] == "prompt"
            assert "code" not in prompt
            return_from_browser(prompt)
            *_, last = lines
        audit = asking.send(gateway, "GET", "/api/v1/audit").json["audit"][0]
    assert last == {"event": "signed_in", "provider": body["kind"], "use": "used"}
    assert audit["detail"] == {"method": "browser"}


def test_copilot_without_an_app_says_what_to_register(tmp_path: Path) -> None:
    with FakeCopilot() as fake, running(copilot_section(fake), tmp_path, stored=["someone"]) as gateway:
        last = msgspec.json.decode(asking.send(gateway, "POST", PATH, body={"kind": "copilot"}).body.splitlines()[-1])
    assert last["event"] == "failed"
    assert "providers.copilot.client_id is not set" in last["message"]


def test_an_account_without_a_section_becomes_a_provider_at_once(tmp_path: Path) -> None:
    environ = {"HTTPS_PROXY": "http://127.0.0.1:9"}  # the provider that appears has the vendor's own address
    with FakeKiro() as fake, running(section(fake), tmp_path, environ, ["someone"]) as gateway:
        fake.device.extend(["authorization_pending"] * 1000)
        with signing_in(gateway, {"kind": "kiro"}) as lines:
            assert next(lines)["event"] == "prompt"
            gateway.adopt(ECHO)
            names = [one["provider"] for one in asking.send(gateway, "GET", "/api/v1/accounts").json["accounts"]]
            assert names == ["echo"]
            fake.device.clear()
            *_, last = lines
        assert last["event"] == "signed_in"
        accounts = asking.send(gateway, "GET", "/api/v1/accounts").json["accounts"]
        assert [one["provider"] for one in accounts] == ["echo", "kiro"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "kind"),
        ({"kind": "openai"}, "kind"),
        ({"kind": "copilot", "method": "browser"}, "method"),
        ({"kind": "codex", "region": "us-east-1"}, "region"),
        ({"kind": "kiro", "region": "evil.example/"}, "region"),
        ({"kind": "kiro", "method": "browser"}, "social"),
        ({"kind": "kiro", "method": "browser", "social": "google", "start_url": "https://x"}, "start_url"),
        ({"kind": "kiro", "client_id": "x"}, "client_id"),
        ({"kind": "kiro", "file": "/etc/passwd"}, "file"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path: Path, body: object, field: str) -> None:
    with running(ECHO, tmp_path, stored=["someone"]) as gateway:
        refused = asking.send(gateway, "POST", PATH, body=body)
    assert (refused.status, refused.json["error"]["field"]) == (400, field)
