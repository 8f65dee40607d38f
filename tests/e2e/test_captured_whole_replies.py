"""Captures of whole replies and of masked conversations: plain file names when exported, `same` when replayed."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.operate.captures.files import export_capture
from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture.format import Capture
from dragoman.server.handler import replay_site
from e2e.account_rig import KIRO_MODEL as MODEL
from e2e.account_rig import run_kiro
from e2e.cases import request_for
from e2e.test_replays import Kept, assert_same, debug
from fakes.kiro import make_framed, tail, words
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import provider_section, running
from raw_http import post
from rig import PATHS, PROTOCOLS
from sdk_replies import STREAMS, WHOLE

SECRET = "sk-proj-Zx81kQ0aLmN93vTyUeWq72BcDfGh"
# 29 tokens or so each: enough of them to change the number of digits.
TURN = [{"role": "user", "content": "My keys are " + " ".join([SECRET] * 4)}]
PLAIN_NAMES = {"request_body.json", "kiro_request_body.json", "response_stream_raw.txt", "response_stream_modified.txt"}


def capture_request(directory: Path, fake: FakeUpstream, path: str, body: bytes, settings: str = "") -> Capture:
    with running(debug(directory / "captures") + settings + provider_section("chat", fake.url), directory) as gateway:
        assert post(gateway.port, path, body).status == 200
        [capture] = Kept(directory / "captures", gateway).take_new(1)
    return capture


@pytest.mark.parametrize("client", PROTOCOLS)
def test_an_exported_reply_of_kiro_has_plain_names_whole_or_streamed(tmp_path: Path, client: str) -> None:
    with run_kiro(tmp_path, settings=debug(tmp_path / "captures")) as shared:
        kept = Kept(tmp_path / "captures", shared.gateway)
        shared.play(make_framed(words("Hello"), tail()))
        for listen in (WHOLE[client], STREAMS[client][0]):
            listen(shared.sdk, request_for(client, MODEL))
            [capture] = kept.take_new(1)
            files = export_capture(capture, tmp_path / f"export-{capture.request_id}")
            assert {file.name for file in files} == PLAIN_NAMES
            [answer] = [request.response for request in capture.upstream_requests]
            assert answer is not None
            raw = next(file for file in files if file.name == "response_stream_raw.txt")
            assert raw.read_bytes() == b"".join(chunk.data for chunk in answer.chunks)


@pytest.mark.parametrize("client", PROTOCOLS)
def test_a_whole_reply_that_was_requested_twice_has_plain_names(tmp_path: Path, client: str) -> None:
    answers = [Answer(b'{"error": {"message": "Later."}}', status=503, content_type="application/json"), chat_reply()]
    retry = "[retry]\nattempts = 2\nbase_s = 0.01\n"
    with FakeUpstream(answers) as fake:
        capture = capture_request(tmp_path, fake, PATHS[client], body_of(client, "up/m", stream=False), retry)
    written = {file.name: file.read_bytes() for file in export_capture(capture, tmp_path / "out")}
    assert b"Later." in written["response_stream_raw_1.txt"]
    assert b"You said" in written["response_stream_raw.txt"]
    assert {"up_request_body.json", "up_request_body_1.json"} < written.keys()


def chat_reply() -> Answer:
    """It reports no usage, so that the gateway estimates it."""
    message = {"role": "assistant", "content": f"You said {SECRET}"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return Answer(json.dumps(reply).encode(), content_type="application/json")


def chat_stream() -> Answer:
    deltas = [({"role": "assistant", "content": "You said "}, None), ({"content": SECRET}, None), ({}, "stop")]
    chunks = [
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": stop}],
        }
        for delta, stop in deltas
    ]
    return Answer(b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n")


def body_of(client: str, model: str, stream: bool) -> bytes:
    fields: dict[str, object] = {"input": TURN} if client == "responses" else {"messages": TURN}
    if client == "messages":
        fields["max_tokens"] = 500
    return json.dumps({"model": model, "stream": stream, **fields}).encode()


def answer_for(request: ReceivedRequest) -> Answer:
    return chat_stream() if request.json.get("stream") else chat_reply()


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_masked_capture_replays_the_same_though_its_estimates_differ(
    tmp_path: Path, client: str, stream: bool
) -> None:
    with FakeUpstream(choose=answer_for) as fake:
        capture = capture_request(tmp_path, fake, PATHS[client], body_of(client, "up/m", stream))
    assert SECRET.encode() not in capture.request.body
    assert capture.masked
    assert_same([capture])


def test_a_masked_count_replays_the_same(tmp_path: Path) -> None:
    body = json.dumps({"model": "up/m", "messages": TURN}).encode()
    with FakeUpstream() as fake:
        assert_same([capture_request(tmp_path, fake, "/v1/messages/count_tokens", body)])


def test_without_masks_another_estimate_is_a_difference(tmp_path: Path) -> None:
    """Nothing but a mask excuses one: else a change of the estimator would go unseen."""
    plain = body_of("messages", "up/m", stream=False).replace(SECRET.encode(), b"no secret")
    reply = chat_reply()
    reply = Answer(reply.body.replace(SECRET.encode(), b"no secret"), content_type=reply.content_type)
    with FakeUpstream([reply]) as fake:
        capture = capture_request(tmp_path, fake, PATHS["messages"], plain)
    assert not capture.masked
    assert_same([capture])
    assert capture.response is not None
    [chunk] = capture.response.chunks
    response = json.loads(chunk.data)
    response["usage"]["output_tokens"] += 1
    other = replace(
        capture, response=replace(capture.response, chunks=(replace(chunk, data=json.dumps(response).encode()),))
    )
    places = [change.place for part in compare_captures(other, rerun(other, replay_site)) for change in part.changes]
    assert "/usage/output_tokens" in places
