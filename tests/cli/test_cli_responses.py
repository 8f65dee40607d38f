"""`dragoman responses`: what is stored, shown as the client sees it, and deleted."""

import json
import time
import urllib.request

from shell import Served, Shell
from wire_json import JsonObject


def post(served: Served, body: JsonObject) -> JsonObject:
    headers = {"authorization": f"Bearer {served.key}"}
    request = urllib.request.Request(f"{served.url}/v1/responses", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        made: JsonObject = json.loads(answer.read())
        return made


def test_stored_responses_are_listed_shown_and_deleted(shell: Shell) -> None:
    with shell.serve() as served:
        first = post(served, {"model": "echo", "input": "I am Ada."})
        second = post(served, {"model": "echo", "input": "More", "previous_response_id": first["id"]})
        listed = json.loads(shell.run("responses", "list", "--json").out)
        assert [row["id"] for row in listed] == [second["id"], first["id"]]
        assert {(row["status"], row["model"], row["route"]) for row in listed} == {("completed", "echo", "echo/echo")}
        assert str(first["id"]) in shell.run("responses", "list").out
        assert json.loads(shell.run("responses", "list", "--key", "key_none", "--json").out) == []
        assert json.loads(shell.run("responses", "show", str(first["id"])).out) == first
        shell.run("responses", "delete", str(first["id"]))
        gone = shell.run("responses", "show", str(first["id"]))
        assert gone.code == 1
        assert "There is no stored response" in gone.err


def test_background_responses_are_listed_and_shown_with_their_status(shell: Shell) -> None:
    with shell.serve() as served:
        queued = post(served, {"model": "echo", "input": "I am Ada.", "background": True})
        deadline = time.monotonic() + 60
        while (shown := json.loads(shell.run("responses", "show", str(queued["id"])).out))["status"] != "completed":
            assert time.monotonic() < deadline, shown
        assert (shown["id"], shown["background"], "I am Ada." in str(shown["output"])) == (queued["id"], True, True)
        [row] = json.loads(shell.run("responses", "list", "--json").out)
        assert (row["mode"], row["status"], row["route"]) == ("background", "completed", "echo/echo")
