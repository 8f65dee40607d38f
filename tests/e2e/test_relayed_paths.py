"""The other OpenAI paths, with the official SDK: every byte passes; keys, routing and errors are as elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest

from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS
from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, Running, running
from raw_http import Answered, post

ALL = '["audio", "images", "moderations", "rerank"]'
JSON = "application/json"
EMBEDDINGS = (
    b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.25,-1.5e-3]}],'
    b'"model":"embed-1","usage":{"prompt_tokens":7,"total_tokens":7}, "unknown" : null}'
)
COMPLETION = (
    b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"davinci","choices":[{"text":" world","index":0,'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
)
CHUNK = b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"davinci","choices":[%b]%b}\n\n'
STREAM = (
    CHUNK % (b'{"text":"Hel","index":0,"finish_reason":null}', b"")
    + CHUNK % (b'{"text":"lo","index":0,"finish_reason":"stop"}', b"")
    + CHUNK % (b"", b',"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}')
    + b"data: [DONE]\n\n"
)


def as_json(body: bytes) -> Answer:
    return Answer(body, content_type=JSON)


class Site:
    """A gateway before two upstreams: `up` serves every path, `bare` only the default ones."""

    def __init__(self, gateway: Running, up: FakeUpstream, bare: FakeUpstream) -> None:
        self.gateway, self.up, self.bare = gateway, up, bare
        self.sdk = openai.OpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0)

    def play(self, *answers: Answer) -> None:
        self.up.answers[:] = answers
        self.up.requests.clear()
        self.bare.requests.clear()

    def post(self, path: str, body: bytes, *fields: str) -> Answered:
        return post(self.gateway.port, f"/v1/{path}", body, *fields)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with FakeUpstream() as up, FakeUpstream() as bare:
        up.models = ("embed-1", "davinci", "whisper-1", "rank-1")
        bare.models = ("embed-2",)
        bare.answers = [as_json(EMBEDDINGS)]
        toml = (
            f'[providers.up]\nkind = "openai"\nendpoint = "{up.url}"\napi_key = "sk-fake-upstream"\npaths = {ALL}\n'
            f'[providers.bare]\nkind = "openai-compatible"\nendpoint = "{bare.url}"\n'
            '[[models]]\nname = "both"\nto = ["up/embed-1", "bare/embed-2"]\n'
            "[retry]\nbase_s = 0.01\n"
        )
        with running(toml, tmp_path_factory.mktemp("gateway")) as gateway:
            gateway.settle()
            yield Site(gateway, up, bare)


def test_embeddings_pass_and_only_the_model_is_replaced(site: Site) -> None:
    site.play(as_json(EMBEDDINGS))
    reply = site.sdk.embeddings.create(model="up/embed-1", input="Hello", encoding_format="float")
    assert (reply.data[0].embedding, reply.usage.prompt_tokens) == ([0.25, -1.5e-3], 7)
    [call] = site.up.calls
    assert (call.path, call.headers["authorization"]) == ("/v1/embeddings", "Bearer sk-fake-upstream")
    assert call.json == {"input": "Hello", "model": "embed-1", "encoding_format": "float"}


def test_every_byte_of_a_document_passes(site: Site) -> None:
    site.play(as_json(EMBEDDINGS))
    body = b'{ "input" : ["a", "\\u00e9"],"model":"up/embed-1", "odd":[1.50]}'
    answer = site.post("embeddings", body)
    assert answer.body == EMBEDDINGS
    assert site.up.calls[0].body == body.replace(b"up/embed-1", b"embed-1")
    assert (answer.status, answer.get("x-dragoman-route")) == (200, "up/embed-1")


def test_a_usage_row_counts_what_the_upstream_reports(site: Site) -> None:
    site.play(as_json(EMBEDDINGS))
    answer = site.post("embeddings", b'{"model":"embed-1","input":"x"}', "x-request-id: counted-1")
    assert answer.get("x-request-id") == "counted-1"
    outcome = site.gateway.outcome("counted-1")
    assert outcome.usage is not None
    assert (outcome.usage.input, outcome.usage.output, outcome.outcome) == (7, 0, "ok")
    assert (outcome.client_protocol, outcome.upstream_protocol, outcome.route) == (
        "embeddings",
        "embeddings",
        "up/embed-1",
    )


def test_completions_pass_whole(site: Site) -> None:
    site.play(as_json(COMPLETION))
    reply = site.sdk.completions.create(model="davinci", prompt="Hello")
    assert (reply.choices[0].text, reply.usage and reply.usage.total_tokens) == (" world", 3)


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_completions_stream_byte_for_byte(site: Site, cut: int) -> None:
    site.play(Answer(STREAM, cut=cut))
    chunks = list(site.sdk.completions.create(model="davinci", prompt="Hi", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello"
    answer = site.post("completions", b'{"model":"davinci","prompt":"Hi","stream":true}', f"x-request-id: s-{cut}")
    assert answer.body == STREAM
    usage = site.gateway.outcome(f"s-{cut}").usage
    assert usage is not None
    assert (usage.input, usage.output) == (4, 2)


def test_a_stream_that_breaks_off_ends_with_an_error_event(site: Site) -> None:
    cut = STREAM[: STREAM.index(b"\n\n") + 2]
    for end in (End.CLEAN, End.CUT):
        site.play(Answer(cut, end=end))
        with pytest.raises(openai.APIError):
            list(site.sdk.completions.create(model="davinci", prompt="Hi", stream=True))
        answer = site.post(
            "completions", b'{"model":"davinci","prompt":"","stream":true}', f"x-request-id: cut-{end.name}"
        )
        assert answer.body.startswith(cut)
        assert b'data: {"error":' in answer.body
        assert site.gateway.outcome(f"cut-{end.name}").outcome in ("truncated", "lost")


def test_a_stream_that_begins_with_an_error_is_tried_again(site: Site) -> None:
    failed = b'data: {"error":{"message":"try later","type":"server_error"}}\n\n'
    site.play(Answer(failed), Answer(STREAM))
    assert site.post("completions", b'{"model":"davinci","prompt":"","stream":true}').body == STREAM
    assert len(site.up.calls) == 2


def test_a_failed_target_is_retried_and_then_replaced(site: Site) -> None:
    broken = Answer(b'{"error":{"message":"down","type":"server_error"}}', status=503, content_type=JSON)
    site.play(broken)
    reply = site.sdk.embeddings.create(model="both", input="x", encoding_format="float")
    assert reply.data[0].embedding == [0.25, -1.5e-3]
    assert (len(site.up.calls), len(site.bare.calls)) == (3, 1)
    assert site.bare.calls[0].json["model"] == "embed-2"


def test_an_empty_reply_is_tried_again(site: Site) -> None:
    site.play(as_json(b""), as_json(EMBEDDINGS))
    assert site.post("embeddings", b'{"model":"embed-1","input":"x"}').body == EMBEDDINGS


def test_an_upstreams_own_error_passes_unchanged(site: Site) -> None:
    error = b'{"error": {"message":"Too long","type":"invalid_request_error","param":"input","code":null}, "x":1}'
    site.play(Answer(error, status=400, content_type=JSON))
    answer = site.post("embeddings", b'{"model":"embed-1","input":"x"}')
    assert (answer.status, answer.body) == (400, error)
    assert len(site.up.calls) == 1
    with pytest.raises(openai.BadRequestError, match="Too long"):
        site.sdk.embeddings.create(model="embed-1", input="x")


def test_a_rejected_credential_is_the_gateways_and_never_shown(site: Site) -> None:
    error = b'{"error":{"message":"Incorrect API key sk-fake-upstream","code":"invalid_api_key"}}'
    site.play(Answer(error, status=401, content_type=JSON))
    answer = site.post("embeddings", b'{"model":"embed-1","input":"x"}')
    assert (answer.status, answer.get("x-should-retry")) == (502, "false")
    assert b"sk-fake-upstream" not in answer.body
    assert b"rejected the gateway's credential" in answer.body


def test_a_secret_in_a_reply_is_redacted(site: Site) -> None:
    site.play(as_json(b'{"data":"sk-fake-upstream"}'))
    assert b"sk-fake-upstream" not in site.post("embeddings", b'{"model":"embed-1","input":"x"}').body


@pytest.mark.parametrize("path", RELAYED_PATHS)
@pytest.mark.parametrize("prefix", ["/v1", "", "/v1/v1"])
def test_every_path_needs_a_key_and_answers_in_openais_shape(site: Site, path: str, prefix: str) -> None:
    answer = post(site.gateway.port, f"{prefix}/{path}", b"{}", "anthropic-version: 2023-06-01", key="wrong")
    assert answer.status == 401
    assert msgspec.json.decode(answer.body)["error"]["code"] == "invalid_api_key"


def test_a_path_that_a_provider_does_not_serve_names_the_setting_to_add(site: Site) -> None:
    site.play(as_json(b"{}"))
    answer = site.post("moderations", b'{"model":"embed-2","input":"x"}')
    assert (answer.status, site.bare.calls) == (404, [])
    error = msgspec.json.decode(answer.body)["error"]
    assert error["code"] == "path_not_served"
    assert 'paths = ["moderations"]' in error["message"]
    assert "'bare'" in error["message"]


def test_a_path_outside_the_table_is_not_served(site: Site) -> None:
    site.play(as_json(b"{}"))
    for path in ("files", "fine_tuning/jobs", "embeddings/more", "audio", "assistants"):
        answer = site.post(path, b'{"model":"embed-1"}')
        assert (answer.status, site.up.calls) == (404, []), path


def test_an_unknown_model_is_404(site: Site) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        site.sdk.embeddings.create(model="embed-9", input="x")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"input":"x"}', "model is missing"),
        (b'{"model":7}', "model must be a non-empty string, got 7"),
        (b'{"model":"embed-1","stream":"yes"}', 'stream must be true or false, got "yes"'),
    ],
)
def test_a_bad_request_names_the_field(site: Site, body: bytes, complaint: str) -> None:
    answer = site.post("embeddings", body)
    assert answer.status == 400
    assert complaint in msgspec.json.decode(answer.body)["error"]["message"]


def test_moderations_without_a_model_go_to_a_provider_that_serves_them(site: Site) -> None:
    verdict = b'{"id":"modr-1","model":"omni-moderation-latest","results":[{"flagged":false}]}'
    site.play(as_json(verdict))
    answer = site.post("moderations", b'{"input":"\\"model\\": nothing"}')
    assert (answer.status, answer.body) == (200, verdict)
    assert site.up.calls[0].body == b'{"input":"\\"model\\": nothing"}'


def test_rerank_counts_a_total(site: Site) -> None:
    site.play(as_json(b'{"results":[{"index":1,"relevance_score":0.9}],"usage":{"total_tokens":15}}'))
    answer = site.post("rerank", b'{"model":"rank-1","query":"q","documents":["a"]}', "x-request-id: rerank-1")
    assert answer.status == 200
    usage = site.gateway.outcome("rerank-1").usage
    assert usage is not None
    assert usage.input == 15


def test_a_long_document_passes_in_pieces_and_is_counted(site: Site) -> None:
    image = b"A" * 3_000_000
    body = b'{"created":1,"data":[{"b64_json":"%b"}],"usage":{"input_tokens":9,"output_tokens":4160}}' % image
    site.play(as_json(body))
    answer = site.post("images/generations", b'{"model":"up/paint","prompt":"x"}', "x-request-id: image-1")
    assert answer.body == body
    usage = site.gateway.outcome("image-1").usage
    assert usage is not None
    assert (usage.input, usage.output) == (9, 4160)


def test_speech_is_bytes_of_audio(site: Site, tmp_path: Path) -> None:
    sound = bytes(range(256)) * 2000
    site.play(Answer(sound, content_type="audio/mpeg", cut=10_000))
    with site.sdk.audio.speech.with_streaming_response.create(model="up/tts", voice="alloy", input="Hi") as reply:
        reply.stream_to_file(tmp_path / "hi.mp3")
    assert (tmp_path / "hi.mp3").read_bytes() == sound
    assert reply.headers["content-type"] == "audio/mpeg"
    assert reply.headers["x-dragoman-route"] == "up/tts"


def test_audio_that_breaks_off_is_no_complete_reply(site: Site) -> None:
    site.play(Answer(b"RIFF" * 1000, content_type="audio/wav", end=End.CUT))
    with pytest.raises(openai.APIConnectionError):
        site.sdk.audio.speech.create(model="up/tts", voice="alloy", input="Hi")


def test_a_chosen_path_may_be_spelled_as_its_url(tmp_path: Path) -> None:
    with FakeUpstream() as up:
        up.answers = [as_json(b"{}")]
        section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{up.url}"\n'
        with running(section + 'paths = "/v1/moderations"\n', tmp_path) as gateway:
            assert post(gateway.port, "/v1/moderations", b'{"model":"up/m"}').status == 200
            assert post(gateway.port, "/v1/embeddings", b'{"model":"up/m"}').status == 200
            gateway.adopt(section + "paths = []\n")
            assert post(gateway.port, "/v1/embeddings", b'{"model":"up/m"}').status == 404
