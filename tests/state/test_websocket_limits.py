"""What ends a WebSocket, and what one client can cost: time, silence, memory, and a gateway that stops."""

import json
import resource
import socket as sockets
import threading
import time
from contextlib import ExitStack, suppress

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Ping, Request, TextMessage

from dragoman.net.limits import connections_within
from dragoman.server.responses import SOCKET_SHARE, ResponsesApi
from e2e.test_stalled_readers import split, wait_until_quiet
from fakes.upstream import Answer, End, Gate
from rig import ONCE
from scripting import write_reply
from state.socket_rig import ASK, error, events, receive, response, run, socket
from state.state_rig import AGAIN, HELLO, StateRig, endless, state_rigged
from waiting import wait_until
from wire_json import JsonObject


def close_code(opened: ClientConnection) -> int | None:
    """Read to the end of the connection; return the code that it was closed with."""
    with suppress(ConnectionClosed):
        while True:
            opened.recv(timeout=60)
    return opened.close_code


class DeafClient:
    """A client that answers no ping, and may not read at all."""

    def __init__(self, rig: StateRig) -> None:
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._sock = sockets.create_connection(("127.0.0.1", rig.gateway.port), timeout=60)
        key = f"Bearer {rig.gateway.keys['alice']}".encode()
        host = f"127.0.0.1:{rig.gateway.port}"
        opening = Request(host=host, target="/v1/responses", extra_headers=[(b"authorization", key)])
        self._sock.sendall(self._frames.send(opening))

    def read(self) -> list[Event]:
        """Return everything up to the end of the connection."""
        found: list[Event] = []
        with self._sock:
            while data := self._sock.recv(65536):
                self._frames.receive_data(data)
                found += self._frames.events()
        return found

    def send_until_stuck(self, message: str) -> int:
        """Send the same message until the gateway takes no more of them; return how many bytes it took."""
        self._frames.receive_data(self._sock.recv(65536))
        assert [type(event) for event in self._frames.events()] == [AcceptConnection]
        self._sock.settimeout(2.0)
        taken = 0
        with self._sock, suppress(TimeoutError, ConnectionError):
            while True:
                self._sock.sendall(self._frames.send(TextMessage(message)))
                taken += len(message)
        return taken


def test_a_client_that_answers_no_ping_is_disconnected(tmp_path_factory: pytest.TempPathFactory) -> None:
    times = "[responses]\nsocket_ping_s = 0.1\nsocket_silence_s = 0.8\n"
    with state_rigged(tmp_path_factory.mktemp("deaf"), times) as rig:
        accepted, *pings, closed = DeafClient(rig).read()
        assert isinstance(accepted, AcceptConnection)
        assert pings
        assert all(isinstance(ping, Ping) for ping in pings)
        assert isinstance(closed, CloseConnection)
        assert (closed.code, closed.reason) == (1001, "nothing received from the client for 0.8 s")


@pytest.mark.rest
def test_a_client_that_answers_pings_stays_connected(tmp_path_factory: pytest.TempPathFactory) -> None:
    times = "[responses]\nsocket_ping_s = 0.2\nsocket_silence_s = 2.5\n"
    with state_rigged(tmp_path_factory.mktemp("alive"), times) as rig, socket(rig) as opened:
        rig.play("chat", HELLO, stream=True)
        time.sleep(3.5)
        assert run(opened)[-1]["type"] == "response.completed"


