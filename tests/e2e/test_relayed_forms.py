"""Forms with files: sent on while they arrive, with only the value of `model` replaced, and bounded in memory."""

import asyncio
import os
import random
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import openai
import pytest

from fakes.threaded import ThreadedServer
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, running
from raw_http import Answered, dial, read_answer
from waiting import wait_until

MB = 1024 * 1024
TEXT = b'{"text":"Hello.","usage":{"type":"duration","seconds":12}}'
REFUSED = b'{"error":{"message":"No such language","type":"invalid_request_error"}}'
BOUNDARY = "form-boundary-7"
SECTION = '[providers.up]\nkind = "openai"\nendpoint = "{url}"\napi_key = "sk-fake-upstream"\npaths = ["audio"]\n'


@pytest.fixture
def up() -> Iterator[FakeUpstream]:
    with FakeUpstream() as up:
        up.models = ("whisper-1",)
        up.answers = [Answer(TEXT, content_type="application/json")]
        yield up


@pytest.fixture
def gateway(up: FakeUpstream, tmp_path: Path) -> Iterator[Running]:
    second = SECTION.replace("[providers.up]", "[providers.second]")
    routes = '[[models]]\nname = "hear"\nto = ["up/whisper-1", "second/whisper-large"]\n[retry]\nbase_s = 0.01\n'
    with running((SECTION + second + routes).format(url=up.url), tmp_path) as gateway:
        yield gateway


def field(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def make_sound(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def form(*fields: bytes) -> bytes:
    return b"".join(fields) + f"--{BOUNDARY}--\r\n".encode()


def head_of(length: int | None, path: str = "/v1/audio/transcriptions") -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {KEY}", framing
    kind = f'content-type: multipart/form-data; boundary="{BOUNDARY}"'
    return "\r\n".join([*lines, kind, "", ""]).encode()


def send(gateway: Running, body: bytes) -> Answered:
    with dial(gateway.port) as sock:
        sock.sendall(head_of(len(body)) + body)
        return read_answer(sock)


def test_the_sdk_transcribes_and_the_file_arrives(gateway: Running, up: FakeUpstream) -> None:
    sdk = openai.OpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0)
    transcription = sdk.audio.transcriptions.create(
        model="up/whisper-1", file=("a.wav", make_sound(300_000)), language="en"
    )
    assert transcription.text == "Hello."
    [call] = up.calls
    assert call.path == "/v1/audio/transcriptions"
    assert make_sound(300_000) in call.body
    assert b"whisper-1" in call.body
    assert b"up/whisper-1" not in call.body
    assert call.headers["content-type"].startswith("multipart/form-data; boundary=")


@pytest.mark.parametrize("is_model_first", [True, False])
def test_only_the_model_is_replaced(gateway: Running, up: FakeUpstream, is_model_first: bool) -> None:
    fields = [
        field("model", b"up/whisper-1"),
        field("file", make_sound(200_000) + b"\r\n--form-boundary", '; filename="a"'),
    ]
    body = form(*(fields if is_model_first else reversed(fields)), field("prompt", b"model"))
    answer = send(gateway, body)
    assert (answer.status, answer.body, answer.get("x-dragoman-route")) == (200, TEXT, "up/whisper-1")
    assert up.calls[0].body == body.replace(b"up/whisper-1", b"whisper-1")


def test_a_form_in_chunks_is_sent_with_its_length(gateway: Running, up: FakeUpstream) -> None:
    body = form(field("model", b"up/whisper-1"), field("file", make_sound(100_000), '; filename="a"'))
    with dial(gateway.port) as sock:
        sock.sendall(head_of(None))
        for at in range(0, len(body), 30_000):
            piece = body[at : at + 30_000]
            sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        sock.sendall(b"0\r\n\r\n")
        assert read_answer(sock).status == 200
    assert up.calls[0].body == body.replace(b"up/whisper-1", b"whisper-1")


def test_a_form_is_sent_again_from_its_start(gateway: Running, up: FakeUpstream) -> None:
    down = Answer(b'{"error":{"message":"down"}}', status=503, content_type="application/json")
    up.answers = [down, down, down, Answer(TEXT, content_type="application/json")]
    body = form(field("file", make_sound(500_000), '; filename="a"'), field("model", b"hear"))
    answer = send(gateway, body)
    assert (answer.status, answer.get("x-dragoman-route")) == (200, "second/whisper-large")
    sent = [b"whisper-1"] * 3 + [b"whisper-large"]
    assert [call.body for call in up.calls] == [body.replace(b"\r\nhear\r\n", b"\r\n%b\r\n" % name) for name in sent]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (form(field("file", b"x")), "model is missing"),
        (form(field("model", b"")), "model must be a non-empty string"),
        (form(field("model", b"\xff")), "not valid UTF-8"),
        (
            form(field("model", b"up/a"), field("file", make_sound(200_000)), field("model", b"up/b")),
            "more than one field",
        ),
        (form(field("model", b"m" * 1025)), "model must be at most 1024 bytes long"),
        (form(field("model", b"m" * 9000)), "longer than 4096 bytes"),
        (b"no form at all", "model is missing"),
    ],
)
def test_a_bad_form_is_400(gateway: Running, up: FakeUpstream, body: bytes, complaint: str) -> None:
    answer = send(gateway, body)
    assert answer.status == 400
    assert complaint in msgspec.json.decode(answer.body)["error"]["message"]
    assert up.calls == []


def test_a_form_on_a_path_of_json_is_400(gateway: Running) -> None:
    with dial(gateway.port) as sock:
        sock.sendall(head_of(2, "/v1/embeddings") + b"{}")
        answer = read_answer(sock)
    assert answer.status == 400
    assert b"takes JSON, not a form" in answer.body


