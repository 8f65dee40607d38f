"""What requests take of limits while they run, wait or end early, on every path that asks a model."""

import json
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from websockets.sync.client import ClientConnection, connect

from asking import CLIENTS, find_path, make_body, send
from e2e.limit_rig import LimitedRig, run_limited
from fakes.upstream import Answer, End, FakeUpstream, Gate
from rig import ONCE, PROTOCOLS
from scripting import write_error, write_reply
from scripting.replies import ScriptedReply, Text, Tokens
from waiting import wait_until
from wire_json import JsonObject

BUDGET = "[limits]\nusd_per_month = 10\ntokens_per_day = 1000000\nconcurrent = 10\nrequests_per_min = 100000\n"
TIGHT = "[limits]\nusd_per_month = 0.06\nwait_s = 60\n"  # room for one request of these tests
SPENT = "[limits]\nusd_per_month = 0\n"
WORDS = "word " * 200


class OpenRequest:
    """A request on a connection of its own, of which the client need not read anything."""

    def __init__(self, rig: LimitedRig, client: str, upstream: str = "", *, stream: bool = True) -> None:
        model = rig.model(upstream or client)
        self._connection = HTTPConnection("127.0.0.1", rig.port, timeout=60)
        headers = {"authorization": f"Bearer {rig.key}", "content-type": "application/json"}
        body = msgspec.json.encode(make_body(client, model, stream=stream))
        self._connection.request("POST", find_path(client, model, stream=stream), body, headers)

    def read(self) -> tuple[int, bytes]:
        answer = self._connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            self._connection.close()

    def read_some(self) -> None:
        assert self._connection.getresponse().read(1)

    def leave(self) -> None:
        self._connection.close()


@contextmanager
def held_back(rig: LimitedRig, upstream: str, count: int = 1) -> Iterator[threading.Event]:
    """Let the next replies of an upstream wait for an event, which is set at the end."""
    opened = threading.Event()
    held = write_reply(upstream, "Hello", gate=Gate(opened, at=-1))
    rig.play(upstream, *([held] * count), "Hello")
    try:
        yield opened
    finally:
        opened.set()


def make_directory(within: Path) -> Path:
    """Return a directory for the first of two gateways of a test."""
    directory = within / "first"
    directory.mkdir()
    return directory


def count_calls(fake: FakeUpstream) -> int:
    return len(fake.calls)


# Requests that are given up


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_leaves_gives_everything_back_and_has_one_row(client: str, tmp_path: Path) -> None:
    with run_limited(tmp_path, BUDGET, upstreams=(client,)) as rig:
        with held_back(rig, client):
            request = OpenRequest(rig, client)
            wait_until(lambda: count_calls(rig.fakes[client]))
            assert rig.level("all:concurrent").running == 1
            request.leave()
            rig.wait_until_settled()
        begun = write_reply(client, ScriptedReply((Text(WORDS),)), cut=300, gate=Gate(threading.Event(), at=1500))
        rig.play(client, begun)
        request = OpenRequest(rig, client)
        request.read_some()
        request.leave()
        rig.wait_until_settled()
        rows = rig.rows(2)
        assert [row.outcome for row in rows] == ["client_gone", "client_gone"]
        assert all(row.usage_source == "estimated" for row in rows)
        assert all((row.cost_nano_usd or 0) > 0 for row in rows)  # it was sent, and may be paid for
        assert rig.level("all:usd").spent == sum(row.cost_nano_usd or 0 for row in rows)


