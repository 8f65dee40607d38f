"""Captures are written when they should be, within their bounds, without a secret, and never at a stream's expense."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.cli.capture import render_timeline as timeline
from dragoman.proxy.capture import memory_bounds
from dragoman.proxy.capture.files import CaptureBounds, CaptureDirectory, load_capture, read_capture, to_json
from dragoman.proxy.capture.format import Capture, utc_text
from dragoman.proxy.capture.memory_bounds import RecordingMemory
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.capture.writer import MEMORY_BYTES
from e2e.cases import CASES
from fakes.kiro import FakeKiro, make_framed, refusal, sign, tail, words
from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, Running, provider_section, running
from raw_http import Answered, dial, post, request_bytes
from rig import ENCODERS, PATHS
from waiting import wait_until

EXAMPLE = Path(__file__).parents[1] / "fixtures" / "captures" / "kiro-cut-call.json"
CANARIES = {
    "header": "canary-in-a-header-0123456789",
    "query": "canary-in-a-query-0123456789",
    "own header": "canary-in-the-configuration-0123456789",
    "prompt": "sk-canary-in-a-prompt-0123456789",
    "arguments": "canary0in0arguments",
    "upstream key": "canary-upstream-key-0123456789",
    "request id": "sk-canary-in-a-request-id-0123456789",
    "model": "sk-canary-in-a-model-0123456789",
}


def debug(directory: Path, mode: str = "all", **more: object) -> str:
    lines = "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in more.items())
    return f'[debug]\ncapture = "{mode}"\ndirectory = "{directory / "captures"}"\n{lines}'


def files(directory: Path) -> list[Path]:
    return CaptureDirectory(directory / "captures", CaptureBounds(1, 1, 1.0)).files()


def captures(directory: Path) -> list[Capture]:
    return [load_capture(file) for file in files(directory)]


def make_body(text: str = "Hello.", stream: bool = True, model: str = "up/m") -> bytes:
    return msgspec.json.encode({"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]})


def ask(gateway: Running, body: bytes, *fields: str, query: str = "") -> Answered:
    return post(gateway.port, PATHS["chat"] + query, body, "content-type: application/json", *fields)


def wait_until_settled(gateway: Running, written: int) -> None:
    wait_until(lambda: gateway.app.gateway.captures.counts.written >= written)


GOOD = Answer(ENCODERS["chat"].encode_stream(CASES["text"].scripted), cut=64)


@contextmanager
def run_capturing(directory: Path, settings: str, *answers: Answer) -> Iterator[tuple[Running, FakeUpstream]]:
    with FakeUpstream(answers=list(answers or (GOOD,))) as up:
        retry = "[retry]\nattempts = 1\n"
        with running("\n".join([settings, retry, provider_section("chat", up.url)]), directory) as gateway:
            yield gateway, up


def test_nothing_is_captured_until_an_edit_switches_it_on(tmp_path: Path) -> None:
    with run_capturing(tmp_path, "") as (gateway, up):
        assert ask(gateway, make_body()).status == 200
        assert not (tmp_path / "captures").exists()
        gateway.adopt(debug(tmp_path) + provider_section("chat", up.url))
        assert ask(gateway, make_body()).status == 200
        wait_until_settled(gateway, 1)
    assert len(files(tmp_path)) == 1


def test_with_errors_each_failed_request_is_captured_and_no_other(tmp_path: Path) -> None:
    stream = ENCODERS["chat"].encode_stream(CASES["text"].scripted)
    bad = [
        Answer(b'{"error":{"message":"No."}}', status=400, content_type="application/json", chunked=False),
        Answer(stream[: len(stream) // 2]),
        Answer(stream[: len(stream) // 2], end=End.RESET),
    ]
    with run_capturing(tmp_path, debug(tmp_path, "errors"), GOOD, *bad, GOOD) as (gateway, _):
        for _ in range(2 + len(bad)):
            ask(gateway, make_body())
        assert ask(gateway, b'{"model":').status == 400
        assert ask(gateway, make_body(model="up/m") + b"]").status == 400
        wait_until_settled(gateway, len(bad) + 2)
    kept = captures(tmp_path)
    assert [capture.outcome for capture in kept] == ["bad_request", "truncated", "lost", "bad_request", "bad_request"]
    assert [len(capture.upstream_requests) for capture in kept] == [1, 1, 1, 0, 0]


def test_a_capture_notes_that_the_body_was_not_read(tmp_path: Path) -> None:
    with run_capturing(tmp_path, debug(tmp_path, "errors") + "[server]\nmax_body_mb = 0.001\n") as (gateway, _):
        assert ask(gateway, make_body("word " * 1000)).status == 413
        wait_until_settled(gateway, 1)
    [capture] = captures(tmp_path)
    assert (capture.outcome, capture.request.body) == ("too_large", b"")
    assert capture.truncated


def test_a_client_that_disconnects_is_no_error(tmp_path: Path) -> None:
    open_ended = Answer(GOOD.body[:-200], end=End.HANG)
    with run_capturing(tmp_path, debug(tmp_path, "errors"), open_ended) as (gateway, up):
        with dial(gateway.port) as sock:
            sock.sendall(request_bytes(PATHS["chat"], make_body()))
            assert sock.recv(100)
        wait_until(lambda: bool(up.closed))
        wait_until(lambda: gateway.app.site.under_way == 0)
    assert files(tmp_path) == []


def test_files_are_accessible_to_their_owner_only(tmp_path: Path) -> None:
    with run_capturing(tmp_path, debug(tmp_path)) as (gateway, _):
        ask(gateway, make_body())
        wait_until_settled(gateway, 1)
    [file] = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_oldest_captures_are_removed_first(tmp_path: Path) -> None:
    with run_capturing(tmp_path, debug(tmp_path, keep=3)) as (gateway, _):
        for number in range(6):
            ask(gateway, make_body(), f"x-request-id: number-{number}")
        wait_until_settled(gateway, 6)
    assert [capture.client_request_id for capture in captures(tmp_path)] == ["number-3", "number-4", "number-5"]


def test_several_processes_share_one_limit(tmp_path: Path) -> None:
    bounds = CaptureBounds(5, 1 << 30, 86_400.0)
    directories = [CaptureDirectory(tmp_path / "captures", bounds) for _ in range(3)]
    example = read_capture(EXAMPLE.read_bytes())
    for number in range(30):
        directories[number % 3].write(
            replace(example, request_id=f"req_{number}", time=utc_text(1_794_700_000.0 + number))
        )
        assert len(files(tmp_path)) <= 5
    assert [capture.request_id for capture in captures(tmp_path)] == [f"req_{number}" for number in range(25, 30)]


def test_the_total_size_of_captures_is_bounded(tmp_path: Path) -> None:
    with run_capturing(tmp_path, debug(tmp_path, max_mb=0.02)) as (gateway, _):
        for _ in range(8):
            ask(gateway, make_body(os.urandom(4096).hex()))
        wait_until_settled(gateway, 8)
    assert 1 <= len(files(tmp_path)) < 8
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 0.02 * 1024 * 1024


def test_old_captures_are_removed_at_the_next_start(tmp_path: Path) -> None:
    with run_capturing(tmp_path, debug(tmp_path)) as (gateway, _):
        for _ in range(2):
            ask(gateway, make_body())
        wait_until_settled(gateway, 2)
    old, new = files(tmp_path)
    (tmp_path / "captures" / "killed.part").touch()
    for file in (old, tmp_path / "captures" / "killed.part"):
        os.utime(file, (0, 0))
    with run_capturing(tmp_path, debug(tmp_path, "off")):
        wait_until(lambda: list((tmp_path / "captures").iterdir()) == [new])


def test_a_part_that_is_too_large_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_bounds, "MAX_BYTES", 2000)
    with run_capturing(tmp_path, debug(tmp_path)) as (gateway, _):
        answer = ask(gateway, make_body("word " * 300))
        wait_until_settled(gateway, 1)
    assert answer.status == 200
    assert b"[DONE]" in answer.body
    [capture] = captures(tmp_path)
    assert capture.truncated
    assert len(to_json(capture)) < 20_000


def test_of_a_part_that_is_too_large_the_end_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_bounds, "MAX_BYTES", 40_000)
    response = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
    long = Answer(response * 8000 + b'data: {"choices":[{"delta":{"content":"la', cut=1000)
    with run_capturing(tmp_path, debug(tmp_path, "errors"), long) as (gateway, _):
        answer = ask(gateway, make_body())
        wait_until_settled(gateway, 1)
        wait_until(lambda: gateway.app.gateway.captures.memory_left == MEMORY_BYTES)
    [capture] = captures(tmp_path)
    assert set(capture.truncated) == {"upstream reply", "events", "sent"}
    assert capture.response is not None
    assert capture.upstream_requests[0].response is not None
    for chunks, end in (
        (capture.response.chunks, answer.body),
        (capture.upstream_requests[0].response.chunks, long.body),
    ):
        data = [chunk.data for chunk in chunks]
        assert data.count(b"") == 1  # where something is missing
        last = b"".join(data[data.index(b"") :])
        assert last
        assert end.endswith(last)
    assert "truncated" in capture.events[-1].event
    shown = list(timeline(capture))
    assert sum(line.count("not kept ...") for line in shown) == 2  # both may be in one line
    assert "failed truncated" in shown[-1]


@pytest.mark.parametrize("trouble", ["no directory can be made", "nothing can be written"])
def test_a_directory_that_cannot_be_written_affects_no_stream(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "captures"
    if trouble == "no directory can be made":
        place.write_text("a file is in the way")
    else:
        place.symlink_to("/dev/full")
    with run_capturing(tmp_path, debug(tmp_path)) as (gateway, _):
        for _ in range(3):
            answer = ask(gateway, make_body())
            assert answer.status == 200
            assert b"[DONE]" in answer.body
        wait_until(lambda: gateway.app.gateway.captures.counts.dropped == 3)
    assert len([record for record in caplog.records if "captures cannot be written" in record.message]) == 1


FULL_DISK = """
import resource, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from e2e.test_captures_on_disk import ask, debug, files, make_body, run_capturing
from waiting import wait_until
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
directory = Path(sys.argv[1])
with run_capturing(directory, debug(directory)) as (gateway, _):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    assert all(b"[DONE]" in ask(gateway, make_body()).body for _ in range(3))
    wait_until(lambda: gateway.app.gateway.captures.counts.dropped == 3)
    assert list((directory / "captures").iterdir()) == []
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert b"[DONE]" in ask(gateway, make_body()).body
    wait_until(lambda: gateway.app.gateway.captures.counts.written == 1)
