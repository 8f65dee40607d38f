"""Every kind of request, however it ends, is released at once: no reference cycle and no list keeps it.

The collector is off, so that what a cycle keeps is still there. It runs rarely in a gateway, and a request has bodies
of many megabytes.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from asking import find_path, make_body
from console.browser import sign_in
from console.feed_reader import reading
from console.traffic import own_id
from e2e.limit_rig import PRICES
from fakes.upstream import Answer, End
from gateway import KEY
from raw_http import dial, request_bytes
from release import collector_off, describe, expect_release, find_left
from rig import ONCE, Rig, run_rig
from scripting import write_error, write_reply
from waiting import PATIENCE_S, wait_until
from wire_json import JsonObject

SETTINGS = ONCE + "[server]\ndrain_s = 0.1\n[responses]\npark_s = 0.2\n"
LIMITS = (
    "[limits]\nconcurrent = 1000\ntokens_per_day = 1000000000\n[limits.key]\ntokens_per_day = 0\n"  # each is settled
)
ONE_AT_A_TIME = '[limits]\nusd_per_month = 0.06\nwait_s = 60\nbudget = "strict"\n' + PRICES
CAPTURED = '[debug]\ncapture = "all"\ndirectory = "{}"\n'
WORDS = " ".join(f"word-{number}" for number in range(40))
JSON = "application/json"
EMBEDDINGS = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.25]}],"model":"m"}'
COUNT = b'{"input_tokens": 42}'
PARK = "x-dragoman-park: 1"
UPSTREAMS = ("chat", "messages", "responses")


class Ending(Enum):
    ANSWERED = "the upstream answers"
    REFUSED = "the upstream refuses the request"
    CUT = "the upstream breaks off in the middle of its reply"
    GONE = "the client leaves in the middle of the reply"
    OPERATOR = "the operator ends the request"
    SHUTDOWN = "the gateway stops"


HANGING = (Ending.GONE, Ending.OPERATOR, Ending.SHUTDOWN)


@dataclass(frozen=True)
class Kind:
    """A kind of request; `without` says which endings it cannot have, and why."""

    client: str
    upstream: str
    streams: bool = True
    path: str = ""  # another one than that of the protocol
    fields: tuple[str, ...] = ()  # of the head
    body: JsonObject = field(default_factory=dict)
    reply: bytes = b""  # a document, instead of the protocol's reply
    clients: int = 1  # that send the same request, one after the other
    key: str = ""  # of a client that has a limit, by its name
    rejection: str = ""  # of the upstream, after which the gateway sends the request again in another form
    code: str | None = None  # of that rejection
    without: Mapping[Ending, str] = field(default_factory=dict)

    def write(self, ending: Ending) -> Answer:
        """Return the upstream's answer."""
        if ending is Ending.REFUSED:
            return write_error(400, "No.")
        if self.reply:
            answer = Answer(self.reply, content_type=JSON)
        else:
            answer = write_reply(self.upstream, WORDS, stream=self.streams)
        if ending is Ending.ANSWERED:
            return answer
        return replace(answer, body=answer.body[: len(answer.body) // 2], end=CUT_OR_HANG[ending is Ending.CUT])


CUT_OR_HANG = {True: End.CUT, False: End.HANG}
KEYED = ("idempotency-key: {}",)
NO_LIVE_COUNT = {Ending.OPERATOR: "the console does not list requests that count tokens"}
NO_CLIENT = {Ending.GONE: "no client waits for a background response"}
KINDS = {
    "whole": Kind("chat", "messages", streams=False),
    "stream": Kind("chat", "messages"),
    "passed": Kind("chat", "chat", streams=False),
    "passed stream": Kind("chat", "chat"),
    "stored": Kind("responses", "chat", streams=False),
    "stored stream": Kind("responses", "chat"),
    "conversation": Kind("responses", "chat", body={"conversation": "new"}),
    "compacted": Kind("responses", "chat", streams=False, path="/v1/responses/compact"),
    "counted": Kind("messages", "messages", False, "/v1/messages/count_tokens", reply=COUNT, without=NO_LIVE_COUNT),
    "relayed": Kind("chat", "chat", False, "/v1/embeddings", body={"input": "Hi"}, reply=EMBEDDINGS),
    "parked": Kind("chat", "messages", fields=(PARK,)),
    "parked whole": Kind("chat", "messages", streams=False, fields=(PARK,)),
    "parked stored": Kind("responses", "chat", fields=(PARK,)),
    "joined": Kind("messages", "chat", fields=KEYED, clients=2),
    "joined whole": Kind("messages", "chat", streams=False, fields=KEYED, clients=2),
    "background": Kind("responses", "chat", streams=False, body={"background": True}, without=NO_CLIENT),
    "background stream": Kind("responses", "chat", body={"background": True}, without=NO_CLIENT),
}
UNREADABLE: list[JsonObject] = [
    {"role": "user", "content": "Hi"},
    {"type": "reasoning", "summary": [], "encrypted_content": "c2Vh"},
    {"role": "user", "content": "Go on."},
]
ONLY_ANSWERED: dict[Ending, str] = {ending: "a limit refuses it" for ending in Ending if ending is not Ending.ANSWERED}
KINDS |= {
    "refused by a limit": Kind("chat", "messages", key="alice", without=ONLY_ANSWERED),
    "without a field": Kind("chat", "chat", body={"field_{}": 1}, rejection="Unsupported parameter: 'field_{}'"),
    "without reasoning": Kind(
        "responses",
        "responses",
        fields=("x-session-id: {}",),
        body={"input": UNREADABLE, "store": False},
        rejection="The encrypted content could not be verified.",
        code="invalid_encrypted_content",
    ),
}
LANE = Kind("responses", "chat")
Rows = list[tuple[str, Ending]]
ENDINGS = [ending for ending in Ending if ending is not Ending.SHUTDOWN]
ways = pytest.mark.parametrize("way", ["plain", pytest.param("captured", marks=pytest.mark.rest)])
numbers = count()


@pytest.fixture
def without_collector() -> Iterator[None]:
    with collector_off():
        yield


class Client:
    """Sends a request, and reads what comes until it leaves."""

    def __init__(self, rig: Rig, kind: Kind, request_id: str, key: str) -> None:
        self.received = bytearray()
        self.is_over = threading.Event()
        more = {name.format(key): value for name, value in kind.body.items()}
        body = make_body(kind.client, rig.model(kind.upstream), stream=kind.streams) | more
        if body.get("conversation"):
            body["conversation"] = rig.send("POST", "/v1/conversations", {}).json["id"]
        path = kind.path or find_path(kind.client, rig.model(kind.upstream), stream=kind.streams)
        fields = [line.format(key) for line in kind.fields]
        self._socket = dial(rig.port)
        fields += [f"x-request-id: {request_id}", "connection: close"]
        secret = rig.gateway.keys[kind.key] if kind.key else KEY
        self._socket.sendall(request_bytes(path, json.dumps(body).encode(), *fields, key=secret))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):
            while data := self._socket.recv(1 << 16):
                self.received += data
        self.is_over.set()

    def wait(self) -> None:
        assert self.is_over.wait(PATIENCE_S), bytes(self.received)

    def leave(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._socket.close()


def run_kind(directory: Path, way: str, limits: str = LIMITS) -> AbstractContextManager[Rig]:
    captured = CAPTURED.format(directory / "captures") if way == "captured" else ""
    return run_rig(directory, SETTINGS + limits + captured, upstreams=UPSTREAMS, keys=("alice",))


@contextmanager
def hold(rig: Rig, kind: Kind, request_id: str) -> Iterator[list[Client]]:
    """Send a request by as many clients as it has, and go on once its upstream has sent a part of the reply."""
    key, fake = f"key-{next(numbers)}", rig.fakes[kind.upstream]
    if kind.rejection:
        fake.answers.insert(0, write_error(400, kind.rejection.format(key), kind.code))
    before, sent = len(fake.calls) + bool(kind.rejection), fake.sent
    with ExitStack() as stack:
        clients: list[Client] = []
        for number in range(kind.clients):
            clients.append(Client(rig, kind, request_id if not number else f"{request_id}-{number}", key))
            stack.callback(clients[-1].leave)
            wait_until(lambda: clients[0].is_over.is_set() or (len(fake.calls) > before and fake.sent > sent))
        if kind.clients > 1 and not clients[0].is_over.is_set():
            runs = rig.gateway.app.site.parked_runs
            wait_until(lambda: runs.joined["key"] or clients[0].is_over.is_set())
        yield clients


def end_as_operator(rig: Rig, place: int = 0) -> None:
    """End the request that is under way; of several that join it, the first."""
    console = rig.gateway.app.site.console
    assert console is not None
    under_way = console.live._under_way
    wait_until(lambda: len(under_way) > place)  # a background response may still be queued
    ended = list(under_way)[place]
    assert rig.send("DELETE", f"/api/v1/live/{ended.id}").status == 200


def end(rig: Rig, kind: Kind, ending: Ending) -> None:
    """Send a request, and let it end in this way."""
    request_id = f"left-{next(numbers)}"
    rig.play(kind.upstream, kind.write(ending))
    rig.gateway.app.site.parked_runs.joined.clear()
    with hold(rig, kind, request_id) as clients:
        if ending is Ending.GONE:
            return
        if ending is Ending.OPERATOR:
            end_as_operator(rig)
        for client in clients:
            client.wait()
    if kind.body.get("background"):
        wait_until(lambda: not rig.gateway.app.site.under_way)


def list_endings(name: str) -> Rows:
    return [(name, ending) for ending in ENDINGS if ending not in KINDS[name].without]


PRODUCT = [row for name in KINDS for row in list_endings(name)]
FEW = [choices[place % len(choices)] for place, choices in enumerate(map(list_endings, KINDS))]  # in turns


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("way", "rows"),
    [
        pytest.param("plain", FEW, id="few"),
        pytest.param("plain", PRODUCT, id="all", marks=pytest.mark.rest),
        pytest.param("captured", PRODUCT, id="all, captured", marks=pytest.mark.rest),
    ],
)
def test_a_request_is_released_however_it_ends(tmp_path: Path, way: str, rows: Rows) -> None:
    failures: list[str] = []
    with run_kind(tmp_path, way) as rig:
        for name, ending in rows:
            try:
                with expect_release((name, ending)):
                    end(rig, KINDS[name], ending)
            except AssertionError as error:
                failures.append(str(error))
    assert not failures, "\n\n".join(failures)


@pytest.mark.usefixtures("without_collector")
@ways
def test_requests_are_released_when_the_gateway_stops(tmp_path: Path, way: str) -> None:
    with run_kind(tmp_path, way) as rig, expect_release(way), ExitStack() as stack:
        for number, kind in enumerate(KINDS.values()):
            rig.play(kind.upstream, kind.write(Ending.SHUTDOWN))
            stack.enter_context(hold(rig, kind, f"stopped-{number}"))
        rig.gateway.stop_soon().result(timeout=PATIENCE_S)


@pytest.mark.usefixtures("without_collector")
def test_a_request_that_waits_for_a_limit_is_released_however_it_ends(tmp_path: Path) -> None:
    kind = replace(KINDS["passed stream"], body={"max_tokens": 4000})
    with run_kind(tmp_path, "plain", ONE_AT_A_TIME) as rig:
        limiter = rig.gateway.app.gateway.limiter
        assert limiter is not None
        for ending in (Ending.ANSWERED, Ending.GONE, Ending.OPERATOR, Ending.SHUTDOWN):
            rig.play(kind.upstream, kind.write(Ending.GONE), kind.write(Ending.ANSWERED))
            with expect_release(ending), hold(rig, kind, f"first-{ending.name}") as [first], ExitStack() as stack:
                second = Client(rig, kind, f"second-{ending.name}", "")
                stack.callback(second.leave)
                wait_until(lambda: limiter.waiting == 1)
                if ending is Ending.ANSWERED:
                    first.leave()
                elif ending is Ending.OPERATOR:
                    end_as_operator(rig, -1)
                elif ending is Ending.SHUTDOWN:
                    rig.gateway.stop_soon().result(timeout=PATIENCE_S)
                if ending is not Ending.GONE:
                    second.wait()
                second.leave()
                wait_until(lambda: limiter.waiting == 0)


@contextmanager
def open_lane(rig: Rig, ending: Ending) -> Iterator[Callable[[], str]]:
    """Send a request over a WebSocket; yield what receives its next event, empty once the connection is closed."""
    fake = rig.play("chat", LANE.write(ending))
    headers = {"authorization": f"Bearer {KEY}"}
    url = f"ws://127.0.0.1:{rig.port}/v1/responses"
    with connect(url, additional_headers=headers, open_timeout=60, close_timeout=1) as opened:

        def receive() -> str:
            try:
                return str(opened.recv(timeout=PATIENCE_S))
            except ConnectionClosed:
                return ""

        opened.send(json.dumps({"type": "response.create", "model": "chat/m", "input": "Hi", "store": False}))
        wait_until(lambda: fake.calls)
        if ending in HANGING:
            while "output_text.delta" not in receive():
                continue
        yield receive


@pytest.mark.usefixtures("without_collector")
@ways
def test_a_connection_with_lanes_is_released_however_it_ends(tmp_path: Path, way: str) -> None:
    with run_kind(tmp_path, way) as rig:
        for ending in Ending:  # it stops last
            with expect_release(ending), open_lane(rig, ending) as receive:
                if ending is Ending.OPERATOR:
                    end_as_operator(rig)
                elif ending is Ending.SHUTDOWN:
                    rig.gateway.stop_soon().result(timeout=PATIENCE_S)
                if ending is not Ending.GONE:
                    ends = ('"response.completed"', '"response.failed"', '"type":"error"')
                    while (event := receive()) and not any(name in event for name in ends):
                        continue


@pytest.mark.usefixtures("without_collector")
def test_a_request_that_a_tab_inspects_is_released_when_it_ends(tmp_path: Path) -> None:
    """The tab stays open: what it has read is its own."""
    kind = KINDS["stream"]
    with run_kind(tmp_path, "plain") as rig:
        browser = sign_in(rig.gateway, KEY)
        rig.play(kind.upstream, kind.write(Ending.GONE))
        with ExitStack() as stack:
            with hold(rig, kind, "inspected"):
                feed = stack.enter_context(reading(browser, f"watch=live&frames={own_id(rig.gateway, 'inspected')}"))
                feed.wait_for(lambda: bool(feed.events))
            feed.wait_for_end("inspected")
            served = rig.gateway.app.server._service.requests  # that of the tab
            kept = [item for item in find_left() if not any(item is one for pair in served.items() for one in pair)]
            assert not kept, "\n".join(map(describe, kept))
