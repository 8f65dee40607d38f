"""A failed request leaves nothing behind: no reference cycle keeps its body, or its upstream's, alive.

The collector runs rarely in a gateway, so that a cycle through an exception's traceback holds every body for long.
Each test makes many requests, and then looks once for what only the collector can free.
"""

import gc
import gzip
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from types import FrameType, TracebackType

import msgspec
import pytest

from asking import Reply, send
from e2e.cases import CASES
from e2e.pool_rig import keys_of, run_pool
from fakes.upstream import Answer, End, ReceivedRequest
from gateway import Running
from raw_http import dial, request_bytes
from rig import PATHS, Rig, run_rig
from scripting import write_reply
from waiting import wait_until

LARGE = 100_000  # more than one read of a socket
SETTINGS = """
[server]
max_body_mb = 4
first_token_timeout_s = {timeout_s}
idle_timeout_s = {timeout_s}
[retry]
attempts = 2
base_s = 0.01
continue_streams = true
[providers.down]
kind = "openai-compatible"
protocol = "chat"
endpoint = "http://127.0.0.1:9/v1"
api_key = "sk-fake-upstream"
[[models]]
name = "twice"
to = ["chat/a", "messages/b"]
"""
CAPTURED = """
[debug]
capture = "all"
directory = "{}"
"""
ERROR = b'{"error": {"message": "%b", "type": "server_error"}}' % (b"x" * LARGE)
BOMB = gzip.compress(b"z" * (16 << 20))
JSON = "application/json"
PACKED = (("content-encoding", "gzip"),)
FAULTS = {
    "error": Answer(ERROR, status=500, content_type=JSON),
    "refused": Answer(ERROR, status=400, content_type=JSON),
    "credential": Answer(ERROR, status=401, content_type=JSON),
    "limited": Answer(ERROR, status=429, content_type=JSON),
    "reset": Answer(headless=True, end=End.RESET),
    "cut": Answer(headless=True, end=End.CUT),
    "cut in the body": Answer(b"{" + b" " * LARGE, content_type=JSON, end=End.CUT),
    "not JSON": Answer(b"z" * LARGE, content_type=JSON),
    "no event": Answer(b"data: " + b"z" * LARGE + b"\n\n"),
    "badly packed": Answer(b"z" * LARGE, headers=PACKED),
    "bomb": Answer(BOMB, status=500, headers=PACKED),
}
SILENCES = {
    "silent": Answer(headless=True, end=End.HANG),
    "silent in the body": Answer(b"{" + b" " * LARGE, content_type=JSON, end=End.HANG),
    "silent in an error": Answer(ERROR, status=500, end=End.HANG),
}
PAIRS = [("chat", "chat"), ("chat", "messages"), ("messages", "responses")]
# By what a gateway does: each pair with a whole and a streamed reply; what a capture refers to depends on neither.
WAYS = {
    "plain": [(*pair, stream) for pair, stream in product(PAIRS, (False, True))],
    "captured": [(*pair, place != 1) for place, pair in enumerate(PAIRS)],
}


