"""The Gemini API with a key, and Vertex AI with a token from each of its sources."""

import json
import sys
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from dragoman.upstreams.credentials.credential import CredentialError
from dragoman.upstreams.gemini.credential import NO_CRYPTOGRAPHY, GoogleToken, sign_assertion
from fakes.google import LIST, METADATA, TOKEN, VERTEX, FakeGoogle, write_user_file
from gateway import KEY, Running, running
from raw_http import Answered, get, post
from wire_json import JsonObject

CHAT = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}'
GENERATE = "/models/gemini-3.5-flash:generateContent"


@pytest.fixture
def google() -> Iterator[FakeGoogle]:
    with FakeGoogle() as fake:
        yield fake


def ask(gateway: Running, model: str = "vertex/gemini-3.5-flash") -> Answered:
    return post(gateway.port, "/v1/chat/completions", CHAT % model.encode())


def api_section(google: FakeGoogle) -> str:
    return f'[providers.gemini]\nkind = "gemini"\nendpoint = "{google.root}"\napi_key = "AIza-fake"\n'


# The Gemini API


def test_the_key_is_sent_in_googles_header_alone(google: FakeGoogle, tmp_path: Path) -> None:
    with running(api_section(google), tmp_path) as gateway:
        assert ask(gateway, "gemini/gemini-3.5-flash").status == 200
    [request] = google.at("/v1beta" + GENERATE)
    assert request.headers["x-goog-api-key"] == "AIza-fake"
    assert "authorization" not in request.headers
    assert "?" not in request.path


def test_models_are_listed_over_all_pages_with_their_limits(google: FakeGoogle, tmp_path: Path) -> None:
    with running(api_section(google), tmp_path) as gateway:
        answer = get(gateway.port, "/v1/models", f"x-goog-api-key: {KEY}")
    listed = msgspec.json.decode(answer.body)["models"]
    by_name = {model["name"]: model for model in listed}
    flash = by_name["models/gemini/gemini-3.5-flash"]
    assert (flash["inputTokenLimit"], flash["outputTokenLimit"]) == (1_048_576, 65_536)
    assert "models/gemini/gemini-2.5-pro" in by_name
    assert not any("embedding" in name for name in by_name)
    assert google.counts[LIST] == 2


def test_a_key_that_google_rejects_is_ours_not_the_clients(google: FakeGoogle, tmp_path: Path) -> None:
    google.valid.clear()
    with running(api_section(google), tmp_path) as gateway:
        answer = ask(gateway, "gemini/gemini-3.5-flash")
    assert answer.status == 502
    assert b"AIza-fake" not in answer.body


@pytest.mark.parametrize(("settings", "budget"), [("", 24_576), ("[effort]\nhigh = 9000\n", 9000)])
def test_a_configured_budget_replaces_the_models_own(
    google: FakeGoogle, tmp_path: Path, settings: str, budget: int
) -> None:
    user = [{"role": "user", "content": "Hi"}]
    body = {"model": "gemini/gemini-2.5-flash", "messages": user, "reasoning_effort": "high"}
    with running(settings + api_section(google), tmp_path) as gateway:
        assert post(gateway.port, "/v1/chat/completions", msgspec.json.encode(body)).status == 200
    [request] = google.at("/v1beta/models/gemini-2.5-flash:generateContent")
    assert request.json["generationConfig"]["thinkingConfig"] == {"thinkingBudget": budget, "includeThoughts": True}


