"""What was just captured means the same when it is run again: every case of the matrix, refusals, faults and Kiro."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import cycle, product
from pathlib import Path
from urllib.parse import quote

import anthropic
import msgspec
import openai
import pytest

from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture.files import CaptureBounds, CaptureDirectory, load_capture
from dragoman.proxy.capture.format import Capture, summarize
from dragoman.server.handler import replay_site
from e2e.account_rig import KIRO_MODEL as MODEL
from e2e.account_rig import KiroRig, run_codex, run_copilot, run_kiro
from e2e.cases import BROKEN, CASES, request_for
from e2e.faults import ACCIDENTS, FAULTS, refusal
from e2e.test_matrix import make_stream_answer, whole
from fakes.codex import make_completed, make_created, make_item_done, number_events
from fakes.eventstream import event, exception
from fakes.kiro import make_framed, tail, tool, words
from fakes.kiro import refusal as kiro_refusal
from fakes.service import stream
from fakes.upstream import Answer, End, FakeUpstream
from gateway import Running, provider_section, running
from narrowing import expect
from raw_http import ask, post, request_bytes
from rig import PATHS, PROTOCOLS, Rig, run_rig
from scripting.replies import Text
from sdk_replies import STREAMS, WHOLE, SdkReply
from waiting import wait_until

clients = pytest.mark.parametrize("client", PROTOCOLS)
PAIRS = list(product(PROTOCOLS, PROTOCOLS))


def pair_with(names: Iterable[str]) -> pytest.MarkDecorator:
    """Give each name one pair of client and upstream, in turns; with every pair in `make test-rest`."""
    few = [(*pair, name) for pair, name in zip(cycle(PAIRS), names, strict=False)]
    every = [(*pair, name) for pair, name in product(PAIRS, names)]
    return pytest.mark.parametrize(
        "rows", [pytest.param(few, id="in turns"), pytest.param(every, id="all", marks=pytest.mark.rest)]
    )


Rows = list[tuple[str, str, str]]  # client, upstream, case


def debug(directory: Path) -> str:
    return f'[debug]\ncapture = "all"\ndirectory = "{directory}"\nkeep = 10000\n'


class Kept:
    """The captures of one gateway, each read once."""

    def __init__(self, directory: Path, gateway: Running) -> None:
        self._captures = CaptureDirectory(directory, CaptureBounds(10_000, 1 << 30, 86_400.0))
        self._gateway = gateway
        self._seen: set[Path] = set()

    def take_new(self, count: int) -> list[Capture]:
        wait_until(lambda: self._gateway.app.gateway.captures.counts.written >= len(self._seen) + count)
        files = [file for file in self._captures.files() if file not in self._seen]
        self._seen.update(files)
        assert len(files) == count
        return [load_capture(file) for file in files]


def assert_same(captures: list[Capture], row: object = None) -> None:
    for capture in captures:
        changes = [
            (part.name, change)
            for part in compare_captures(capture, rerun(capture, replay_site))
            for change in part.changes
        ]
        assert changes == [], (row, capture.request_id)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Kept]]:
    directory = tmp_path_factory.mktemp("captured")
    settings = debug(directory / "captures") + "[retry]\nattempts = 2\nbase_s = 0.01\n"
    with run_rig(directory, settings, models=("vendor-model",)) as shared:
        for fake in shared.fakes.values():
            fake.keep_alive = False
        yield shared, Kept(directory / "captures", shared.gateway)


@pytest.fixture(scope="module")
def kiro(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KiroRig, Kept]]:
    directory = tmp_path_factory.mktemp("captured-kiro")
    with run_kiro(directory, settings=debug(directory / "captures")) as shared:
        shared.gateway.settle()
        yield shared, Kept(directory / "captures", shared.gateway)


@pair_with(CASES)
def test_a_reply_replays_the_same(rig: tuple[Rig, Kept], rows: Rows) -> None:
    shared, kept = rig
    for row in rows:
        client, upstream, case = row
        request = request_for(client, shared.model(upstream), CASES[case])
        shared.play(upstream, whole(upstream, CASES[case].scripted))
        WHOLE[client](shared.sdk, request)
        shared.play(upstream, make_stream_answer(upstream, CASES[case].scripted, "in pieces of seven"))
        STREAMS[client][-1](shared.sdk, request)
        assert_same(kept.take_new(2), row)


def test_a_secret_header_that_an_upstream_repeats_replays_the_same(tmp_path: Path) -> None:
    """As it is, and as it stands in URLs and in base64."""
    secret = "Tenant/42 of Miller & Co"
    quoted = f"{quote(secret, safe='')} {b64encode(secret.encode()).decode()}"
    header = f'[providers.chat.headers]\nx-tenant = "{secret}"\n'
    with run_rig(tmp_path, debug(tmp_path / "captures"), upstreams=["chat"], options={"chat": header}) as shared:
        kept = Kept(tmp_path / "captures", shared.gateway)
        for row in product(PROTOCOLS, (True, False), (secret, quoted)):
            client, streamed, repeated = row
            shared.play("chat", [Text(f"Your header is {repeated}.", size=500)], stream=streamed)
            assert "***" in shared.ask(client, "chat", stream=streamed).body.decode(), row
            captures = kept.take_new(1)
            assert secret not in str(captures), row
            assert_same(captures, row)


def replay_failure(rig: tuple[Rig, Kept], client: str, upstream: str, answer: Answer, row: object) -> None:
    shared, kept = rig
    shared.play(upstream, answer)
    STREAMS[client][0](shared.sdk, request_for(client, shared.model(upstream)))
    [capture] = kept.take_new(1)
    assert summarize(capture).outcome != "ok", row
    assert_same([capture], row)


def test_a_broken_stream_replays_the_same(rig: tuple[Rig, Kept]) -> None:
    for row in product(PROTOCOLS, PROTOCOLS, BROKEN, (End.CLEAN, End.CUT)):
        client, upstream, name, end = row
        replay_failure(rig, client, upstream, make_stream_answer(upstream, BROKEN[name], "in one piece", end), row)


@pair_with([*FAULTS, *ACCIDENTS])
def test_errors_and_broken_connections_replay_the_same(rig: tuple[Rig, Kept], rows: Rows) -> None:
    for row in rows:
        client, upstream, name = row
        answer = refusal(upstream, FAULTS[name]) if name in FAULTS else ACCIDENTS[name]
        replay_failure(rig, client, upstream, answer, row)


@clients
def test_a_request_that_reached_no_upstream_replays_the_same(rig: tuple[Rig, Kept], client: str) -> None:
    shared, kept = rig
    for model in ("no-such-model", "nobody/at-all"):
        with pytest.raises((anthropic.NotFoundError, openai.NotFoundError)):
            WHOLE[client](shared.sdk, request_for(client, model))
    with pytest.raises((anthropic.BadRequestError, openai.BadRequestError)):
        WHOLE[client](shared.sdk, request_for(client, shared.model("chat")) | {"extra_body": {"stream": "yes"}})
    captures = kept.take_new(3)
    assert [len(capture.upstream_requests) for capture in captures] == [0, 0, 0]
    assert_same(captures)


KIRO = {
    "text": make_framed(words("é日"), words("😀 ha"), tail(), cut=11),
    "a call": make_framed(words("Look."), tool("t1", "weather", input='{"city":"Oslo"}', stop=True), tail("TOOL_USE")),
    "thinking": make_framed(words("<thinking>hm</thinking>Yes."), tail()),
    "a bracket call": make_framed(words('[Called weather with args: {"city":"Oslo"}]'), tail()),
    "a late exception": make_framed(words("Hel"), exception("InternalServerException", {"message": "It broke."})),
    "no tail": make_framed(words("Hel")),
    "a cut frame": make_framed(words("Hel"), words("lo")[:20]),
    "a refusal": kiro_refusal(400, "Input is too long.", "CONTENT_LENGTH_EXCEEDS_THRESHOLD"),
    "quiet": make_framed(event("messageMetadataEvent", {"conversationId": "fake"}), tail()),
}


def test_a_kiro_reply_replays_the_same(kiro: tuple[KiroRig, Kept]) -> None:
    shared, kept = kiro
    for row in zip(KIRO, cycle(PROTOCOLS), strict=False):
        name, client = row
        shared.play(KIRO[name])
        for listen in (WHOLE[client], *STREAMS[client]):
            with suppress(anthropic.APIError, openai.APIError):
                listen(shared.sdk, request_for(client, MODEL, CASES["one tool call"]))
        assert_same(kept.take_new(1 + len(STREAMS[client])), row)


def test_an_operation_that_is_named_in_a_header_replays_the_same(tmp_path: Path) -> None:
    """Which one it is belongs to the address, which the account decides."""
    settings = debug(tmp_path / "captures")
    with run_kiro(tmp_path, settings=settings) as shared:
        shared.gateway.adopt(settings + shared.fake.section(str(shared.file), operations_by="target"))
        shared.gateway.settle()
        shared.play(KIRO["text"])
        expect(SdkReply, shared.ask("chat"))
        [capture] = Kept(tmp_path / "captures", shared.gateway).take_new(1)
        [sent] = capture.upstream_requests
        assert sent.url == f"{shared.fake.root}/"
        assert dict(sent.headers)["x-amz-target"] == "KiroRuntimeService.GenerateAssistantResponse"
        assert_same([capture])


@clients
def test_a_completed_call_replays_the_same(kiro: tuple[KiroRig, Kept], client: str) -> None:
    shared, kept = kiro
    cut = make_framed(words("Look."), tool("t1", "weather", input='{"city":"Os'))
    for listen in (WHOLE[client], STREAMS[client][-1]):
        shared.play(cut, make_framed(words('lo","days":3}'), tail()))
        reply = listen(shared.sdk, request_for(client, MODEL, CASES["one tool call"]))
        assert isinstance(reply, SdkReply)
        assert [call[2] for call in reply.calls] == [{"city": "Oslo", "days": 3}]
    captures = kept.take_new(2)
    assert [capture.cut_calls for capture in captures] == [("weather",), ("weather",)]
    assert_same(captures)


def make_linked_request(model: str, url: str) -> bytes:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": parts}]})


def test_a_fetched_picture_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = debug(tmp_path / "captures") + "[fetch]\nenabled = true\n"
    picture = Answer(b"\x89PNG fake", content_type="image/png", chunked=False)
    with FakeUpstream(pages={"/photo.png": picture}) as pages, run_kiro(tmp_path, settings=settings) as shared:
        kept = Kept(tmp_path / "captures", shared.gateway)
        url = f"http://127.0.0.1:{pages.port}/photo.png"
        shared.play(make_framed(words("A fake."), tail()))
        refused = post(shared.gateway.port, "/v1/chat/completions", make_linked_request(MODEL, url))
        monkeypatch.setattr("dragoman.server_tools.guarded_fetch.is_public", lambda address: True)
        answered = post(shared.gateway.port, "/v1/chat/completions", make_linked_request(MODEL, url))
        captures = kept.take_new(2)
    assert (refused.status, answered.status) == (400, 200)
    assert b"iVBORyBmYWtl"[:4] in captures[1].upstream_requests[0].body
    assert_same(captures)


@pytest.mark.parametrize(
    ("client", "upstream", "model"), [("chat", "messages", "m"), ("messages", "openai", "gpt-5.6")]
)
def test_marks_and_keys_of_caches_replay_the_same(tmp_path: Path, client: str, upstream: str, model: str) -> None:
    """A replay knows neither the client's key nor what its session has sent before."""
    settings = debug(tmp_path / "captures")
    with run_rig(tmp_path, settings, upstreams=(upstream,), keys=("alice",)) as rig:
        turns = [{"role": "user", "content": "one " * 2000}, {"role": "assistant", "content": "Yes."}] * 3
        for count in (1, 5):  # without its memory, the previous end of the second would be thought to be at its third
            body = {"model": f"{upstream}/{model}", "max_tokens": 9, "messages": turns[:count]}
            rig.play(upstream, "Yes.", stream=False)
            assert rig.send("POST", PATHS[client], body, key=rig.gateway.keys["alice"]).status == 200
            assert b"cache" in rig.calls(upstream)[-1].body
        assert_same(Kept(tmp_path / "captures", rig.gateway).take_new(2))