print("unharmed")
"""


@pytest.mark.rest
def test_a_full_disk_affects_no_stream_and_leaves_no_partial_file(tmp_path: Path) -> None:
    """In a process of its own, whose files may not grow: that is what a full disk looks like to it."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), str(here), str(here.parent)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout == "unharmed\n", done.stderr


def test_an_error_in_the_recording_affects_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    for kind, method in ((Recording, "elapsed_s"), (RecordingMemory, "reserve")):
        monkeypatch.setattr(kind, method, fail)
        with run_capturing(tmp_path, debug(tmp_path)) as (gateway, _):
            assert b"[DONE]" in ask(gateway, make_body()).body


def test_no_secret_reaches_a_capture(tmp_path: Path) -> None:
    key = CANARIES["upstream key"]
    echoed = f"Your key {key} (Bearer {key}) and header {CANARIES['own header']} are wrong."
    refusals = [
        Answer(msgspec.json.encode({"error": {"message": echoed}}), status=status, content_type="application/json")
        for status in (401, 429, 400)
    ]
    response = ENCODERS["chat"].encode_stream(CASES["text"].scripted).replace(b"quick", key.encode())
    own = f'headers = {{ x-own = "{CANARIES["own header"]}" }}\n'
    with FakeUpstream(answers=[*refusals, Answer(response, cut=7, headers=(("x-echo", key),)), GOOD]) as up:
        provider = provider_section("chat", up.url).replace("sk-fake-upstream", key) + own
        settings = debug(tmp_path) + "[retry]\nattempts = 1\n" + provider
        with running(settings, tmp_path) as gateway:
            body = make_body(f"My key is {CANARIES['prompt']}, and {{'password': '{CANARIES['arguments']}'}}")
            credentials = (f"x-other-token: {CANARIES['header']}", f"cookie: session={CANARIES['header']}")
            fields = (*credentials, f"x-request-id: {CANARIES['request id']}", f"user-agent: {CANARIES['prompt']}/1")
            for _ in range(5):
                ask(gateway, body, *fields, query=f"?key={CANARIES['query']}&token={CANARIES['query']}")
            ask(gateway, make_body(model=f"up/{CANARIES['model']}"))
            wait_until_settled(gateway, 6)
    assert [file for file in files(tmp_path) for canary in CANARIES.values() if canary in file.name] == []
    for capture in captures(tmp_path):
        readable = to_json(capture).decode() + msgspec.json.encode(msgspec.to_builtins(capture)).decode()
        assert KEY not in readable
        assert [name for name, canary in CANARIES.items() if canary in readable] == []
    assert len(captures(tmp_path)) == 6


