"""Methods, paths and the headers that go with every answer."""

import anthropic
import openai
import pytest

from asking import make_body
from fakes.upstream import Answer
from gateway import KEY
from rig import PATHS, PROTOCOLS, Rig
from scripting import JSON, write_reply

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)


@clients
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_wrong_method_is_405_and_the_right_one_is_named(gate: Rig, client: str, method: str) -> None:
    answer = gate.send(method, PATHS[client])
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert (answer.json.get("type") == "error") == (client == "messages")


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/v1/models", "/v1/models/x"])
def test_read_only_paths_report_the_allowed_methods(gate: Rig, path: str) -> None:
    answer = gate.send("POST", path, b"{}")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_whatever_can_be_read_has_a_head(gate: Rig) -> None:
    for path in ("/", "/health", "/v1/models"):
        read, head = gate.send("GET", path), gate.send("HEAD", path)
        assert (read.status, head.status, head.body) == (200, 200, b"")
        assert head.headers["content-type"] == read.headers["content-type"]


@clients
def test_a_doubled_slash_is_understood(gate: Rig, client: str) -> None:
    gate.play("chat", write_reply("chat", "Hello", stream=False))
    for path in (f"/{PATHS[client]}", PATHS[client].replace("/v1/", "/v1//"), PATHS[client] + "//"):
        assert gate.send("POST", path, make_body(client, "chat/m", "Hi")).status == 200, path


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/responses/resp_1", "/nothing"])
def test_a_path_that_leads_nowhere_is_no_model(gate: Rig, path: str) -> None:
    answer = gate.send("GET", path)
    assert answer.status == 404
    assert answer.json["error"]["code"] is None


@clients
def test_an_unknown_model_of_an_upstream_is_one(gate: Rig, client: str) -> None:
    gate.play("chat", Answer(b'{"error":{"message":"no such thing"}}', status=404, content_type=JSON))
    answer = gate.ask(client, "chat")
    assert answer.status == 404
    if client == "responses":
        assert answer.json["error"]["code"] == "model_not_found"


@upstreams
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_anthropics_sdk_finds_the_requests_id_where_it_looks(gate: Rig, upstream: str, stream: bool) -> None:
    kind = "text/event-stream" if stream else JSON
    vendor = (("request-id", "req_vendor"), ("x-request-id", "other"))
    body = write_reply(upstream, "Hello").body if stream else write_reply(upstream, "Hello", stream=False).body
    gate.play(upstream, Answer(body, content_type=kind, headers=vendor))
    answer = gate.ask("messages", upstream, stream=stream)
    assert answer.headers["x-request-id"].startswith("req_")
    own = answer.headers["x-request-id"]
    assert answer.headers["request-id"] == ("req_vendor" if upstream == "messages" else own)
    assert "request-id" not in gate.ask("chat", upstream, stream=stream).headers or upstream == "chat"


def test_both_sdks_find_the_request_id_of_an_error(gate: Rig) -> None:
    gate.play("chat", Answer(b"{}", status=400, content_type=JSON))
    sdk = anthropic.Anthropic(api_key=KEY, base_url=gate.gateway.url, max_retries=0)
    with pytest.raises(anthropic.BadRequestError) as anthropic_error:
        sdk.messages.create(model="chat/m", max_tokens=9, messages=[{"role": "user", "content": "x"}])
    assert anthropic_error.value.request_id == anthropic_error.value.response.headers["x-request-id"]
    other = openai.OpenAI(api_key=KEY, base_url=gate.gateway.url + "/v1", max_retries=0)
    with pytest.raises(openai.BadRequestError) as openai_error:
        other.chat.completions.create(model="chat/m", messages=[{"role": "user", "content": "x"}])
    assert openai_error.value.request_id == openai_error.value.response.headers["x-request-id"]