def test_a_pool_of_keys_is_used_in_the_same_order(tmp_path: Path) -> None:
    limited = refusal("chat", FAULTS["429"])
    good = make_stream_answer("chat", CASES["text"].scripted, "in one piece")
    with FakeUpstream(answers=[limited, good]) as up:
        keys = provider_section("chat", up.url).replace('"sk-fake-upstream"', '["sk-fake-first", "sk-fake-second"]')
        with running(debug(tmp_path / "captures") + keys, tmp_path) as gateway:
            body = {"model": "up/m", "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
            assert post(gateway.port, "/v1/chat/completions", msgspec.json.encode(body)).status == 200
            captures = Kept(tmp_path / "captures", gateway).take_new(1)
    assert len(captures[0].upstream_requests) == 2
    assert "sk-fake-second" not in str(captures)
    assert_same(captures)


@pytest.mark.parametrize("status", [200, 500])
def test_a_count_replays_the_same(rig: tuple[Rig, Kept], status: int) -> None:
    shared, kept = rig
    shared.play("messages", Answer(b'{"input_tokens": 4242}', status=status, content_type="application/json"))
    question = {"model": shared.model("messages"), "messages": [{"role": "user", "content": "How many?"}]}
    response = post(shared.gateway.port, "/v1/messages/count_tokens", msgspec.json.encode(question))
    [capture] = kept.take_new(1)
    assert (capture.outcome, capture.protocols, len(capture.upstream_requests)) == ("ok", "messages = messages", 1)
    assert capture.response is not None
    assert b"".join([chunk.data for chunk in capture.response.chunks]) == response.body
    assert (response.body == b'{"input_tokens": 4242}') == (status == 200)
    assert_same([capture])


def test_an_estimate_of_a_long_text_and_a_count_that_is_refused_replay_the_same(rig: tuple[Rig, Kept]) -> None:
    shared, kept = rig
    long = {"model": shared.model("chat"), "input": "word " * 20_000}
    for body in (msgspec.json.encode(long), b'{"model": 3}'):
        post(shared.gateway.port, "/v1/responses/input_tokens", body)
    estimated, refused = kept.take_new(2)
    assert (estimated.outcome, refused.outcome) == ("ok", "bad_request")
    assert_same([estimated, refused])


def test_a_masked_request_has_the_same_estimate_at_the_start_of_its_stream(rig: tuple[Rig, Kept]) -> None:
    shared, kept = rig
    shared.play("chat", "Hello")
    assert shared.ask("messages", "chat", "sk-fake-upstream " * 40, stream=True).status == 200
    [capture] = kept.take_new(1)
    assert capture.masked
    assert_same([capture])


@clients
def test_the_incomplete_end_of_codex_is_captured_as_received(tmp_path: Path, client: str) -> None:
    with run_codex(tmp_path, settings=debug(tmp_path / "captures")) as codex:
        answer = stream(
            *number_events(make_created(), make_item_done(1, " two"), make_item_done(0, "one"), make_completed())
        )
        codex.fake.play(answer)
        reply = WHOLE[client](codex.sdk, request_for(client, "codex/gpt-5.5"))
        [capture] = Kept(tmp_path / "captures", codex.gateway).take_new(1)
    assert isinstance(reply, SdkReply)
    assert reply.text == "one two"
    assert raw(capture) == answer.body
    assert_same([capture])


@clients
def test_the_changing_ids_of_copilot_are_captured_as_received(tmp_path: Path, client: str) -> None:
    with run_copilot(tmp_path, settings=debug(tmp_path / "captures")) as copilot:
        STREAMS[client][0](copilot.sdk, request_for(client, "copilot/gpt-5.5"))
        [capture] = Kept(tmp_path / "captures", copilot.gateway).take_new(1)
    assert b'"item_id":"b"' in raw(capture).replace(b" ", b"")
    assert capture.response is not None
    assert b'"item_id":"b"' not in b"".join([chunk.data for chunk in capture.response.chunks])
    assert_same([capture])


def raw(capture: Capture) -> bytes:
    [question] = capture.upstream_requests
    assert question.response is not None
    return b"".join([chunk.data for chunk in question.response.chunks])


def test_a_request_to_another_openai_path_replays_the_same(tmp_path: Path) -> None:
    body = b'{"data":[{"embedding":[1.5]}],"model":"e","usage":{"prompt_tokens":7,"total_tokens":7}}'
    form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nup/whisper\r\n--b--\r\n'
    with FakeUpstream() as up:
        up.answers = [
            Answer(b'{"error":{"message":"down"}}', status=503, content_type="application/json"),
            Answer(body, content_type="application/json"),
            Answer(b'{"text":"Hi"}', content_type="application/json"),
            Answer(b"RIFF" * 100, content_type="audio/wav", cut=100),
        ]
        section = provider_section("chat", up.url) + 'paths = ["audio"]\n[retry]\nbase_s = 0.01\n'
        with running(section + debug(tmp_path / "captures"), tmp_path) as gateway:
            kept = Kept(tmp_path / "captures", gateway)
            assert post(gateway.port, "/v1/embeddings", b'{"model":"up/e","input":"x"}').body == body
            kind = "content-type: multipart/form-data; boundary=b"
            request = request_bytes("/v1/audio/transcriptions", form).replace(
                b"content-type: application/json", kind.encode()
            )
            assert ask(gateway.port, request).body == b'{"text":"Hi"}'
            assert post(gateway.port, "/v1/audio/speech", b'{"model":"up/tts","input":"x"}').body == b"RIFF" * 100
            captures = kept.take_new(3)
    assert {(capture.route, capture.client_protocol, capture.truncated) for capture in captures} == {
        ("up/e", "embeddings", ()),
        ("up/whisper", "audio/transcriptions", ()),
        ("up/tts", "audio/speech", ()),
    }
    assert_same(captures)
