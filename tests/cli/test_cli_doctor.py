"""`dragoman doctor`: what it finds, and the next step that it names."""

import http.server
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from time import time

import msgspec
import pytest

from fakes.upstream import Answer, FakeUpstream
from gateway import provider_section
from scraping import scrape, total
from shell import Shell
from waiting import wait_until


class Finding(msgspec.Struct):
    what: str
    state: str
    found: str
    to_do: str


class Report(msgspec.Struct):
    ok: bool
    checks: list[Finding]

    def about(self, what: str) -> Finding:
        return next(finding for finding in self.checks if finding.what == what)


def run_doctor(shell: Shell, *words: str, **environ: str) -> Report:
    done = shell.run("doctor", "--json", *words, **environ)
    report = msgspec.json.decode(done.out, type=Report)
    assert done.code == (0 if report.ok else 1)
    assert report.ok == all(finding.state != "broken" for finding in report.checks)
    return report


@contextmanager
def vendor(status: int, ahead_s: float = 0.0) -> Iterator[str]:
    """A server whose model list has this status, and whose clock is ahead."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time() + ahead_s, usegmt=True)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def with_provider(shell: Shell, endpoint: str, key: str = "sk-fake-0123456789") -> None:
    section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{endpoint}"\napi_key = "{key}"\n'
    shell.write("dragoman.toml", section)


def test_a_fresh_machine_has_no_problems(shell: Shell) -> None:
    report = run_doctor(shell)
    assert report.ok
    assert report.about("provider echo").state == "ok"
    assert "first start" in report.about("store").found + report.about("client keys").to_do
    assert not (shell.home / ".local").exists()


def test_a_bad_configuration_is_named_line_by_line(shell: Shell) -> None:
    path = shell.write("dragoman.toml", '[server]\nprot = 1\n[providers.a]\nkind = "opnai"\n')
    report = run_doctor(shell)
    assert [finding.state for finding in report.checks] == ["broken", "broken"]
    assert [finding.found.removeprefix(f"{path}:")[0] for finding in report.checks] == ["2", "4"]
    assert all(finding.to_do for finding in report.checks)


@pytest.mark.parametrize(
    ("status", "state", "words"), [(200, "ok", "accepts"), (401, "broken", "rejects"), (404, "warning", "no models")]
)
def test_the_status_of_the_model_list_decides_the_state(shell: Shell, status: int, state: str, words: str) -> None:
    with vendor(status) as endpoint:
        with_provider(shell, endpoint)
        finding = run_doctor(shell).about("provider up")
    assert finding.state == state
    assert words in finding.found
    assert bool(finding.to_do) == (state != "ok")


def test_a_provider_that_cannot_be_reached_is_broken(shell: Shell) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound, but never listening
        port = unheard.getsockname()[1]
        with_provider(shell, f"http://127.0.0.1:{port}")
        finding = run_doctor(shell).about("provider up")
    assert finding.state == "broken"
    assert f"127.0.0.1:{port}" in finding.found


def test_a_credential_that_is_not_set_is_named(shell: Shell) -> None:
    with_provider(shell, "http://127.0.0.1:9", "env:NOT_SET_ANYWHERE")
    finding = run_doctor(shell).about("provider up")
    assert finding.state == "broken"
    assert "environment variable NOT_SET_ANYWHERE is not set" in finding.found


def test_no_secret_is_shown(shell: Shell) -> None:
    with vendor(401) as endpoint:
        with_provider(shell, endpoint)
        shown = shell.run("doctor", DRAGOMAN_API_KEY="fake-key-from-outside")
    assert "sk-fake" not in shown.out + shown.err
    assert "fake-key-from-outside" not in shown.out + shown.err


def test_a_wrong_clock_is_noticed(shell: Shell) -> None:
    with vendor(200, ahead_s=4000) as endpoint:
        with_provider(shell, endpoint)
        finding = run_doctor(shell).about("clock")
    assert finding.state == "broken"
    assert "behind" in finding.found


def test_a_running_gateway_is_recognised(shell: Shell) -> None:
    with shell.serve() as served:
        report = run_doctor(shell)
    assert report.ok
    assert f"is running at {served.url}" in report.about("address").found
    assert report.about("client keys").found == "1 in the store"


def test_fallbacks_of_the_running_gateway_are_explained(shell: Shell) -> None:
    route = '[[models]]\nname = "both"\nto = ["up/m", "spare/echo"]\n'
    refusal = b'{"error":{"message":"not for you","type":"permission_error"}}'
    with FakeUpstream([Answer(refusal, 403, "application/json")]) as upstream:
        section = provider_section("chat", upstream.url)
        shell.write("routes.toml", f'{section}[providers.spare]\nkind = "echo"\n{route}')
        with shell.serve("--config", "routes.toml") as served:
            body = msgspec.json.encode({"model": "both", "messages": [{"role": "user", "content": "Hi"}]})
            headers = {"authorization": f"Bearer {served.key}"}
            request = urllib.request.Request(f"{served.url}/v1/chat/completions", body, headers)
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.headers["x-dragoman-route"] == "spare/echo"
            wait_until(lambda: total(scrape(served.url), "dragoman_fallbacks_total") > 0)
            report = run_doctor(shell)
    assert report.ok
    assert report.about("fallbacks from up").found.endswith("forbidden (1)")


def test_a_port_that_another_program_has_is_broken(shell: Shell) -> None:
    with FakeUpstream() as other:
        shell.write("dragoman.toml", f"[server]\nport = {other.port}\n")
        finding = run_doctor(shell).about("address")
    assert finding.state == "broken"
    assert "--port" in finding.to_do


def test_a_store_that_others_could_read_is_reported_and_corrected(shell: Shell) -> None:
    shell.run("keys", "create")
    store = shell.home / ".local/share/dragoman/dragoman.db"
    store.chmod(0o644)
    assert run_doctor(shell).about("store").state == "warning"
    assert run_doctor(shell).about("store").state == "ok"


def test_an_open_address_without_a_valid_key_is_broken_once_there_was_one(shell: Shell) -> None:
    shell.write("dragoman.toml", '[server]\nhost = "0.0.0.0"\nport = 0\n')
    assert run_doctor(shell).about("client keys").state == "warning"
    shell.run("keys", "create", "laptop")
    shell.run("keys", "revoke", "laptop")
    assert run_doctor(shell).about("client keys").state == "broken"


def test_the_text_shows_what_to_do(shell: Shell) -> None:
    with_provider(shell, "http://127.0.0.1:9", "env:NOT_SET_ANYWHERE")
    lines = shell.run("doctor").out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("BROKEN"))
    assert lines[at + 1].strip().startswith("→ ")


def test_every_credential_of_a_list_is_checked_separately(shell: Shell) -> None:
    with vendor(200) as url:
        keys = '["env:FAKE_KEY_A", "env:FAKE_KEY_B"]'
        shell.write("dragoman.toml", f'[providers.v]\nkind = "openai"\nendpoint = "{url}"\napi_key = {keys}\n')
        report = run_doctor(shell, FAKE_KEY_A="sk-fake-1")
    first, second = (
        f"provider v, credential {number} of 2 (env:FAKE_KEY_{name})" for number, name in ((1, "A"), (2, "B"))
    )
    assert report.about(first).state == "ok"
    assert report.about(second).state == "broken"
    assert "FAKE_KEY_B is not set" in report.about(second).found


def test_a_secret_that_others_can_read_is_reported_with_the_command_to_run(shell: Shell, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-fake-of-a-file")
    found = tmp_path / ".codex" / "auth.json"
    found.parent.mkdir()
    found.write_text('{"tokens": {"access_token": "fake"}}')
    with vendor(200) as url:
        section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{url}"\napi_key = "file:{key}"\n'
        shell.write("dragoman.toml", section + '[providers.codex]\nkind = "codex"\nendpoint = "http://127.0.0.1:9"\n')
        for path in (key, found):
            path.chmod(0o644)
        open_to_all = run_doctor(shell)
        for path in (key, found):
            path.chmod(0o600)
        kept = run_doctor(shell)
    for name, path in (("up", key), ("codex", found)):
        finding = open_to_all.about(f"secrets of {name}")
        assert (finding.state, finding.to_do) == ("warning", f"chmod 600 {path}")
        assert "sk-fake" not in finding.found
    assert not [finding for finding in kept.checks if finding.what.startswith("secrets of")]
