"""`dragoman console` and the banner's link sign a browser in, with one process and with several."""

import http.client
import re

import msgspec
import pytest

from postgres import Postgres
from shell import Shell
from wire_json import JsonObject

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/console#t=([A-Za-z0-9_-]{43})")


def sign_in(port: int, token: str) -> tuple[int, JsonObject]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {
        "content-type": "application/json",
        "origin": f"http://127.0.0.1:{port}",
        "sec-fetch-site": "same-origin",
    }
    connection.request("POST", "/console/session", msgspec.json.encode({"link": token}), headers)
    answer = connection.getresponse()
    body = msgspec.json.decode(answer.read(), type=JsonObject)
    if answer.status == 200:
        headers["cookie"] = (answer.getheader("set-cookie") or "").partition(";")[0]
        headers["x-dragoman-console"] = str(body["token"])
        for _ in range(6):  # whichever worker answers
            other = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            other.request("GET", "/api/v1/config", headers=headers)
            assert other.getresponse().status == 200
            other.close()
    return answer.status, body


@pytest.mark.parametrize(("workers", "database"), [("1", "SQLite"), ("2", "SQLite"), ("2", "PostgreSQL")])
def test_the_link_of_the_banner_signs_in_once(
    shell: Shell, workers: str, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "PostgreSQL":
        server: Postgres = request.getfixturevalue("postgres")
        shell.write("dragoman.toml", f'[store]\nurl = "{server.database()}"\n')
    with shell.serve("--workers", workers) as served:
        found = LINK.search(served.out)
        assert found is not None
        port, token = int(found[1]), found[2]
        assert sign_in(port, token)[1]["role"] == "owner"
        assert sign_in(port, token)[0] == 401
    assert token not in served.err
    assert (shell.home / ".local" / "share" / "dragoman" / "dragoman.db").exists() == (database == "SQLite")


def test_the_command_prints_a_new_link(shell: Shell) -> None:
    with shell.serve() as served:
        done = shell.run("console", "--print")
        found = LINK.fullmatch(done.out.strip())
        assert found is not None
        assert sign_in(int(found[1]), found[2])[0] == 200
        assert found[2] not in served.out


def test_the_command_works_in_a_shell_that_has_the_key_of_the_banner(shell: Shell) -> None:
    with shell.serve() as served:
        key = re.search(r"DRAGOMAN_API_KEY=(dgm_\w+)", served.out)
        assert key is not None
        done = shell.run("console", "--print", DRAGOMAN_API_KEY=key[1])
        found = LINK.fullmatch(done.out.strip())
        assert found is not None
        assert sign_in(int(found[1]), found[2])[0] == 200


def test_the_command_works_with_a_gateway_that_has_a_stored_key_in_its_environment_too(shell: Shell) -> None:
    with shell.serve() as served:
        key = re.search(r"DRAGOMAN_API_KEY=(dgm_\w+)", served.out)
        assert key is not None
    with shell.serve(DRAGOMAN_API_KEY=key[1]):
        for environ in ({}, {"DRAGOMAN_API_KEY": key[1]}):
            found = LINK.fullmatch(shell.run("console", "--print", **environ).out.strip())
            assert found is not None
            assert sign_in(int(found[1]), found[2])[0] == 200


def test_without_the_console_there_is_no_link(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_CONSOLE="0") as served:
        assert "/console" not in served.out
        done = shell.run("console", "--print", DRAGOMAN_CONSOLE="0")
        assert (done.code, "console is off" in done.err) == (1, True)
    assert shell.run("console", "--print").code == 1


def test_an_open_address_without_tls_has_no_console_and_says_why(shell: Shell) -> None:
    shell.write("dragoman.toml", "[console]\nenabled = true\n")
    with shell.serve("--host", "0.0.0.0", DRAGOMAN_API_KEY="dgm_long-enough-for-an-open-address") as served:
        assert "/console" not in served.out
    assert "console.trusted_proxies" in served.err