@pytest.fixture(scope="module", params=WAYS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Iterator[Rig]:
    with run_failing(tmp_path_factory.mktemp("patient"), 300, kind) as shared:
        yield shared


def run_failing(directory: Path, timeout_s: float, kind: str) -> AbstractContextManager[Rig]:
    gc.collect()
    gc.freeze()  # each collection then looks only through the gateway and what its requests leave
    captures = CAPTURED.format(directory / "captures") if kind == "captured" else ""
    return run_rig(directory, SETTINGS.format(timeout_s=timeout_s) + captures)


def body_of(row: object, model: str, *, stream: bool = False, **fields: object) -> bytes:
    """Return a large request that names its row, by which the body of a failed assertion is recognized."""
    user = [{"role": "user", "content": f"{row} " + "y" * LARGE}]
    request = {"model": model, "max_tokens": 9, "messages": user, "input": user, "stream": stream}
    return msgspec.json.encode({**request, **fields})


def ask(rig: Rig, client: str, row: object, model: str, *, stream: bool) -> Reply:
    return rig.send("POST", PATHS[client], body_of(row, model, stream=stream))


def holders(garbage: list[object]) -> list[str]:
    """What in the garbage refers to a large body, how that begins, and which functions' frames lie there."""
    found = []
    for item in garbage:
        large = (held for held in gc.get_referents(item) if isinstance(held, bytes | bytearray | str))
        beginnings = [held[:200] for held in large if len(held) >= LARGE]
        if beginnings and not isinstance(item, ReceivedRequest):  # the fake upstream's own
            found.append(f"{type(item).__name__} holds {beginnings}")
    if found:
        frames = [item for item in garbage if isinstance(item, FrameType)]
        frames += [item.tb_frame for item in garbage if isinstance(item, TracebackType)]
        found += sorted({f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames})
    return found


@contextmanager
def no_body_in_cycles(gateway: Running) -> Iterator[None]:
    """Fails where what is done inside leaves a large body that only the collector can free."""
    gc.collect()
    gc.disable()
    try:
        yield
        wait_until(lambda: gateway.app.site.under_way == 0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = holders(gc.garbage)
        assert found == [], "\n".join(found)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def fail(rig: Rig, kind: str, faults: dict[str, Answer]) -> None:
    with no_body_in_cycles(rig.gateway):
        for (client, upstream, stream), (fault, answer) in product(WAYS[kind], faults.items()):
            row = (client, upstream, stream, fault)
            rig.play(upstream, answer)
            assert ask(rig, client, row, rig.model(upstream), stream=stream).status >= 400 or stream, row


def test_a_failed_upstream_leaves_no_body(rig: Rig, kind: str) -> None:
    fail(rig, kind, FAULTS)


def test_a_silent_upstream_leaves_no_body(tmp_path: Path, kind: str) -> None:
    with run_failing(tmp_path, 0.05, kind) as rig:
        fail(rig, kind, SILENCES)


def test_a_reply_leaves_no_body(rig: Rig, kind: str) -> None:
    with no_body_in_cycles(rig.gateway):
        for row in WAYS[kind]:
            client, upstream, stream = row
            rig.play(upstream, CASES["text"].scripted, stream=stream)
            assert ask(rig, client, row, rig.model(upstream), stream=stream).status == 200, row


def test_two_failed_targets_leave_no_body(rig: Rig) -> None:
    with no_body_in_cycles(rig.gateway):
        for stream, fault in product((False, True), ("error", "reset", "limited")):
            for upstream in ("chat", "messages"):
                rig.play(upstream, FAULTS[fault])
            assert ask(rig, "chat", (stream, fault), "twice", stream=stream).status >= 400, (stream, fault)


def test_an_upstream_that_is_down_leaves_no_body(rig: Rig) -> None:
    with no_body_in_cycles(rig.gateway):
        for row in product(PATHS, (False, True)):
            client, stream = row
            assert ask(rig, client, row, "down/m", stream=stream).status == 502, row


def test_a_stream_without_a_continuation_leaves_no_body(rig: Rig) -> None:
    begun = write_reply("chat", CASES["text"].scripted).body[:400]
    with no_body_in_cycles(rig.gateway):
        for fault in ("error", "reset", "limited"):
            rig.play("chat", Answer(begun, end=End.CUT))
            rig.play("messages", FAULTS[fault])
            assert b"error" in ask(rig, "chat", fault, "twice", stream=True).body, fault


def test_refused_credentials_leave_no_body(tmp_path: Path) -> None:
    with run_pool(tmp_path, "chat") as pool, no_body_in_cycles(pool.gateway):
        for row in product((False, True), (401, 429, 500)):
            stream, status = row
            pool.keyed.refusals = dict.fromkeys(keys_of(2), Answer(ERROR, status=status, content_type=JSON))
            reply = send(pool.gateway, "POST", PATHS["messages"], body_of(row, "up/m", stream=stream))
            assert reply.status >= 400, row


REFUSALS: dict[str, tuple[bytes, dict[str, str]]] = {
    "not JSON": (b"{" + b"y" * LARGE, {}),
    "wrong field": (body_of("temperature", "messages/m", temperature="y" * LARGE), {}),
    "strict": (body_of("strict", "messages/m", unknown="y" * LARGE), {"x-dragoman-strict": "1"}),
    "badly packed": (b"y" * LARGE, dict(PACKED)),
    "bomb": (BOMB, dict(PACKED)),
    "too large": (b"y" * (5 << 20), {}),
}


def test_a_refused_request_leaves_no_body(rig: Rig) -> None:
    with no_body_in_cycles(rig.gateway):
        for refusal, (body, fields) in REFUSALS.items():
            assert rig.send("POST", PATHS["chat"], body, headers=fields).status >= 400, refusal


def test_a_client_that_leaves_leaves_no_body(rig: Rig) -> None:
    """While it waits for a reply, and in its upload."""
    under_way = rig.gateway.app.site
    with no_body_in_cycles(rig.gateway):
        for stream in (False, True):
            rig.play("messages", SILENCES["silent"])
            with dial(rig.port) as sock:
                sock.sendall(request_bytes(PATHS["chat"], body_of(stream, "messages/m", stream=stream)))
                wait_until(lambda: rig.calls("messages"))
            wait_until(lambda: under_way.under_way == 0)
        with dial(rig.port) as sock:
            sock.sendall(request_bytes(PATHS["chat"], body_of("upload", "messages/m"))[:-1])
            wait_until(lambda: under_way.under_way == 1)