def test_a_connection_ends_after_its_time_with_an_error_that_makes_clients_return(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    times = "[responses]\nsocket_max_s = 0.6\n"
    with state_rigged(tmp_path_factory.mktemp("old"), times) as rig, socket(rig) as opened:
        refused = receive(opened)
        assert (refused["type"], refused["status"]) == ("error", 400)
        assert error([refused])["code"] == "websocket_connection_limit_reached"
        assert error([refused])["message"] == (
            "Responses websocket connection limit reached (0.01 minutes). "
            "Create a new websocket connection to continue."
        )
        assert close_code(opened) == 1001


def test_a_connection_that_is_too_old_lets_its_responses_end_and_takes_no_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with state_rigged(tmp_path_factory.mktemp("late")) as rig, socket(rig) as opened:
        is_old = threading.Event()
        end = write_reply("chat", HELLO).body.index(b'"stop"')
        rig.play("chat", write_reply("chat", HELLO, cut=200, gate=Gate(is_old, at=end)))
        opened.send(json.dumps(ASK))
        opened.send(json.dumps({**ASK, "stream_id": "other"}))
        wait_until(lambda: len(rig.calls("chat")) == 2)
        assert isinstance(rig.gateway.app.site.responses, ResponsesApi)
        [served] = rig.gateway.app.site.responses._sockets
        served._ends_at = 0.0
        refused = run(opened, stream_id="later")[-1]
        assert (refused["status"], refused["stream_id"]) == (400, "later")
        assert error([refused])["code"] == "websocket_connection_limit_reached"
        is_old.set()
        rest: list[JsonObject] = []
        with suppress(ConnectionClosed):
            while True:
                rest.append(receive(opened))
        assert [event["type"] for event in rest].count("response.completed") == len(rig.calls("chat")) == 2
        assert error(rest)["code"] == "websocket_connection_limit_reached"
        assert "stream_id" not in rest[-1]
        assert opened.close_code == 1001


def test_an_idle_connection_does_not_delay_a_gateway_that_stops(tmp_path_factory: pytest.TempPathFactory) -> None:
    with state_rigged(tmp_path_factory.mktemp("idle"), "[server]\ndrain_s = 300\n") as rig, socket(rig) as opened:
        stopped = rig.gateway.stop_soon()
        assert close_code(opened) == 1012
        stopped.result(timeout=60)


def test_a_gateway_that_stops_lets_responses_end_first(tmp_path_factory: pytest.TempPathFactory) -> None:
    with state_rigged(tmp_path_factory.mktemp("busy"), "[server]\ndrain_s = 300\n") as rig, socket(rig) as opened:
        is_stopping = threading.Event()
        end = write_reply("chat", HELLO).body.index(b'"stop"')
        rig.play("chat", write_reply("chat", HELLO, cut=200, gate=Gate(is_stopping, at=end)))
        opened.send(json.dumps(ASK))
        assert receive(opened)["type"] == "response.created"
        stopped = rig.gateway.stop_soon()
        is_stopping.set()
        assert events(opened)[-1]["type"] == "response.completed"
        assert close_code(opened) == 1012
        stopped.result(timeout=60)


def test_a_response_that_outlasts_the_grace_period_is_cut_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    with state_rigged(tmp_path_factory.mktemp("cut"), "[server]\ndrain_s = 0\n") as rig, socket(rig) as opened:
        rig.play("chat", endless())
        opened.send(json.dumps(ASK))
        assert receive(opened)["type"] == "response.created"
        rig.gateway.stop_soon()
        assert close_code(opened) == 1012


def test_a_client_that_does_not_read_holds_up_its_upstream(rig: StateRig) -> None:
    opening, again = split("chat")
    rig.fakes["chat"].answers = [Answer(again, floods=True, opening=opening)]
    with socket(rig) as opened:
        opened.send(json.dumps(ASK))
        receive(opened)
        wait_until_quiet(lambda: rig.fakes["chat"].sent)
    wait_until(lambda: bool(rig.fakes["chat"].closed))


def test_little_is_read_from_a_client_that_does_not_read(rig: StateRig) -> None:
    echoed = json.dumps({"type": "response.steer", "input": "x" * 100_000})
    assert DeafClient(rig).send_until_stuck(echoed) < 64 * 1024 * 1024


def test_a_connection_has_a_bounded_number_of_requests(rig: StateRig) -> None:
    rig.fakes["chat"].answers = [Answer(headless=True, end=End.HANG)]
    with socket(rig) as opened:
        for _ in range(65):
            opened.send(json.dumps(ASK))
        refused = receive(opened)
        assert (refused["status"], error([refused])["code"]) == (429, "rate_limit_exceeded")
        assert refused["headers"]["retry-after"] == "1"


def test_a_key_has_a_bounded_number_of_connections_and_others_have_their_own(rig: StateRig) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, allowed[1]))
    try:
        most = int(connections_within(512) * SOCKET_SHARE)
        with ExitStack() as stack:
            opened = [stack.enter_context(socket(rig)) for _ in range(most)]
            with pytest.raises(InvalidStatus) as refused, socket(rig):
                pass
            assert refused.value.response.status_code == 426
            assert b"a quarter of all connections" in (refused.value.response.body or b"")
            stack.enter_context(socket(rig, "bob"))
            opened[0].close()
            wait_until(lambda: can_open(rig))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)


def can_open(rig: StateRig) -> bool:
    with suppress(InvalidStatus), socket(rig):
        return True
    return False


def test_a_message_that_is_too_large_ends_the_connection(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = f"{ONCE}[server]\nmax_body_mb = 1\n"
    with state_rigged(tmp_path_factory.mktemp("large"), settings) as rig, socket(rig) as opened:
        with suppress(ConnectionClosed):
            opened.send(json.dumps({**ASK, "input": "x" * 2_000_000}))
        assert close_code(opened) == 1009


def test_messages_that_are_not_text_end_the_connection(rig: StateRig) -> None:
    with socket(rig) as opened:
        opened.send(b"{}")
        assert close_code(opened) == 1003


def test_compression_is_declined(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    with socket(rig) as opened:
        assert opened.request is not None
        assert opened.response is not None
        assert "permessage-deflate" in opened.request.headers["sec-websocket-extensions"]
        assert "sec-websocket-extensions" not in opened.response.headers
        assert response(run(opened))["status"] == "completed"
