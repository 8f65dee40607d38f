"""A failed request leaves nothing behind: no reference cycle keeps its body, or its upstream's, alive.

The collector runs rarely in a gateway, so that a cycle through an exception's traceback holds every body for long.
"""

import gc
import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import msgspec
import pytest

from e2e.cases import CASES
from e2e.pool_rig import keys_of, run_pool
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from raw_http import dial, post, request_bytes
from rig import ENCODERS, PATHS, Rig, run_rig

LARGE = 300_000
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
BOMB = gzip.compress(b"z" * (32 << 20))
PAIRS = [("chat", "chat"), ("chat", "messages"), ("messages", "responses")]

pairs = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[">".join(pair) for pair in PAIRS])
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module", params=["plain", "captured"])
def rig(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with run_failing(tmp_path_factory.mktemp("gateway"), 0.4, is_captured=request.param == "captured") as shared:
        yield shared


@pytest.fixture(scope="module", params=["plain", "captured"])
def patient(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A rig whose upstreams may take their time: they reply."""
    with run_failing(tmp_path_factory.mktemp("patient"), 300, is_captured=request.param == "captured") as shared:
        yield shared


def run_failing(directory: Path, timeout_s: float, *, is_captured: bool) -> AbstractContextManager[Rig]:
    gc.collect()
    gc.freeze()  # each collection then looks only through the gateway and what its requests leave
    captures = CAPTURED.format(directory / "captures") if is_captured else ""
    return run_rig(directory, SETTINGS.format(timeout_s=timeout_s) + captures)


def body_of(model: str, *, stream: bool = False, **fields: object) -> bytes:
    user = [{"role": "user", "content": "y" * LARGE}]
    response = {"model": model, "max_tokens": 9, "messages": user, "input": user, "stream": stream}
    return msgspec.json.encode({**response, **fields})


def holders(garbage: list[object]) -> list[str]:
    """What in the garbage refers to a large body, and which functions' frames lie there."""
    found = []
    for item in garbage:
        large = any(isinstance(held, bytes | bytearray | str) and len(held) >= LARGE for held in gc.get_referents(item))
        if large and not isinstance(item, ReceivedRequest):  # the fake upstream's own
            found.append(f"{type(item).__name__} holds a body")
    if found:
        frames = [item for item in garbage if isinstance(item, FrameType)]
        frames += [item.tb_frame for item in garbage if isinstance(item, TracebackType)]
        found += sorted({f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames})
    return found


@contextmanager
def no_body_in_cycles(*fakes: FakeUpstream) -> Iterator[None]:
    """Fails where what is done inside leaves a large body that only the collector can free."""
    gc.collect()
    gc.disable()
    try:
        yield
        for fake in fakes:
            fake.requests.clear()
        time.sleep(0.1)  # handlers and observers end
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert holders(gc.garbage) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


FAULTS: dict[str, Callable[[], Answer]] = {
    "error": lambda: Answer(ERROR, status=500, content_type="application/json"),
    "refused": lambda: Answer(ERROR, status=400, content_type="application/json"),
    "credential": lambda: Answer(ERROR, status=401, content_type="application/json"),
    "limited": lambda: Answer(ERROR, status=429, content_type="application/json"),
    "reset": lambda: Answer(headless=True, end=End.RESET),
    "cut": lambda: Answer(headless=True, end=End.CUT),
    "silent": lambda: Answer(headless=True, end=End.HANG),
    "cut in the body": lambda: Answer(b"{" + b" " * LARGE, content_type="application/json", end=End.CUT),
    "silent in the body": lambda: Answer(b"{" + b" " * LARGE, content_type="application/json", end=End.HANG),
    "silent in an error": lambda: Answer(ERROR, status=500, end=End.HANG),
    "not JSON": lambda: Answer(b"z" * LARGE, content_type="application/json"),
    "no event": lambda: Answer(b"data: " + b"z" * LARGE + b"\n\n"),
    "badly packed": lambda: Answer(b"z" * LARGE, headers=(("content-encoding", "gzip"),)),
    "bomb": lambda: Answer(BOMB, status=500, headers=(("content-encoding", "gzip"),)),
}


@pairs
@streams
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_upstream_leaves_no_body(rig: Rig, client: str, upstream: str, stream: bool, fault: str) -> None:
    rig.play(upstream, FAULTS[fault]())
    with no_body_in_cycles(*rig.fakes.values()):
        answer = post(rig.gateway.port, PATHS[client], body_of(rig.model(upstream), stream=stream))
        assert answer.status >= 400 or stream


@pairs
@streams
def test_a_reply_leaves_no_body(patient: Rig, client: str, upstream: str, stream: bool) -> None:
    encoder, case = ENCODERS[upstream], CASES["text"]
    whole = Answer(encoder.encode_whole(case.scripted), content_type="application/json")
    patient.play(upstream, Answer(encoder.encode_stream(case.scripted)) if stream else whole)
    with no_body_in_cycles(*patient.fakes.values()):
        body = body_of(patient.model(upstream), stream=stream)
        assert post(patient.gateway.port, PATHS[client], body).status == 200


@streams
@pytest.mark.parametrize("fault", ["error", "reset", "limited"])
def test_two_failed_targets_leave_no_body(rig: Rig, stream: bool, fault: str) -> None:
    for upstream in ("chat", "messages"):
        rig.play(upstream, FAULTS[fault]())
    with no_body_in_cycles(*rig.fakes.values()):
        assert post(rig.gateway.port, PATHS["chat"], body_of("twice", stream=stream)).status >= 400


@streams
@pytest.mark.parametrize("client", PATHS)
def test_an_upstream_that_is_down_leaves_no_body(rig: Rig, client: str, stream: bool) -> None:
    with no_body_in_cycles(*rig.fakes.values()):
        assert post(rig.gateway.port, PATHS[client], body_of("down/m", stream=stream)).status == 502


@pytest.mark.parametrize("fault", ["error", "reset", "limited"])
def test_a_stream_without_a_continuation_leaves_no_body(rig: Rig, fault: str) -> None:
    rig.play("chat", Answer(ENCODERS["chat"].encode_stream(CASES["text"].scripted)[:400], end=End.CUT))
    rig.play("messages", FAULTS[fault]())
    with no_body_in_cycles(*rig.fakes.values()):
        assert b"error" in post(rig.gateway.port, PATHS["chat"], body_of("twice", stream=True)).body


@streams
@pytest.mark.parametrize("status", [401, 429, 500])
def test_refused_credentials_leave_no_body(tmp_path: Path, stream: bool, status: int) -> None:
    refusal = Answer(ERROR, status=status, content_type="application/json")
    with run_pool(tmp_path, "chat") as pool:
        pool.keyed.refusals = dict.fromkeys(keys_of(2), refusal)
        with no_body_in_cycles(pool.upstream):
            answer = post(pool.gateway.port, PATHS["messages"], body_of("up/m", stream=stream))
            assert answer.status >= 400


REFUSALS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "not JSON": (b"{" + b"y" * LARGE, ()),
    "wrong field": (body_of("messages/m", temperature="y" * LARGE), ()),
    "strict": (body_of("messages/m", unknown="y" * LARGE), ("x-dragoman-strict: 1",)),
    "badly packed": (b"y" * LARGE, ("content-encoding: gzip",)),
    "bomb": (BOMB, ("content-encoding: gzip",)),
    "too large": (b"y" * (5 << 20), ()),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_request_leaves_no_body(rig: Rig, refusal: str) -> None:
    body, fields = REFUSALS[refusal]
    with no_body_in_cycles(*rig.fakes.values()):
        assert post(rig.gateway.port, PATHS["chat"], body, *fields).status >= 400


@streams
def test_a_client_that_leaves_while_it_waits_leaves_no_body(rig: Rig, stream: bool) -> None:
    fake = rig.play("messages", Answer(headless=True, end=End.HANG))
    with no_body_in_cycles(*rig.fakes.values()):
        with dial(rig.gateway.port) as sock:
            sock.sendall(request_bytes(PATHS["chat"], body_of("messages/m", stream=stream)))
            _until(lambda: bool(fake.calls))
        _until(lambda: rig.gateway.app.site.under_way == 0)


def test_a_client_that_leaves_in_its_upload_leaves_no_body(rig: Rig) -> None:
    with no_body_in_cycles(*rig.fakes.values()):
        with dial(rig.gateway.port) as sock:
            sock.sendall(request_bytes(PATHS["chat"], body_of("messages/m"))[:-1])
            _until(lambda: rig.gateway.app.site.under_way == 1)
        _until(lambda: rig.gateway.app.site.under_way == 0)


def _until(reached: Callable[[], bool]) -> None:
    patience = time.monotonic() + 60.0
    while not reached():
        assert time.monotonic() < patience
        time.sleep(0.01)
