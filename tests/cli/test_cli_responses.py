"""`dragoman responses`: what is stored, shown as the client sees it, and deleted."""

import json

import pytest

from asking import PATHS, make_body, send
from shell import Served, Shell
from waiting import wait_until
from wire_json import JsonObject


def make(served: Served, text: str, previous: object = None, *, background: bool = False) -> JsonObject:
    fields = {"previous_response_id": previous, "background": background}
    body = make_body("responses", "echo", text) | fields
    made: JsonObject = json.loads(send(served, "POST", PATHS["responses"], body, key=served.key).body)
    return made


@pytest.mark.rest
def test_stored_responses_are_listed_shown_and_deleted(shell: Shell) -> None:
    with shell.serve() as served:
        first = make(served, "I am Ada.")
        second = make(served, "More", first["id"])
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
        queued = make(served, "I am Ada.", background=True)

        def show() -> JsonObject:
            shown: JsonObject = json.loads(shell.run("responses", "show", str(queued["id"])).out)
            return shown

        wait_until(lambda: show()["status"] == "completed")
        shown = show()
        assert (shown["id"], shown["background"], "I am Ada." in str(shown["output"])) == (queued["id"], True, True)
        [row] = json.loads(shell.run("responses", "list", "--json").out)
        assert (row["mode"], row["status"], row["route"]) == ("background", "completed", "echo/echo")
