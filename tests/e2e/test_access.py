"""Which requests are accepted and how others are refused: keys, hosts, origins, paths and unknown models."""

from collections.abc import Iterator
from urllib.parse import quote

import msgspec
import pytest

from asking import make_body
from e2e.cases import request_for
from e2e.faults import assert_error
from gateway import KEY
from raw_http import ask, get, post
from rig import PATHS, PROTOCOLS, Rig, run_rig
from sdk_replies import WHOLE, Sdk

BODIES = {client: msgspec.json.encode(make_body(client, "messages/m")) for client in PROTOCOLS}
WAYS = {
    "bearer": ("", f"authorization: Bearer {KEY}"),
    "bearer in lower case": ("", f"authorization: bearer {KEY}"),
    "x-api-key": ("", f"x-api-key: {KEY}"),
    "api-key": ("", f"api-key: {KEY}"),
    "x-goog-api-key": ("", f"x-goog-api-key: {KEY}"),
    "query": (f"?key={quote(KEY)}", "x-nothing: 1"),
}

clients = pytest.mark.parametrize("client", PROTOCOLS)


def script_text(rig: Rig) -> None:
    rig.play("messages", "The reply.", stream=False)


def error_of(client: str, body: bytes) -> dict[str, object]:
    answer = msgspec.json.decode(body)
    if client == "messages":
        assert answer["type"] == "error"
    error = answer["error"]
    assert isinstance(error, dict)
    return error


@clients
@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_accepted_however_it_is_presented(rig: Rig, client: str, way: str) -> None:
    script_text(rig)
    query, field = WAYS[way]
    answer = post(rig.gateway.port, PATHS[client] + query, BODIES[client], field, key=None)
    assert answer.status == 200, answer.body
    call = rig.fakes["messages"].calls[-1]
    assert call.headers["x-api-key"] == "sk-fake-upstream"
    assert KEY not in f"{call.path} {call.headers} {call.body!r}"


@clients
def test_a_wrong_key_is_an_authentication_error(rig: Rig, client: str) -> None:
    script_text(rig)
    sdk = Sdk(rig.gateway.url, "dgm_fake-wrong-key")
    with pytest.raises(Exception) as raised:  # noqa: PT011
        WHOLE[client](sdk, request_for(client, "messages/m"))
    sdk.close()
    assert_error(client, raised.value, 401)
    assert "dgm_fake-wrong-key" not in str(raised.value)
    assert rig.fakes["messages"].calls == []


@clients
@pytest.mark.parametrize("field", ["x-nothing: 1", "authorization: Basic YTpi", "authorization: Bearer", "x-api-key:"])
def test_a_missing_key_is_refused_in_the_protocols_shape(rig: Rig, client: str, field: str) -> None:
    answer = post(rig.gateway.port, PATHS[client], BODIES[client], field, key=None)
    assert answer.status == 401
    error = error_of(client, answer.body)
    assert "key" in str(error["message"])
    assert error["type"] == ("authentication_error" if client == "messages" else "invalid_request_error")


@clients
def test_an_unknown_model_is_not_found_and_similar_names_are_suggested(listing: Rig, client: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        WHOLE[client](listing.sdk, request_for(client, "vendor-modle"))
    assert_error(client, raised.value, 404)
    assert "'vendor-modle'" in str(raised.value)
    assert "Nearest names: " in str(raised.value)
    assert "vendor-model" in str(raised.value)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("listing"), models=("vendor-model", "vendor-mini")) as shared:
        yield shared


def test_both_sdks_list_the_same_models(listing: Rig) -> None:
    openai_names = [model.id for model in listing.sdk.openai.models.list()]
    anthropic_names = [model.id for model in listing.sdk.anthropic.models.list()]
    assert openai_names == anthropic_names
    assert {"chat/vendor-model", "responses/vendor-mini", "messages/vendor-model"} <= set(openai_names)
    assert listing.sdk.openai.models.retrieve("chat/vendor-mini").id == "chat/vendor-mini"
    assert listing.sdk.anthropic.models.retrieve("messages/vendor-mini").id == "messages/vendor-mini"


