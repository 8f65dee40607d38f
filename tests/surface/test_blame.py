"""Whose fault a 403 is: a bad token is the gateway's problem, a missing entitlement is reported as such."""

import json

import pytest

from fakes.upstream import Answer
from rig import PROTOCOLS, Rig, walk
from scripting import JSON
from surface.vendor_events import chunk, sse

TOKENS = [
    ("Invalid API key provided", None),
    ("The token has expired", None),
    ("Your API key was revoked", None),
    ("invalid x-api-key", None),
    ("Bad credentials", None),
    ("unauthorized: token expired", None),
    ("The bearer token included in the request is invalid.", None),
    ("No.", "token_expired"),
    ("No.", "invalid_api_key"),
]
RIGHTS = [
    ("You do not have access to this model", None),
    ("Country, region, or territory not supported", None),
    ("Your organization has been suspended", None),
    ("This key is limited to other models", "permission_denied"),
]

clients = pytest.mark.parametrize("client", PROTOCOLS)


def refusal(upstream: str, message: str, code: str | None) -> Answer:
    kind = "permission_error" if upstream == "messages" else "forbidden"
    error = {"type": "error", "error": {"type": kind, "message": message, "code": code}}
    return Answer(json.dumps(error).encode(), status=403, content_type=JSON)


@pytest.mark.parametrize(("client", "why", "upstream"), walk([PROTOCOLS, TOKENS], [PROTOCOLS]))
def test_a_bad_token_is_the_gateways(gate: Rig, client: str, upstream: str, why: tuple[str, str | None]) -> None:
    message, code = why
    gate.play(upstream, refusal(upstream, message, code))
    answer = gate.ask(client, upstream)
    assert answer.status == 502
    error_message = answer.json["error"]["message"]
    assert f"Provider '{upstream}'" in error_message
    assert "doctor" in error_message


@pytest.mark.parametrize(("client", "why", "upstream"), walk([PROTOCOLS, RIGHTS], [PROTOCOLS]))
def test_a_missing_entitlement_is_a_permission_error(
    gate: Rig, client: str, upstream: str, why: tuple[str, str | None]
) -> None:
    message, code = why
    gate.play(upstream, refusal(upstream, message, code))
    answer = gate.ask(client, upstream)
    assert answer.status == 403
    assert answer.json["error"]["type"] == "permission_error"
    assert f"Provider '{upstream}': {message}" in answer.json["error"]["message"]


@clients
def test_a_credential_refused_inside_a_stream_names_no_status(gate: Rig, client: str) -> None:
    refused = {"error": {"message": "Incorrect API key", "type": "x", "code": "invalid_api_key"}}
    gate.play("chat", Answer(sse(chunk({"role": "assistant"}), refused)))
    answer = gate.ask(client, "chat", stream=True)
    assert answer.status == 502
    assert "None" not in answer.json["error"]["message"]


ODD = {
    "chat": [b'{"error":"no"}', b'{"error":{}}', b'{"message":"no"}', b'{"error":{"message":7}}', b"[]", b"no"],
    "responses": [b'{"detail":"no"}', b'{"error":{"code":5}}', b"", b"null"],
    "messages": [
        b'{"error":{"message":"no","type":"x"}}',
        b'{"type":"error","error":{"message":"no"}}',
        b'{"detail":"no"}',
    ],
}


@pytest.mark.parametrize(
    ("protocol", "body"), [(protocol, body) for protocol, bodies in ODD.items() for body in bodies]
)
def test_an_error_of_another_shape_is_sent_in_the_protocols_own(gate: Rig, protocol: str, body: bytes) -> None:
    gate.play(protocol, Answer(body, status=500, content_type=JSON))
    answer = gate.ask(protocol, protocol)
    assert answer.status == 500
    error = answer.json["error"]
    assert error["message"]
    assert isinstance(error["message"], str)
    assert error["type"] == ("api_error" if protocol == "messages" else "server_error")
    assert (answer.json.get("type") == "error") == (protocol == "messages")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_error_in_its_own_shape_passes_as_it_was_written(gate: Rig, protocol: str) -> None:
    body = b'{ "type":"error", "error":{"extra":[1],"type":"odd_error","message":"no"},"request_id":"req_9" }'
    gate.play(protocol, Answer(body, status=418, content_type=JSON))
    answer = gate.ask(protocol, protocol)
    assert (answer.status, answer.body) == (418, body)
