"""The context window of a model on a local server reaches /v1/models in every shape that has a place for it."""

from pathlib import Path

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, provider_section, running
from raw_http import get
from wire_json import JsonObject

VLLM = {"data": [{"id": "qwen3", "object": "model", "owned_by": "vllm", "max_model_len": 40960}]}
PLAIN = {"data": [{"id": "plain", "object": "model", "owned_by": "someone"}]}
ROUTES = '[[models]]\nname = "local"\nto = ["vllm/qwen3", "plain/plain"]\n'


def listing(value: object) -> dict[str, Answer]:
    return {"/v1/models": Answer(msgspec.json.encode(value), content_type="application/json")}


def test_windows_of_local_models_are_listed_also_by_configured_names(tmp_path: Path) -> None:
    with FakeUpstream(pages=listing(VLLM)) as vllm, FakeUpstream(pages=listing(PLAIN)) as plain:
        toml = ROUTES + provider_section("chat", vllm.url, "vllm") + provider_section("chat", plain.url, "plain")
        with running(f"{toml}context_window = 8192\n", tmp_path) as gateway:

            def read(path: str, *fields: str) -> JsonObject:
                return msgspec.json.decode(get(gateway.port, path, *fields, key=KEY).body, type=JsonObject)

            codex = read("/v1/models?client_version=1.0.0")
            messages = read("/v1/models", "anthropic-version: 2023-06-01")
            gemini = read("/v1beta/models/local")
    expected = {"local": 40960, "vllm/qwen3": 40960, "qwen3": 40960, "plain/plain": 8192, "plain": 8192}
    assert {model["slug"]: model["context_window"] for model in codex["models"]} == expected
    assert {model["id"]: model["max_input_tokens"] for model in messages["data"]} == expected
    assert gemini["inputTokenLimit"] == 40960


def test_the_window_of_the_section_holds_for_models_of_a_server_without_a_list(tmp_path: Path) -> None:
    with FakeUpstream() as fake:
        named = '[[models]]\nname = "local"\nto = ["up/any"]\n' + provider_section("chat", fake.url, "up")
        with running(f"{named}context_window = 8192\n", tmp_path) as gateway:
            for name in ("local", "up/any"):
                shown = get(gateway.port, f"/v1/models/{name}", "anthropic-version: 2023-06-01", key=KEY)
                assert msgspec.json.decode(shown.body, type=JsonObject)["max_input_tokens"] == 8192


@pytest.mark.parametrize("value", ["0", "-5", '"big"', "1.5", "true"])
def test_a_window_that_is_no_number_of_tokens_is_an_error_with_its_line(tmp_path: Path, value: str) -> None:
    (tmp_path / "dragoman.toml").write_text(f'[providers.up]\nkind = "openai"\ncontext_window = {value}\n')
    with pytest.raises(ConfigError) as raised:
        ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert [(problem.line, problem.key) for problem in raised.value.problems] == [(3, "providers.up.context_window")]
