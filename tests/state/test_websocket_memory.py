"""What a WebSocket holds counts in the one memory budget, and is free as soon as the connection is closed."""

import gc
import json
import socket as sockets
import struct
from collections.abc import Iterator

import pytest
from websockets.sync.client import ClientConnection

from dragoman.net.http_request import HttpRequest
from dragoman.net.socket_sink import SocketSink
from dragoman.net.websocket import SocketMessage, WebSocket
from dragoman.proxy.call import Call
from dragoman.server.lane_requests import LaneRequests
from dragoman.server.lane_sink import LaneSink
from dragoman.server.routes import RoutedRequest
from dragoman.server.socket_messages import QueuedRequest, SocketReplies
from dragoman.server.websocket import ResponsesSocket
from dragoman.state.socket_memory import HeldRequest, Remembered, SocketMemory
from dragoman.state.stored_call import StoredCall
from fakes.upstream import Answer, End
from rig import ONCE
from state.socket_rig import ASK, error, events, receive, response, run, socket
from state.state_rig import AGAIN, HELLO, StateRig, endless, state_rigged
from waiting import wait_until
from wire_json import JsonObject

SMALL = f"{ONCE}[server]\nmax_buffered_mb = 8\n[console]\nenabled = false\n"
MB = 1024 * 1024


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    """A gateway that may hold 8 MB for all its clients."""
    with state_rigged(tmp_path_factory.mktemp("small"), SMALL) as rig:
        yield rig


def count_held_bytes(rig: StateRig) -> int:
    return rig.gateway.app._budget.held


def warm(opened: ClientConnection, size: int, **fields: object) -> list[JsonObject]:
    """Send a context of this size that no model answers."""
    return run(opened, generate=False, input=[{"role": "user", "content": "z" * size}], **fields)


def check_refused(found: list[JsonObject]) -> None:
    assert (found[-1]["status"], error(found)["code"]) == (503, "server_is_overloaded")
    assert found[-1]["headers"] == {"retry-after": "1"}
    assert "server.max_buffered_mb" in str(error(found)["message"])


def test_a_message_without_room_gets_an_error_and_the_connection_stays(small: StateRig) -> None:
    small.play("chat", HELLO, stream=True)
    with socket(small) as opened:
        check_refused(warm(opened, 9 * MB))
        assert run(opened)[-1]["type"] == "response.completed"
    wait_until(lambda: count_held_bytes(small) == 0)


def test_lanes_share_the_budget_of_all_requests(small: StateRig) -> None:
    with socket(small) as opened:
        answers = [warm(opened, MB, stream_id=f"lane-{number}") for number in range(32)]
        kept = [found for found in answers if found[-1]["type"] == "response.completed"]
        assert 6 <= len(kept) <= 8
        for found in answers[len(kept) :]:
            check_refused(found)
        small.play("chat", *[HELLO] * len(kept), stream=True)
        for found in kept:
            continued = run(opened, previous_response_id=response(found)["id"], stream_id=found[-1]["stream_id"])
            assert continued[-1]["type"] == "response.completed"
    wait_until(lambda: count_held_bytes(small) == 0)


def test_a_chain_that_outgrows_the_budget_is_refused(small: StateRig) -> None:
    """As a client without a model call would fill the memory."""
    with socket(small) as opened:
        found, count = warm(opened, MB), 1
        while found[-1]["type"] == "response.completed":
            count += 1
            assert count < 20
            found = warm(opened, MB, previous_response_id=response(found)["id"])
        check_refused(found)
        assert 6 <= count <= 9
        assert count_held_bytes(small) <= 8 * MB
    wait_until(lambda: count_held_bytes(small) == 0)


def test_a_lane_that_starts_anew_holds_its_newest_context_alone(small: StateRig) -> None:
    with socket(small) as opened:
        for _ in range(20):
            assert warm(opened, MB)[-1]["type"] == "response.completed"
        assert count_held_bytes(small) < 2 * MB
    wait_until(lambda: count_held_bytes(small) == 0)


def test_a_response_without_room_is_answered_but_not_remembered(small: StateRig) -> None:
    small.play("chat", HELLO, HELLO, stream=True)
    with socket(small) as opened, socket(small) as other:
        first = response(warm(opened, 3 * MB))
        assert warm(other, 4 * MB)[-1]["type"] == "response.completed"
        fork = run(opened, previous_response_id=first["id"], stream_id="fork")  # counts its context again
        assert fork[-1]["type"] == "response.completed"
        lost = run(opened, previous_response_id=response(fork)["id"], stream_id="fork")
        assert error(lost)["code"] == "previous_response_not_found"
        assert run(opened, previous_response_id=first["id"])[-1]["type"] == "response.completed"
    wait_until(lambda: count_held_bytes(small) == 0)