@clients
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8484", ""])
def test_another_host_is_misdirected(rig: Rig, client: str, host: str) -> None:
    script_text(rig)
    body = BODIES[client]
    head = (
        f"POST {PATHS[client]} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}"
    )

    answer = ask(rig.gateway.port, head.encode() + b"\r\n\r\n" + body)
    assert answer.status == (421 if host else 400), answer.body
    assert rig.fakes["messages"].calls == []


@clients
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
def test_another_origin_is_forbidden(rig: Rig, client: str, origin: str) -> None:
    script_text(rig)
    answer = post(rig.gateway.port, PATHS[client], BODIES[client], f"origin: {origin}")
    assert answer.status == 403
    error_of(client, answer.body)
    assert rig.fakes["messages"].calls == []


@clients
def test_a_page_of_this_machine_may_send_requests(rig: Rig, client: str) -> None:
    script_text(rig)
    answer = post(rig.gateway.port, PATHS[client], BODIES[client], "origin: http://localhost:3000")
    assert answer.status == 200
    assert answer.get("access-control-allow-origin") is None


@clients
@pytest.mark.parametrize("prefix", ["", "/v1", "/v1/v1"])
def test_the_version_in_a_path_may_be_missing_or_doubled(rig: Rig, client: str, prefix: str) -> None:
    script_text(rig)
    path = prefix + PATHS[client].removeprefix("/v1")
    assert post(rig.gateway.port, path, BODIES[client]).status == 200


@pytest.mark.parametrize("path", ["/", "/api/hello"])
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_a_head_request_without_a_key_is_answered(rig: Rig, path: str, accept: str) -> None:
    answer = get(rig.gateway.port, path, f"accept: {accept}", method="HEAD")
    assert answer.status == 200
    assert answer.get("x-request-id")


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/v1/responses"])
def test_a_websocket_upgrade_is_answered_with_a_hint_to_use_http(rig: Rig, path: str) -> None:
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: ZmFrZQ==")
    answer = get(rig.gateway.port, path, *upgrade, key=KEY)
    assert answer.status == 426
    assert error_of("responses", answer.body)["code"] == "upgrade_required"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/", "invalid_request_error"),
        ("/health", "invalid_request_error"),
        ("/v1/models", "invalid_request_error"),
        ("/v1/chat/completions", "invalid_request_error"),
        ("/v1/messages", '"request_id"'),
        ("/v1beta/models/m:streamGenerateContent", "INVALID_ARGUMENT"),
    ],
)
def test_a_websocket_upgrade_on_another_path_is_426_in_the_protocol_of_the_path(
    rig: Rig, path: str, named: str
) -> None:
    answer = get(rig.gateway.port, path, "connection: upgrade", "upgrade: WebSocket", key=KEY)
    assert answer.status == 426
    assert answer.get("x-request-id")
    assert named in answer.body.decode()


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/v1/models/echo"])
def test_an_upgrade_to_another_protocol_than_websocket_is_ignored(rig: Rig, path: str) -> None:
    http2 = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")
    plain = get(rig.gateway.port, path, key=KEY)
    assert get(rig.gateway.port, path, *http2, key=KEY).status == plain.status != 426


def test_a_request_id_of_the_client_is_kept_and_a_strange_one_is_replaced(rig: Rig) -> None:
    assert get(rig.gateway.port, "/health", "x-request-id: abc-1").get("x-request-id") == "abc-1"
    strange = get(rig.gateway.port, "/health", "x-request-id: a b").get("x-request-id")
    assert strange is not None
    assert strange.startswith("req_")


@clients
def test_not_found_has_the_protocols_error_shape(rig: Rig, client: str) -> None:
    version = ("anthropic-version: 2023-06-01",) if client == "messages" else ()
    answer = post(rig.gateway.port, "/v1/nothing", b"{}", *version)
    assert answer.status == 404
    error_of(client, answer.body)