def abort_many(rig: LimitedRig, count: int) -> None:
    """Abort requests in every way, in turns: before the head, in the stream, parked, in the background."""
    fake = rig.fakes["chat"]
    never = threading.Event()
    held = write_reply("chat", "Hello", gate=Gate(never, at=-1))
    begun = write_reply("chat", ScriptedReply((Text(WORDS),)), cut=300, gate=Gate(never, at=1500))
    for number in range(count):
        fake.answers, before = [begun if number % 4 in (1, 2) else held], len(fake.calls)
        if number % 4 == 3:
            body = {"model": "chat/m", "input": "Hi", "background": True}
            id = send(rig, "POST", "/v1/responses", body, key=rig.key).json["id"]
            wait_until(lambda before=before: len(fake.calls) > before)  # type: ignore[misc]
            assert send(rig, "POST", f"/v1/responses/{id}/cancel", {}, key=rig.key).status == 200
            continue
        request = OpenRequest(rig, "chat", stream=number % 4 != 0)
        wait_until(lambda before=before: len(fake.calls) > before)  # type: ignore[misc]
        if number % 4 != 0:
            request.read_some()
        request.leave()
    rig.wait_until_settled()
    never.set()  # so that the upstream no longer waits


MANY = 10_000  # a multiple of 200
AMPLE = "[limits]\nusd_per_month = 1000\ntokens_per_day = 1000000000\nconcurrent = 10\nrequests_per_min = 1000000\n"