def test_a_form_that_is_too_large_is_413(gateway: Running, up: FakeUpstream) -> None:
    with dial(gateway.port) as sock:
        sock.sendall(head_of(33 * MB) + field("model", b"up/whisper-1"))
        answer = read_answer(sock)
    assert (answer.status, up.calls) == (413, [])


def test_an_unknown_model_is_refused_before_the_file_arrives(gateway: Running) -> None:
    with dial(gateway.port) as sock:
        sock.sendall(head_of(20 * MB) + field("model", b"nowhere") + field("file", b"x"))
        answer = read_answer(sock)
    assert answer.status == 404


def test_a_refusal_of_the_upstream_passes_while_the_client_still_sends(tmp_path: Path) -> None:
    with Counting() as up, running(SECTION.format(url=f"http://127.0.0.1:{up.port}/v1"), tmp_path) as gateway:
        up.refuses_at = 100_000
        body = form(field("model", b"up/whisper-1"), field("file", make_sound(20 * MB), '; filename="a"'))
        with dial(gateway.port) as sock:
            sock.sendall(head_of(len(body)) + body[:MB])
            for at in range(MB, len(body), 65536):
                if select.select([sock], [], [], 0.01)[0]:  # the response is there
                    break
                sock.sendall(body[at : at + 65536])
            answer = read_answer(sock)
    assert (answer.status, answer.body) == (400, REFUSED)


class Counting(ThreadedServer):
    """Reads a request slowly or fast, and keeps nothing of it but a digest."""

    def __init__(self) -> None:
        self.digest = sha256()
        self.received = 0
        self.pause_s = 0.0
        self.refuses_at: int | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        self.received, self.digest = 0, sha256()
        lines = request.decode().lower().split("\r\n")
        length = int(next(line for line in lines if line.startswith("content-length:")).partition(":")[2])
        while self.received < length and (piece := await reader.read(MB)):
            self.received += len(piece)
            self.digest.update(piece)
            await asyncio.sleep(self.pause_s)
            if self.refuses_at is not None and self.received > self.refuses_at:
                head = b"HTTP/1.1 400 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % len(REFUSED) + REFUSED)
                await writer.drain()
                await reader.read()
                return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(TEXT))
        writer.write(TEXT)
        await writer.drain()
        writer.close()


def resident_mb(pid: int, name: str = "VmHWM") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def read_port(process: "subprocess.Popen[str]") -> int:
    """Wait until the gateway listens, and return its port."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"listens on http://\S+:(\d+)", line):
            return int(found[1])
    raise AssertionError("the gateway did not start")


@pytest.mark.rest
@pytest.mark.parametrize("capture", ["off", "all"])
def test_a_transcription_of_25_mb_takes_no_memory(tmp_path: Path, capture: str) -> None:
    with Counting() as up:
        debug = f'[debug]\ncapture = "{capture}"\ndirectory = "captures"\n'
        (tmp_path / "dragoman.toml").write_text(debug + SECTION.format(url=f"http://127.0.0.1:{up.port}/v1"))
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DRAGOMAN_API_KEY": KEY}
        command = [sys.executable, "-u", "-m", "dragoman", "serve", "--port", "0"]
        with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as process:
            try:
                port = read_port(process)
                with openai.OpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as sdk:
                    small = sdk.audio.transcriptions.create(model="up/whisper-1", file=("a.wav", b"RIFF"))
                    before = resident_mb(process.pid)
                    up.pause_s = 0.001
                    large = sdk.audio.transcriptions.create(model="up/whisper-1", file=("a.wav", make_sound(25 * MB)))
                body = form(field("model", b"up/whisper-1"), field("file", make_sound(25 * MB), '; filename="a"'))
                with dial(port) as sock:
                    sock.sendall(head_of(len(body)) + body)
                    answer = read_answer(sock)
                grown = resident_mb(process.pid) - before
            finally:
                process.terminate()
    assert (small.text, large.text, answer.status, answer.body) == ("Hello.", "Hello.", 200, TEXT)
    assert up.digest.digest() == sha256(body.replace(b"up/whisper-1", b"whisper-1")).digest()
    assert grown < 8, f"{grown:.1f} MB"
    kept = [path.stat().st_size for path in (tmp_path / "captures").glob("**/*") if path.is_file()]
    assert sum(kept) < MB
    assert bool(kept) == (capture == "all")


def test_the_upstream_gets_the_file_while_the_client_still_sends_it(tmp_path: Path) -> None:
    with Counting() as up, running(SECTION.format(url=f"http://127.0.0.1:{up.port}/v1"), tmp_path) as gateway:
        body = form(field("model", b"up/whisper-1"), field("file", make_sound(2 * MB), '; filename="a"'))
        with dial(gateway.port) as sock:
            sock.sendall(head_of(len(body)) + body[:MB])
            wait_until(lambda: up.received >= MB // 2)
            early = up.received
            sock.sendall(body[MB:])
            assert read_answer(sock).status == 200
    assert early >= MB // 2
    assert up.received == len(body) - len("up/")


def test_a_client_that_leaves_ends_the_upload(tmp_path: Path) -> None:
    with Counting() as up, running(SECTION.format(url=f"http://127.0.0.1:{up.port}/v1"), tmp_path) as gateway:
        with dial(gateway.port) as sock:
            sock.sendall(head_of(2 * MB) + field("model", b"up/whisper-1") + field("file", b"x" * 100_000))
            wait_until(lambda: up.received > 0)
        wait_until(lambda: bool(gateway.outcomes))
        assert gateway.app.site.under_way == 0
        assert gateway.outcomes[-1].outcome == "client_gone"
