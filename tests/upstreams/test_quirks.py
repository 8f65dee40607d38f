"""Quirks by server name, in a section of dragoman.toml, and in docs/quirks.md."""

import re
from pathlib import Path
from typing import get_args

import anthropic
import pytest
from anthropic.types import ToolParam

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Quirk, ServerName
from dragoman.upstreams.api_key import SERVERS, expand_quirks
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, provider_section, running

TABLE = Path(__file__).parents[2] / "docs" / "quirks.md"
CHOICES = ", ".join(f'"{name}"' for name in (*get_args(Quirk), *get_args(ServerName)))
COMPATIBLE = '[providers.p]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:1"\n'
REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"{}"},"finish_reason":"stop"}]}'
)


def read_quirks(tmp_path: Path, text: str) -> frozenset[str]:
    (tmp_path / "dragoman.toml").write_text(text)
    return expand_quirks(ConfigSource(None, {}, tmp_path, tmp_path).read().providers["p"].quirks)


def problem_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as failed:
        read_quirks(tmp_path, text)
    (problem,) = failed.value.problems
    return f"{problem.line}: {problem.key}: {problem.message}"


def test_a_server_and_further_quirks_are_named_together(tmp_path: Path) -> None:
    assert read_quirks(tmp_path, COMPATIBLE) == frozenset()
    assert read_quirks(tmp_path, COMPATIBLE + 'quirks = "deepseek"') == {"replay_reasoning", "no_custom_tools"}
    both = read_quirks(tmp_path, COMPATIBLE + 'quirks = ["deepseek", "plain"]')
    assert both == {"replay_reasoning", "no_custom_tools", "plain"}


def test_an_unknown_quirk_is_reported_with_line_and_nearest_spelling(tmp_path: Path) -> None:
    expected = f'4: providers.p.quirks: expected one of {CHOICES}, got "{{}}"; did you mean "{{}}"?'
    assert problem_of(tmp_path, COMPATIBLE + 'quirks = "llama_cpp"') == expected.format("llama_cpp", "llama.cpp")
    misspelt = problem_of(tmp_path, COMPATIBLE + 'quirks = ["plain", "max-tokens"]')
    assert misspelt == expected.format("max-tokens", "max_tokens")


def test_a_vendors_own_service_has_no_quirks_to_set(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, '[providers.p]\nkind = "openai"\nquirks = "plain"')
    assert problem == '3: providers.p.quirks: this key exists only for providers of kind "openai-compatible"; remove it'


def test_only_known_servers_can_be_named() -> None:
    assert set(SERVERS) == set(get_args(ServerName))
    assert frozenset().union(*SERVERS.values()) <= set(get_args(Quirk))


def test_every_quirk_and_server_is_documented() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", TABLE.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [*get_args(Quirk), *get_args(ServerName)]
    documented = {name: frozenset(re.findall(r"`([^`]+)`", row.split("|")[0])) for name, row in rows if name in SERVERS}
    assert documented == SERVERS


def test_the_first_request_already_respects_the_quirks(tmp_path: Path) -> None:
    answer = Answer(REPLY, content_type="application/json")
    local = provider_section("chat", "{}") + 'quirks = "llama-cpp-python"\n'
    with FakeUpstream(choose=lambda _: answer) as fake, running(local.format(fake.url), tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0)
        tool: ToolParam = {"name": "look", "input_schema": {"type": "object"}}
        reply = client.messages.with_raw_response.create(
            model="up/m",
            max_tokens=9,
            messages=[{"role": "user", "content": "Hi"}],
            tools=[tool],
            tool_choice={"type": "any"},
            extra_body={"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            extra_headers={"x-dragoman-explain": "1"},
        )
        (call,) = fake.calls
        assert call.json["max_tokens"] == 9
        assert "max_completion_tokens" not in call.json
        assert call.json["response_format"] == {"type": "json_object", "schema": {"type": "object"}}
        assert call.json["tool_choice"] == {"type": "function", "function": {"name": "look"}}
        assert '"/output_config/format","how":"approximated"' in reply.headers["x-dragoman-loss-detail"]
