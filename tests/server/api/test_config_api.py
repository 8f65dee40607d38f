"""Edit the configuration over HTTP: checked as a reload would, written with a backup, in force at once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import asking
from dragoman.tenancy.keys import Scope
from gateway import Running, running
from server.api.rig import ECHO, make_token

PATH = "/api/v1/config/file"
CHECK = "/api/v1/config/check"
TOML = f"""{ECHO}[providers.up]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:9/v1"
api_key = "fake-upstream-0123456789"
"""
ROUTE = '[[models]]\nname = "parrot"\nto = ["echo/echo"]\n'


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(TOML, tmp_path, stored=["someone"]) as started:
        yield started


def write(gateway: Running, text: str, version: str | None) -> asking.Reply:
    headers = {} if version is None else {"if-match": version}
    return asking.send(gateway, "PUT", PATH, body={"text": text}, headers=headers)


def test_the_file_is_shown_without_its_secrets(gateway: Running, tmp_path: Path) -> None:
    found = asking.send(gateway, "GET", PATH)
    assert found.json["path"] == str(tmp_path / "dragoman.toml")
    assert (found.json["exists"], found.json["writable"]) == (True, True)
    assert 'api_key = "<hidden 1>"' in found.json["text"]
    assert b"fake-upstream" not in found.body


def test_a_checked_text_reports_problems_with_their_lines_and_changes_nothing(gateway: Running, tmp_path: Path) -> None:
    text = asking.send(gateway, "GET", PATH).json["text"]
    good = asking.send(gateway, "POST", CHECK, body={"text": text + ROUTE}).json
    assert (good["ok"], good["problems"]) == (True, [])
    assert '+name = "parrot"' in good["diff"]
    bad = asking.send(gateway, "POST", CHECK, body={"text": text + "[server]\nprot = 1\n"}).json
    assert bad["ok"] is False
    [problem] = bad["problems"]
    assert (problem["line"], problem["key"]) == (8, "server.prot")
    assert (tmp_path / "dragoman.toml").read_text() == TOML


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("#" + "x" * 300_000, 400),
        ("a." * 100_000 + "b = 1", 400),
        ("[" + '"a". ' * 40_000 + "b]", 400),
        ("x = {" + "a." * 100_000 + "b = 1}", 400),
        ("x = " + "[" * 50_000, 200),
        ("x = " + "{a = " * 3_000 + "1" + "}" * 3_000, 200),
        ("# " + "s" * 200_000 + "\n" + "# " + "key " * 10_000, 200),
    ],
    ids=["long", "dots", "quoted", "inline", "lists", "tables", "words"],
)
def test_no_text_takes_long_to_check(gateway: Running, text: str, status: int) -> None:
    before = time.process_time()
    checked = asking.send(gateway, "POST", "/api/v1/config/check", body={"text": text})
    assert checked.status == status, checked.body[:200]
    assert time.process_time() - before < 10  # and not hours


def test_a_written_text_is_in_force_at_once_and_the_secret_stays(gateway: Running, tmp_path: Path) -> None:
    read = asking.send(gateway, "GET", PATH)
    written = write(gateway, read.json["text"] + ROUTE, read.headers["etag"])
    assert written.status == 200, written.body
    assert (tmp_path / "dragoman.toml").read_text() == TOML + ROUTE
    assert (tmp_path / written.json["backup"]).read_text() == TOML
    assert [route["name"] for route in asking.send(gateway, "GET", "/api/v1/models").json["routes"]] == ["parrot"]
    audit = asking.send(gateway, "GET", "/api/v1/audit").json["audit"][0]
    assert audit["action"] == "config.write"
    assert '+name = "parrot"' in audit["detail"]["diff"]
    late = write(gateway, "", read.headers["etag"])
    assert (late.status, late.json["error"]["code"]) == (412, "version_mismatch")
    assert (tmp_path / "dragoman.toml").read_text() == TOML + ROUTE


def test_a_write_needs_the_version_and_a_valid_text(gateway: Running, tmp_path: Path) -> None:
    read = asking.send(gateway, "GET", PATH)
    blind = write(gateway, "", None)
    assert (blind.status, blind.json["error"]["field"]) == (428, "If-Match")
    wrong = write(gateway, "[server]\nport = true\n", read.headers["etag"])
    assert (wrong.status, wrong.json["ok"]) == (422, False)
    unknown = write(gateway, read.json["text"] + '# "<hidden 7>"', read.headers["etag"])
    assert (unknown.status, unknown.json["error"]["field"]) == (400, "text")
    assert (tmp_path / "dragoman.toml").read_text() == TOML


def test_a_program_and_a_stored_secret_are_out_of_reach_of_a_writer(gateway: Running, tmp_path: Path) -> None:
    token = make_token(gateway, Scope.CONFIG_READ, Scope.CONFIG_WRITE)
    read = asking.send(gateway, "GET", PATH, key=token)
    started = tmp_path / "started"
    program = f'[tools.web_search]\nbackend = ["mcp"]\ncommand = ["touch", "{started}"]\n'
    moved = '[providers.mine]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:1/v1"\napi_key = "<hidden 1>"\n'
    for added, key in ((program, "tools.web_search.command"), (moved, "providers.mine.api_key")):
        text = read.json["text"] + added
        headers = {"if-match": read.headers["etag"]}
        refused = asking.send(gateway, "PUT", PATH, body={"text": text}, key=token, headers=headers)
        assert refused.status == 422
        [problem] = refused.json["problems"]
        assert problem["key"] == key
        assert "edit the file on the gateway's machine" in problem["message"]
        assert asking.send(gateway, "POST", CHECK, body={"text": text}, key=token).json["problems"] == [problem]
    assert (tmp_path / "dragoman.toml").read_text() == TOML
    assert not started.exists()