@pytest.mark.parametrize("count", [40, pytest.param(MANY * 4 // 5, marks=pytest.mark.rest)])
def test_aborted_requests_leave_nothing_reserved_and_one_row_each(count: int, tmp_path: Path) -> None:
    settings = ONCE + '[responses]\non_disconnect = "park"\npark_s = 0.05\n'
    with run_limited(tmp_path, AMPLE, settings, upstreams=("chat",)) as rig:
        for _ in range(count // 40):
            abort_many(rig, 40)
            rig.fakes["chat"].requests.clear()  # the upstream looks through all of them
        rig.wait_until_settled()
        rows = [row for row in rig.rows(count) if row.lease]
        assert len({row.lease for row in rows}) == count
        assert rig.level("all:usd").spent == sum(row.cost_nano_usd or 0 for row in rows)


# The line


def test_requests_wait_in_order_while_others_have_reserved_what_is_left(tmp_path: Path) -> None:
    with run_limited(tmp_path, TIGHT, upstreams=("chat",)) as rig:
        with held_back(rig, "chat"):
            first = OpenRequest(rig, "chat")
            wait_until(lambda: count_calls(rig.fakes["chat"]))
            others = []
            for number in range(3):
                others.append(OpenRequest(rig, "chat"))
                wait_until(lambda number=number: rig.limiter.waiting == number + 1)  # type: ignore[misc]
            assert count_calls(rig.fakes["chat"]) == 1
        assert [request.read()[0] for request in (first, *others)] == [200] * 4
        rig.wait_until_settled()
        assert rig.limiter.waiting == 0
        assert rig.level("all:usd").spent == sum(row.cost_nano_usd or 0 for row in rig.rows(4))


def test_what_never_waits_is_refused_at_once_behind_a_line(tmp_path: Path) -> None:
    with run_limited(tmp_path, TIGHT, upstreams=("chat",)) as rig:
        limits = {"spent": {"usd_per_month": 0}, "slow": {"requests_per_min": 1}}
        keys = {
            name: send(rig, "POST", "/api/v1/keys", {"name": name, "limits": limits[name]}).json["secret"]
            for name in limits
        }
        body = {"model": "chat/m", "messages": [{"role": "user", "content": "Hi"}]}
        path = "/v1/chat/completions"
        rig.play("chat", "Hello", stream=False)
        assert send(rig, "POST", path, body, key=keys["slow"]).status == 200
        rig.wait_until_settled()
        with held_back(rig, "chat"):
            first = OpenRequest(rig, "chat")
            wait_until(lambda: rig.level("all:usd").reserved)
            second = OpenRequest(rig, "chat")
            wait_until(lambda: rig.limiter.waiting == 1)
            assert send(rig, "POST", path, body, key=keys["spent"]).status == 402
            assert send(rig, "POST", path, body, key=keys["slow"]).status == 429
            assert rig.limiter.waiting == 1
        assert [request.read()[0] for request in (first, second)] == [200, 200]
        rig.wait_until_settled()


@pytest.mark.parametrize("count", [1, pytest.param(MANY // 5, marks=pytest.mark.rest)])
def test_clients_that_leave_the_line_take_nothing(count: int, tmp_path: Path) -> None:
    with run_limited(tmp_path, TIGHT, upstreams=("chat",)) as rig:
        with held_back(rig, "chat"):
            first = OpenRequest(rig, "chat")
            wait_until(lambda: count_calls(rig.fakes["chat"]))
            for _ in range(count):
                waiting = OpenRequest(rig, "chat")
                wait_until(lambda: rig.limiter.waiting == 1)
                waiting.leave()
                wait_until(lambda: rig.limiter.waiting == 0)
        assert first.read()[0] == 200
        rig.wait_until_settled()
        gone = [row for row in rig.rows(count + 1) if row.outcome == "client_gone"]
        assert [(row.lease, row.cost_nano_usd) for row in gone] == [("", None)] * count


def test_a_request_that_waits_in_vain_is_refused_for_now(tmp_path: Path) -> None:
    with run_limited(tmp_path, TIGHT.replace("60\n", "0.05\n"), upstreams=("chat",)) as rig, held_back(rig, "chat"):
        first = OpenRequest(rig, "chat")
        wait_until(lambda: count_calls(rig.fakes["chat"]))
        reply = rig.ask_limited("chat")
        assert (reply.status, reply.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 15 <= int(reply.headers["retry-after"]) <= 60
        assert "have reserved" in reply.json["error"]["message"]
        first.leave()


def test_all_leave_the_line_when_the_limit_is_spent(tmp_path: Path) -> None:
    with run_limited(tmp_path, TIGHT, upstreams=("chat",)) as rig:
        dear = ScriptedReply((Text("Hello"),), tokens=Tokens(100_000, 100))
        opened = threading.Event()
        rig.play("chat", write_reply("chat", dear, gate=Gate(opened, at=-1)))
        first = OpenRequest(rig, "chat")
        wait_until(lambda: count_calls(rig.fakes["chat"]))
        others = [OpenRequest(rig, "chat") for _ in range(5)]
        wait_until(lambda: rig.limiter.waiting == 5)
        opened.set()
        assert [request.read()[0] for request in (first, *others)] == [200] + [402] * 5
        assert count_calls(rig.fakes["chat"]) == 1


def test_slots_are_counted_while_requests_run(tmp_path: Path) -> None:
    limits = "[limits.key]\nconcurrent = 1\n"
    with run_limited(tmp_path, limits, upstreams=("chat",)) as rig:
        with held_back(rig, "chat"):
            first = OpenRequest(rig, "chat")
            wait_until(lambda: count_calls(rig.fakes["chat"]))
            reply = rig.ask_limited("chat")
            assert (reply.status, "concurrent = 1" in reply.json["error"]["message"]) == (429, True)
            assert 1 <= int(reply.headers["retry-after"]) <= 5
        assert first.read()[0] == 200
        rig.wait_until_settled()
        assert rig.ask_limited("chat", stream=True).status == 200


@pytest.mark.parametrize(
    ("client", "upstream"), [("messages", "messages"), ("chat", "messages"), ("gemini", "gemini"), ("chat", "gemini")]
)
def test_what_is_reserved_rises_to_the_input_that_the_upstream_reports(
    client: str, upstream: str, tmp_path: Path
) -> None:
    begun = {"content": {"role": "model", "parts": [{"text": "Hello"}]}, "index": 0}
    chunk = {"candidates": [begun], "usageMetadata": {"promptTokenCount": 300_000}, "modelVersion": "m"}
    ended = {**chunk, "candidates": [{**begun, "finishReason": "STOP"}]}
    frames = b"".join(b"data: " + msgspec.json.encode(one) + b"\r\n\r\n" for one in (chunk, ended))
    gate = Gate(threading.Event(), at=len(frames) // 2 if upstream == "gemini" else 1500)
    answer = Answer(frames, gate=gate, cut=10)
    if upstream != "gemini":
        words = ScriptedReply((Text(WORDS),), tokens=Tokens(300_000, 100))
        answer = write_reply(upstream, words, cut=300, gate=gate)
    with run_limited(tmp_path, BUDGET, upstreams=(upstream,)) as rig:
        rig.play(upstream, answer)
        request = OpenRequest(rig, client, upstream)
        request.read_some()
        wait_until(lambda: rig.level("all:usd").reserved >= 300_000 * 1000)
        gate.opened.set()
        request.leave()
        rig.wait_until_settled()


# WebSockets, background responses, compaction


@contextmanager
def open_socket(rig: LimitedRig) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{rig.port}/v1/responses"
    headers = {"authorization": f"Bearer {rig.key}"}
    with connect(url, additional_headers=headers, open_timeout=60, close_timeout=1) as opened:
        yield opened


def run_turn(opened: ClientConnection) -> JsonObject:
    opened.send(json.dumps({"type": "response.create", "model": "chat/m", "input": "Hi", "store": False}))
    while True:
        event: JsonObject = json.loads(opened.recv(timeout=60))
        if event["type"] in ("response.completed", "response.failed", "error"):
            return event


def test_a_turn_of_a_websocket_is_refused_in_its_error_frame(tmp_path: Path) -> None:
    with run_limited(tmp_path, SPENT, upstreams=("chat",)) as rig, open_socket(rig) as opened:
        event = run_turn(opened)
        assert (event["type"], event["status"], event["error"]["code"]) == ("error", 429, "insufficient_quota")
        assert event["headers"]["x-should-retry"] == "false"


def test_each_turn_of_a_websocket_is_admitted_and_settled(tmp_path: Path) -> None:
    limits = BUDGET.replace("requests_per_min = 100000", "requests_per_min = 2")
    with run_limited(tmp_path, limits, upstreams=("chat",)) as rig, open_socket(rig) as opened:
        rig.play("chat", "Hello")
        assert [run_turn(opened)["type"] for _ in range(3)] == ["response.completed", "response.completed", "error"]
        rig.wait_until_settled()
        assert rig.level("all:usd").spent == sum(row.cost_nano_usd or 0 for row in rig.rows(3)) > 0


def wait_for_end(rig: LimitedRig, id: str) -> JsonObject:
    found: JsonObject = {}

    def has_ended() -> bool:
        found.update(send(rig, "GET", f"/v1/responses/{id}", key=rig.key).json)
        return found["status"] not in ("queued", "in_progress")

    wait_until(has_ended)
    return found


def test_a_background_response_is_refused_as_any_request_and_takes_nothing_before_it_runs(tmp_path: Path) -> None:
    body = {"model": "chat/m", "input": "Hi", "background": True}
    with run_limited(make_directory(tmp_path), SPENT, upstreams=("chat",)) as rig:
        reply = send(rig, "POST", "/v1/responses", body, key=rig.key)
        assert (reply.status, reply.json["error"]["code"]) == (429, "insufficient_quota")
    limits = "[limits.key]\nrequests_per_min = 2\nusd_per_day = 1\n"
    with run_limited(tmp_path, limits, upstreams=("chat",)) as rig:
        rig.play("chat", "Hello", stream=False)
        ids = [send(rig, "POST", "/v1/responses", body, key=rig.key).json["id"] for _ in range(1)]
        assert [wait_for_end(rig, id)["status"] for id in ids] == ["completed"]
        rig.wait_until_settled()
        assert rig.ask_limited("chat").status == 200  # its POST and its run have taken one request
        assert rig.ask_limited("chat").status == 429
        assert len([row for row in rig.rows(3) if row.lease]) == 2


def test_a_background_response_ends_failed_when_its_limit_is_spent_meanwhile(tmp_path: Path) -> None:
    body = {"model": "chat/m", "input": "Hi", "background": True}
    limits = "[limits.key]\nusd_per_month = 0.06\nwait_s = 60\n"
    with run_limited(tmp_path, limits.replace("wait_s = 60\n", ""), upstreams=("chat",)) as rig:
        dear = ScriptedReply((Text("Hello"),), tokens=Tokens(100_000, 100))
        opened = threading.Event()
        rig.play("chat", write_reply("chat", dear, gate=Gate(opened, at=-1)))
        first = OpenRequest(rig, "chat")
        wait_until(lambda: count_calls(rig.fakes["chat"]))
        id = send(rig, "POST", "/v1/responses", body, key=rig.key).json["id"]
        wait_until(lambda: rig.limiter.waiting == 1)
        opened.set()
        assert first.read()[0] == 200
        ended = wait_for_end(rig, id)
        assert (ended["status"], ended["error"]["code"]) == ("failed", "insufficient_quota")
        assert count_calls(rig.fakes["chat"]) == 1


@pytest.mark.parametrize(("edited", "status"), [("usd_per_month = 6\n", 200), ("", 200), ("usd_per_month = 0\n", 402)])
def test_an_edited_limit_is_in_force_for_those_who_wait(edited: str, status: int, tmp_path: Path) -> None:
    with run_limited(tmp_path, "[limits.key]\nusd_per_month = 0.06\n", upstreams=("chat",)) as rig:
        with held_back(rig, "chat") as opened:
            first = OpenRequest(rig, "chat")
            wait_until(lambda: count_calls(rig.fakes["chat"]))
            second = OpenRequest(rig, "chat")
            wait_until(lambda: rig.limiter.waiting == 1)
            file = tmp_path / "dragoman.toml"
            file.write_text(file.read_text().replace("usd_per_month = 0.06\n", edited))
            rig.gateway.loop.call_soon_threadsafe(rig.gateway.app.reload)
            assert second.read()[0] == status
            assert not opened.is_set()
        assert first.read()[0] == 200


def test_a_background_response_that_waits_for_a_limit_is_queued(tmp_path: Path) -> None:
    body = {"model": "chat/m", "input": "Hi", "background": True}
    with run_limited(tmp_path, "[limits.key]\nusd_per_month = 0.06\n", upstreams=("chat",)) as rig:
        with held_back(rig, "chat"):
            first = OpenRequest(rig, "chat")
            wait_until(lambda: count_calls(rig.fakes["chat"]))
            id = send(rig, "POST", "/v1/responses", body, key=rig.key).json["id"]
            wait_until(lambda: rig.limiter.waiting == 1)

            def read_status() -> str:
                return str(send(rig, "GET", f"/v1/responses/{id}", key=rig.key).json["status"])

            wait_until(lambda: read_status() == "queued")
            assert rig.limiter.waiting == 1
        assert first.read()[0] == 200
        wait_until(lambda: count_calls(rig.fakes["chat"]) == 2)
        assert wait_for_end(rig, id)["status"] == "completed"


@pytest.mark.parametrize("limit", ["usd_per_month", "concurrent"])
def test_a_response_that_its_upstream_would_run_in_the_background_is_run_here(limit: str, tmp_path: Path) -> None:
    limits = f"[limits.key]\n{limit} = 5\n"
    with run_limited(tmp_path, limits, upstreams=("openai",)) as rig:
        fake = rig.play("openai", "Hello", stream=False)
        body = {"model": "openai/vendor-model", "input": "Hi", "background": True}
        id = send(rig, "POST", "/v1/responses", body, key=rig.key).json["id"]
        assert wait_for_end(rig, id)["status"] == "completed"
        [call] = fake.calls
        assert not call.json.get("background")
        assert limit == "concurrent" or rig.level("key:").spent > 0


def test_compactions_are_admitted_and_counted_once(tmp_path: Path) -> None:
    with run_limited(tmp_path, BUDGET, upstreams=("chat",)) as rig:
        rig.play("chat", "A summary.", stream=False)
        body = {"model": "chat/m", "input": "I am Ada."}
        reply = send(rig, "POST", "/v1/responses/compact", body, key=rig.key)
        assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, "99999")
        rig.wait_until_settled()
        [row] = rig.rows(1)
        assert row.lease
        assert rig.level("all:usd").spent == row.cost_nano_usd > 0  # type: ignore[operator]


# Targets: prices and limits of providers


def test_a_target_whose_provider_is_spent_is_left_out(tmp_path: Path) -> None:
    limits = '[[limits.providers]]\nnames = ["chat"]\nusd_per_month = 0\n'
    models = '[[models]]\nname = "both"\nto = ["chat/m", "messages/m"]\n'
    with run_limited(tmp_path, limits + models, upstreams=("chat", "messages")) as rig:
        rig.play("messages", "Hello", stream=False)
        body = {"model": "both", "messages": [{"role": "user", "content": "Hi"}]}
        reply = send(rig, "POST", "/v1/chat/completions", body, key=rig.key)
        assert (reply.status, reply.headers["x-dragoman-route"]) == (200, "messages/m")
        background = {"model": "both", "input": "Hi", "background": True}
        accepted = send(rig, "POST", "/v1/responses", background, key=rig.key)
        assert accepted.status == 200, accepted.body
        assert wait_for_end(rig, accepted.json["id"])["status"] == "completed"
        assert rig.calls("chat") == []
        refused = rig.ask_limited("chat", "chat")
        assert (refused.status, 'the provider "chat"' in refused.json["error"]["message"]) == (402, True)


def test_the_part_of_a_lease_that_a_provider_counts_moves_with_its_target(tmp_path: Path) -> None:
    limits = '[limits]\nusd_per_day = 5\n[[limits.providers]]\nnames = ["chat"]\nusd_per_month = 5\nconcurrent = 3\n'
    limits += '[[limits.providers]]\nnames = ["messages"]\nusd_per_month = 5\nconcurrent = 3\n'
    models = '[[models]]\nname = "both"\nto = ["chat/m", "messages/m"]\n'
    with run_limited(tmp_path, limits + models, upstreams=("chat", "messages")) as rig:
        rig.play("chat", write_error(500, "broken"))
        rig.play("messages", "Hello", stream=False)
        body = {"model": "both", "messages": [{"role": "user", "content": "Hi"}]}
        assert send(rig, "POST", "/v1/chat/completions", body, key=rig.key).status == 200
        rig.wait_until_settled()
        [row] = rig.rows(1)
        spent = {counter: level.spent for counter, level in rig.levels().items() if ":usd:" in counter}
        assert {counter.rpartition(":usd:")[0]: amount for counter, amount in spent.items()} == {
            "all": row.cost_nano_usd,
            "provider:chat": 0,
            "provider:messages": row.cost_nano_usd,
        }


def test_a_provider_that_is_full_is_passed_over_in_mid_request(tmp_path: Path) -> None:
    limits = '[[limits.providers]]\nnames = ["messages"]\nusd_per_month = 0\n'
    models = '[[models]]\nname = "both"\nto = ["chat/m", "messages/m"]\n'
    with run_limited(tmp_path, limits + models, upstreams=("chat", "messages")) as rig:
        rig.play("chat", write_error(500, "broken"))
        body = {"model": "both", "messages": [{"role": "user", "content": "Hi"}]}
        reply = send(rig, "POST", "/v1/chat/completions", body, key=rig.key)
        assert reply.status == 500  # the first target's failure, after which a retry may help
        assert rig.calls("messages") == []


UNPRICED = '[limits.key]\nusd_per_month = 5\n[[prices]]\nmodel = "messages/*"\ninput = 0\noutput = 0\n'


def test_under_a_limit_in_dollars_a_model_without_a_price_is_left_out(tmp_path: Path) -> None:
    with run_limited(tmp_path, UNPRICED, upstreams=("chat", "messages"), prices="") as rig:
        fake = rig.play("chat", "Hello", stream=False)
        for client in PROTOCOLS:
            reply = rig.ask_limited(client, "chat")
            assert (reply.status, reply.headers["x-should-retry"]) == (404, "false"), client
            assert "[[prices]]" in reply.json["error"]["message"]
            pasted = reply.json["error"]["message"].partition("as in:\n")[2]
            assert pasted.startswith('[[prices]]\nmodel = "chat/vendor-model"\ninput = ')
            with pytest.raises(tomllib.TOMLDecodeError):  # a price is to be chosen, and 0 is one
                tomllib.loads(pasted)
        assert fake.calls == []
        rig.play("messages", "Hello", stream=False)
        assert rig.ask_limited("messages").status == 200  # 0 is a price
        assert rig.ask("chat", "chat").status == 200  # the environment's key is not under it


IMAGES = 'paths = ["images/generations"]\n'


def test_images_are_left_out_unless_a_request_has_a_price(tmp_path: Path) -> None:
    limits, body = "[limits.key]\nusd_per_month = 5\n", {"model": "chat/paint", "prompt": "x"}
    image = Answer(b'{"created":1,"data":[{"b64_json":"AA"}]}', content_type="application/json")
    with run_limited(make_directory(tmp_path), limits, upstreams=("chat",), options={"chat": IMAGES}) as rig:
        rig.play("chat", image)
        reply = send(rig, "POST", "/v1/images/generations", body, key=rig.key)
        assert (reply.status, reply.headers["x-should-retry"]) == (404, "false")
        assert "request = " in reply.json["error"]["message"]
    priced = limits + '[[prices]]\nmodel = "chat/paint"\ninput = 0\noutput = 0\nrequest = 0.04\n'
    with run_limited(tmp_path, priced, upstreams=("chat",), options={"chat": IMAGES}) as rig:
        rig.play("chat", image)
        assert send(rig, "POST", "/v1/images/generations", body, key=rig.key).status == 200
        rig.wait_until_settled()
        [row] = rig.rows(1)[-1:]
        assert row.cost_nano_usd == 40_000_000
        assert rig.level("key:").spent == 40_000_000


def test_a_successful_reply_without_any_usage_is_charged_what_it_has_reserved(tmp_path: Path) -> None:
    limits, body = "[limits.key]\nusd_per_month = 5\n", {"model": "chat/m", "input": "x"}
    with run_limited(tmp_path, limits, upstreams=("chat",), options={"chat": 'paths = ["embeddings"]\n'}) as rig:
        rig.play("chat", Answer(b'{"data":[]}', content_type="application/json"))
        assert send(rig, "POST", "/v1/embeddings", body, key=rig.key).status == 200
        rig.wait_until_settled()
        [row] = rig.rows(1)
        assert rig.level("key:").spent == row.cost_nano_usd
        assert (row.cost_nano_usd or 0) > 0
        assert row.usage_source == "estimated"


def test_a_request_that_timed_out_at_one_target_is_charged_its_input_there(tmp_path: Path) -> None:
    limits = '[limits]\nusd_per_day = 5\n[[models]]\nname = "both"\nto = ["chat/m", "messages/m"]\n'
    options = {"chat": "first_token_timeout_s = 0.2\n"}
    with run_limited(tmp_path, limits, upstreams=("chat", "messages"), options=options) as rig:
        rig.play("chat", Answer(end=End.HANG))
        rig.play("messages", "Hello", stream=False)
        body = {"model": "both", "messages": [{"role": "user", "content": "Hi " * 1000}]}
        assert send(rig, "POST", "/v1/chat/completions", body, key=rig.key).status == 200
        rig.wait_until_settled()
        [row] = rig.rows(1)
        assert (row.outcome, row.usage_source) == ("ok", "estimated")
        assert (row.input_tokens or 0) > 700
        assert rig.level("all:usd").spent == row.cost_nano_usd
