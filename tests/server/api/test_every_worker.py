"""What an operator does on one of two workers takes effect on both, before the response comes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import asking
from dragoman.upstreams.credentials.cooldowns import CredentialCooldown
from gateway import Running, running_workers
from server.api.rig import ECHO, chat
from waiting import wait_until

Workers = tuple[Running, Running]
LONG = "word " * 4000
AGAIN = '[[models]]\nname = "parrot"\nto = ["echo/echo"]\n'


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with running_workers(ECHO, tmp_path) as both:
        yield both


def cool_down(worker: Running, reason: str, seconds: float) -> float:
    now = time.time()
    cooldowns = worker.app.gateway.runtime.providers["echo"].account.cooldowns
    assert cooldowns is not None
    cooldowns.start_cooldown(0, CredentialCooldown("", now + seconds, reason), now)
    return now + seconds


def test_a_cooldown_of_either_worker_is_shown_and_ended_by_both(workers: Workers) -> None:
    first, other = workers
    assert asking.send(first, "GET", "/api/v1/accounts").json["accounts"][0]["credentials"][0]["is_available"] is True
    until = cool_down(other, "quota", 600)
    cool_down(first, "quota", 300)
    for worker in workers:
        [credential] = asking.send(worker, "GET", "/api/v1/accounts").json["accounts"][0]["credentials"]
        assert credential["is_available"] is False
        [cooldown] = credential["cooldowns"]
        assert cooldown["reason"] == "quota"
        assert cooldown["until"] == pytest.approx(until, abs=2)
    assert asking.send(first, "DELETE", "/api/v1/accounts/echo/cooldowns").json == {"ended": 2}
    for worker in workers:
        [credential] = asking.send(worker, "GET", "/api/v1/accounts").json["accounts"][0]["credentials"]
        assert (credential["is_available"], credential["cooldowns"]) == (True, [])
    assert asking.send(first, "DELETE", "/api/v1/accounts/nothing/cooldowns").status == 404


def test_a_key_is_valid_and_revoked_on_both_workers_at_once(workers: Workers) -> None:
    first, other = workers
    made = asking.send(first, "POST", "/api/v1/keys", body={"name": "new"}).json
    assert chat(other, made["secret"]) == 200
    headers = {"if-match": f'"{made["version"]}"'}
    assert asking.send(other, "DELETE", f"/api/v1/keys/{made['id']}", headers=headers).status == 200
    assert chat(first, made["secret"]) == 401


def test_the_streams_of_a_key_that_is_revoked_now_end_on_both_workers(tmp_path: Path) -> None:
    with running_workers(f"{ECHO}[console]\nenabled = false\n", tmp_path) as workers, ThreadPoolExecutor(3) as pool:
        first, other = workers
        keys = [
            asking.send(first, "POST", "/api/v1/keys", body={"name": name}).json["secret"] for name in ("out", "stays")
        ]
        streams = ((first, keys[0]), (other, keys[0]), (other, keys[1]))
        replies = [
            pool.submit(asking.ask, worker, "messages", "echo", LONG, stream=True, key=key) for worker, key in streams
        ]
        wait_until(lambda: [len(worker.app.gateway.running) for worker in workers] == [1, 2])
        asking.send(first, "DELETE", "/api/v1/keys/out?now=1")
        for reply in replies[:2]:
            assert b"The API key of this request was revoked." in reply.result(60).body
        wait_until(lambda: [len(worker.app.gateway.running) for worker in workers] == [0, 1])
        assert not replies[2].done()
        assert asking.send(first, "DELETE", "/api/v1/keys/stays?now=1").status == 200
        [newest] = asking.send(first, "GET", "/api/v1/audit?limit=1&action=keys.revoke&subject=" + find_id(first)).json[
            "audit"
        ]
        assert newest["detail"] == {"name": "out", "now": True}


def find_id(gateway: Running) -> str:
    keys = asking.send(gateway, "GET", "/api/v1/keys").json["keys"]
    return next(str(key["id"]) for key in keys if key["name"] == "out")


def test_an_edited_configuration_is_in_effect_on_both_workers_at_once(workers: Workers) -> None:
    first, other = workers
    shown = asking.send(first, "GET", "/api/v1/config/file")
    text = {"text": shown.json["text"] + AGAIN}
    written = asking.send(first, "PUT", "/api/v1/config/file", body=text, headers={"if-match": shown.headers["etag"]})
    assert written.status == 200, written.body
    for worker in (other, first):
        assert "parrot" in {model["id"] for model in asking.send(worker, "GET", "/v1/models").json["data"]}