def test_no_token_of_an_account_reaches_a_capture(tmp_path: Path) -> None:
    file = tmp_path / "kiro-auth-token.json"
    with FakeKiro() as fake:
        tokens = fake.issue()
        access = str(tokens["accessToken"])
        sign(file, access, str(tokens["refreshToken"]), 7200)
        fake.replies = [refusal(400, f"The token {access} is odd."), make_framed(words(f"It is {access}."), tail())]
        with running(debug(tmp_path) + fake.section(str(file)), tmp_path) as gateway:
            for _ in range(2):
                ask(gateway, make_body(model="kiro/claude-sonnet-4.5"))
            wait_until_settled(gateway, 2)
    for capture in captures(tmp_path):
        raw = b"".join(chunk.data for q in capture.upstream_requests if q.response for chunk in q.response.chunks)
        assert access.encode() not in raw
        assert access not in to_json(capture).decode()


def test_captures_beyond_the_queue_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that hangs, as on a dead network disk, delays no request."""

    def hang(*_: object) -> None:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        raise OSError(5, "dead")

    monkeypatch.setattr(CaptureDirectory, "write", hang)
    monkeypatch.setattr("dragoman.proxy.capture.writer.MAX_WAITING", 2)
    with run_capturing(tmp_path, debug(tmp_path)) as (gateway, _):
        for _ in range(6):
            assert ask(gateway, make_body()).status == 200
        wait_until(lambda: gateway.app.gateway.captures.counts.dropped >= 3)
        (tmp_path / "go").touch()
        wait_until(lambda: gateway.app.gateway.captures.counts.dropped == 6)