def test_a_post_is_refused_while_a_connection_holds_the_budget(small: StateRig) -> None:
    body = {"model": "chat/m", "input": "x" * 5 * MB, "store": False}
    with socket(small) as opened:
        assert warm(opened, 5 * MB)[-1]["type"] == "response.completed"
        assert small.http("POST", "/responses", body=body).status == 503
    wait_until(lambda: count_held_bytes(small) == 0)
    small.play("chat", HELLO)
    assert small.http("POST", "/responses", body=body).status == 200


KINDS: tuple[type, ...] = (
    *(Call, HeldRequest, HttpRequest, StoredCall, LaneSink, SocketMessage, QueuedRequest, Remembered, SocketSink),
    *(LaneRequests, ResponsesSocket, RoutedRequest, SocketMemory, SocketReplies, WebSocket),
)


def find_left() -> list[object]:
    return [item for item in gc.get_objects() if type(item) in KINDS]


def answer_and_refuse(rig: StateRig, opened: ClientConnection) -> None:
    rig.play("chat", HELLO, AGAIN, AGAIN, stream=True)
    first = response(run(opened))
    assert run(opened, previous_response_id=first["id"])[-1]["type"] == "response.completed"
    assert run(opened, stream_id="lane", store=True)[-1]["type"] == "response.completed"
    assert warm(opened, 1000, stream_id="warm")[-1]["type"] == "response.completed"
    for wrong in ({"type": "strange"}, {"previous_response_id": "resp_x"}, {"input": 7}, {"stream_id": "!"}):
        assert run(opened, **wrong)[-1]["type"] == "error"
    opened.send("{")
    assert receive(opened)["type"] == "error"
    assert warm(opened, 9 * MB)[-1]["status"] == 503


def fail_upstream(rig: StateRig, opened: ClientConnection) -> None:
    rig.play("chat", Answer(b'{"error":{"message":"no"}}', status=500, content_type="application/json"))
    assert run(opened)[-1]["type"] == "error"
    rig.play("chat", Answer(endless().body, end=End.CUT))
    assert run(opened)[-1]["type"] == "response.failed"


def leave_in_mid_stream(rig: StateRig, opened: ClientConnection) -> None:
    rig.play("chat", *[endless()] * 3)
    for number in range(3):
        opened.send(json.dumps({**ASK, "stream_id": f"lane-{number}", "store": number == 1}))
    for _ in range(2):
        opened.send(json.dumps({**ASK, "stream_id": "lane-0"}))  # they wait
    assert receive(opened)["type"] == "response.created"
    wait_until(lambda: len(rig.calls("chat")) == 3)


def reset(rig: StateRig, opened: ClientConnection) -> None:
    leave_in_mid_stream(rig, opened)
    opened.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    opened.socket.close()


def break_protocol(rig: StateRig, opened: ClientConnection) -> None:
    leave_in_mid_stream(rig, opened)
    opened.socket.sendall(b"\x81\x01x")


ENDINGS = (answer_and_refuse, fail_upstream, leave_in_mid_stream, reset, break_protocol)


def test_a_closed_connection_leaves_nothing_for_the_collector(small: StateRig) -> None:
    gc.collect()
    gc.disable()
    try:
        known = {id(item) for item in find_left()}
        for end in ENDINGS:
            with socket(small) as opened:
                end(small, opened)
            left: list[object] = []

            def is_empty(left: list[object] = left) -> bool:
                left[:] = [type(item).__name__ for item in find_left() if id(item) not in known]
                return not left

            try:
                wait_until(is_empty, 10)
            except AssertionError:
                raise AssertionError(f"{end.__name__} leaves {left}") from None
            assert count_held_bytes(small) == 0
    finally:
        gc.enable()


def test_events_are_sent_whatever_bytes_the_upstream_wrote(small: StateRig) -> None:
    """A text frame must be UTF-8."""
    small.play("chat", HELLO, stream=True)
    with socket(small) as opened:
        opened.send(json.dumps({**ASK, "input": "Grüße", "metadata": {"name": "Zoë"}}, ensure_ascii=False))
        assert response(events(opened))["metadata"] == {"name": "Zoë"}