@pytest.mark.parametrize("vertex", [False, True])
def test_a_messages_client_gets_googles_count(google: FakeGoogle, tmp_path: Path, vertex: bool) -> None:
    section = google.section(str(write_user_file(tmp_path / "adc.json"))) if vertex else api_section(google)
    model = "vertex/gemini-3.5-flash" if vertex else "gemini/gemini-3.5-flash"
    request = {"model": model, "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}
    with running(section, tmp_path) as gateway:
        answer = post(gateway.port, "/v1/messages/count_tokens", msgspec.json.encode(request))
    assert (answer.status, msgspec.json.decode(answer.body)) == (200, {"input_tokens": 7})
    assert answer.get("x-dragoman-estimate") is None
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    plain = {"contents": contents, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    whole = {"generateContentRequest": {"model": "models/gemini-3.5-flash", **plain}}
    [received] = google.at((VERTEX if vertex else "/v1beta") + "/models/gemini-3.5-flash:countTokens")
    assert received.json == (plain if vertex else whole)


# Vertex AI


def test_a_users_file_is_exchanged_once_for_many_requests(google: FakeGoogle, tmp_path: Path) -> None:
    file = write_user_file(tmp_path / "adc.json", quota_project_id="billed")
    before = file.read_bytes()
    with running(google.section(str(file)), tmp_path) as gateway:
        assert [ask(gateway).status for _ in range(3)] == [200, 200, 200]
    form = parse_qs(google.at(TOKEN)[0].body.decode())
    assert form == {
        "client_id": ["id"],
        "client_secret": ["shh"],
        "grant_type": ["refresh_token"],
        "refresh_token": ["1//refresh"],
    }
    assert google.counts[TOKEN] == 1
    request = google.at(VERTEX + GENERATE)[-1]
    assert request.headers["authorization"] == f"Bearer {google.issued[0]}"
    assert request.headers["x-goog-user-project"] == "billed"
    assert "x-goog-api-key" not in request.headers
    assert file.read_bytes() == before


def test_a_rejected_token_is_renewed_once(google: FakeGoogle, tmp_path: Path) -> None:
    with running(google.section(str(write_user_file(tmp_path / "adc.json"))), tmp_path) as gateway:
        assert ask(gateway).status == 200
        google.valid.clear()
        assert ask(gateway).status == 200
    assert len(google.issued) == 2


def test_a_login_that_has_ended_names_the_next_step(google: FakeGoogle, tmp_path: Path) -> None:
    google.refuses = "invalid_grant"
    with running(google.section(str(write_user_file(tmp_path / "adc.json"))), tmp_path) as gateway:
        answer = ask(gateway)
    assert answer.status == 502
    assert b"gcloud auth application-default login" in answer.body
    assert b"1//refresh" not in answer.body


@pytest.mark.parametrize("text", ["", "{", '{"type":"external_account"}', '{"type":"authorized_user"}'])
def test_a_file_that_cannot_be_used_is_named(google: FakeGoogle, tmp_path: Path, text: str) -> None:
    file = tmp_path / "adc.json"
    file.write_text(text)
    with running(google.section(str(file)), tmp_path) as gateway:
        answer = ask(gateway)
    assert answer.status == 502
    assert str(file).encode() in answer.body


def test_the_default_is_what_googles_libraries_use(google: FakeGoogle, tmp_path: Path) -> None:
    environ = {"GCE_METADATA_HOST": f"127.0.0.1:{google.port}", "CLOUDSDK_CONFIG": str(tmp_path)}
    section = google.section("adc")
    with running(section, tmp_path, environ) as gateway:
        assert ask(gateway).status == 200
    assert (google.counts[METADATA], google.counts[TOKEN]) == (1, 0)
    assert google.at(METADATA)[0].headers["metadata-flavor"] == "Google"
    write_user_file(tmp_path / "application_default_credentials.json")
    with running(section.replace('credentials = "adc"\n', ""), tmp_path, environ) as gateway:
        assert ask(gateway).status == 200
    assert (google.counts[METADATA], google.counts[TOKEN]) == (1, 1)


def test_a_command_prints_the_token(google: FakeGoogle, tmp_path: Path) -> None:
    google.valid.add("ya29.from-command")
    command = f"command:{sys.executable} -c \"print('ya29.from-command')\""
    with running(google.section(command), tmp_path) as gateway:
        assert ask(gateway).status == 200
    assert google.at(VERTEX + GENERATE)[0].headers["authorization"] == "Bearer ya29.from-command"


@pytest.mark.parametrize("command", ["no-such-program-here", f"{sys.executable} -c 'import sys; sys.exit(3)'", "'"])
def test_a_command_without_a_token_is_reported_without_its_output(
    google: FakeGoogle, tmp_path: Path, command: str
) -> None:
    with running(google.section(f"command:{command}"), tmp_path) as gateway:
        answer = ask(gateway)
    assert answer.status == 502
    assert b"command" in answer.body


def test_vertex_gets_no_field_that_only_the_gemini_api_has(google: FakeGoogle, tmp_path: Path) -> None:
    file = write_user_file(tmp_path / "adc.json")
    tools: list[JsonObject] = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}},
    ]
    body = {
        "model": "vertex/gemini-3.5-flash",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": tools,
    }
    with running(google.section(str(file)), tmp_path) as gateway:
        assert post(gateway.port, "/v1/messages", msgspec.json.encode(body)).status == 200
    sent = google.at(VERTEX + GENERATE)[0].json
    assert "toolConfig" not in sent
    assert [list(entry) for entry in sent["tools"]] == [["functionDeclarations"]]


# Service accounts


def test_a_service_account_signs_its_request_for_a_token(google: FakeGoogle, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = tmp_path / "service.json"
    account = {"type": "service_account", "client_email": "a@p.example", "private_key": pem, "private_key_id": "k1"}
    file.write_text(json.dumps(account))
    with running(google.section(str(file)), tmp_path) as gateway:
        assert ask(gateway).status == 200
    form = parse_qs(google.at(TOKEN)[0].body.decode())
    head, claims, signature = form["assertion"][0].split(".")
    key.public_key().verify(_decode(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    assert msgspec.json.decode(_decode(head)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    decoded = msgspec.json.decode(_decode(claims))
    assert (decoded["iss"], decoded["aud"]) == ("a@p.example", f"{google.root}{TOKEN}")
    assert decoded["exp"] - decoded["iat"] == 3600


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(CredentialError) as missing:
        sign_assertion(GoogleToken(method="service_account", email="a", private_key="key", refresh_token="k"), "aud", 1)
    assert str(missing.value) == NO_CRYPTOGRAPHY


def test_a_key_that_is_no_key_is_reported() -> None:
    with pytest.raises(CredentialError, match="cannot be read"):
        sign_assertion(
            GoogleToken(method="service_account", email="a", private_key="not a key", refresh_token="k"), "aud", 1
        )
