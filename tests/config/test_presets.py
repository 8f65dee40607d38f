"""Presets: the data of every vendor, sections that name one, and keys in the environment."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.presets import PLACE, Preset, load_presets
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config
from dragoman.net.client import HttpClient
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams import KINDS, Surroundings
from tables import each_row

PRESETS = load_presets()
LOCAL = {"ollama", "lmstudio", "vllm", "llamacpp"}


def environment_of(preset: Preset) -> dict[str, str]:
    """The variables with which a user of the vendor has nothing else to set."""
    variables = {parameter.variables[0]: f"my-{parameter.name}" for parameter in preset.parameters}
    return variables | dict.fromkeys(preset.keys[:1], "sk-fake-vendor-key")


def read(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    (tmp_path / "dragoman.toml").write_text(text)
    return ConfigSource(None, environ or {}, tmp_path, tmp_path).read()


def problem_of(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as failed:
        read(tmp_path, text, environ)
    (problem,) = failed.value.problems
    return f"{problem.key}: {problem.message}"


@each_row("name", PRESETS)
def test_the_data_of_a_vendor_is_well_formed(name: str) -> None:
    preset = PRESETS[name]
    addresses = [preset.endpoint, *preset.endpoints.values(), *filter(None, [preset.models_endpoint])]
    for address in addresses:
        parts = urlsplit(PLACE.sub("x", address))
        assert parts.scheme == ("http" if name in LOCAL else "https")
        assert parts.hostname
        assert not parts.query
        assert not address.endswith("/")
    places = {place for text in (*addresses, *preset.headers.values()) for place in PLACE.findall(text)}
    assert places == {parameter.name for parameter in preset.parameters}
    assert bool(preset.keys) == (name not in LOCAL)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", key) for key in preset.keys)
    assert preset.protocols
    assert len(set(preset.protocols)) == len(preset.protocols)
    assert all(PROTOCOLS[protocol].upstream is not None for protocol in preset.protocols)
    assert set(preset.endpoints) < set(preset.protocols)
    assert urlsplit(preset.docs).scheme == "https"


@pytest.mark.parametrize("name", PRESETS)
def test_a_section_needs_only_the_vendors_name(tmp_path: Path, name: str) -> None:
    preset, environ = PRESETS[name], environment_of(PRESETS[name])
    provider = read(tmp_path, f'[providers.mine]\nkind = "{name}"\n', environ).providers["mine"]
    assert (provider.kind, provider.preset, provider.protocols) == (preset.kind, name, preset.protocols)
    values = {parameter.name: environ[parameter.variables[0]] for parameter in preset.parameters}
    assert provider.endpoint == preset.endpoint.format(**values)
    assert provider.endpoints == {protocol: url.format(**values) for protocol, url in preset.endpoints.items()}
    assert str(provider.api_key) == (f"env:{preset.keys[0]}" if preset.keys else "None")


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.keys])
def test_a_key_in_the_environment_makes_the_vendor_appear_if_it_is_only_for_models(tmp_path: Path, name: str) -> None:
    found = ConfigSource(None, environment_of(PRESETS[name]), tmp_path, tmp_path).read().providers
    assert (name in found) == PRESETS[name].found_by_key
    if name in found:
        assert found[name].preset == name


def test_no_two_vendors_appear_for_one_key_except_where_they_have_different_models() -> None:
    owners: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        for key in preset.keys if preset.found_by_key else ():
            owners.setdefault(key, []).append(name)
    assert {key: names for key, names in owners.items() if len(names) > 1} == {
        "AWS_BEARER_TOKEN_BEDROCK": ["bedrock", "bedrock-claude"]
    }


@pytest.mark.parametrize("value", ["", "your-key-here", "dgm_abc", "sk-fake-mine"])
def test_a_key_that_is_no_vendors_key_makes_nothing_appear(tmp_path: Path, value: str) -> None:
    environ = {"GROQ_API_KEY": value, "DRAGOMAN_API_KEY": "sk-fake-mine"}
    assert list(ConfigSource(None, environ, tmp_path, tmp_path).read().providers) == ["echo"]


def test_the_section_overrides_every_value_of_the_preset(tmp_path: Path) -> None:
    text = (
        '[providers.ds]\nkind = "deepseek"\napi_key = "file:/k"\nprotocol = "messages"\nquirks = []\n'
        'endpoints = { messages = "https://proxy.example/anthropic" }\n'
    )
    provider = read(tmp_path, text).providers["ds"]
    assert (str(provider.api_key), provider.protocols, provider.quirks) == ("file:/k", ("messages",), ())
    assert provider.endpoints == {"messages": "https://proxy.example/anthropic/v1"}
    assert provider.endpoint == "https://api.deepseek.com/v1"


def test_with_an_address_of_its_own_only_the_protocols_there_are_used(tmp_path: Path) -> None:
    text = '[providers.ds]\nkind = "deepseek"\nendpoint = "http://127.0.0.1:9"\n'
    provider = read(tmp_path, text).providers["ds"]
    assert (provider.endpoint, provider.protocols, provider.endpoints) == ("http://127.0.0.1:9/v1", ("chat",), {})
    text = '[providers.gh]\nkind = "github-models"\nendpoint = "http://127.0.0.1:9/inference"\n'
    provider = read(tmp_path, text).providers["gh"]
    assert (provider.endpoint, provider.models_endpoint) == ("http://127.0.0.1:9/inference", None)


def test_a_parameter_is_a_key_of_the_section_or_a_variable(tmp_path: Path) -> None:
    section = '[providers.az]\nkind = "azure-openai"\n'
    own = read(tmp_path, section + 'resource = "acme"\n', {"AZURE_RESOURCE_NAME": "other"}).providers["az"]
    assert own.endpoint == "https://acme.openai.azure.com/openai/v1"
    found = read(tmp_path, section, {"AZURE_OPENAI_ENDPOINT": "https://acme2.openai.azure.com/"}).providers["az"]
    assert found.endpoint == "https://acme2.openai.azure.com/openai/v1"
    missing = problem_of(tmp_path, section)
    assert missing.startswith('providers.az: "resource" is missing; set it here, or set $AZURE_OPENAI_RESOURCE or $')
    wrong = problem_of(tmp_path, section + "resource = 7\n")
    assert wrong == "providers.az.resource: expected a string that is not empty"


def test_a_header_of_the_vendor_is_filled_in(tmp_path: Path) -> None:
    text = '[providers.aws]\nkind = "claude-aws"\nregion = "eu-west-1"\nworkspace = "wrkspc_1"\n'
    provider = read(tmp_path, text).providers["aws"]
    assert provider.endpoint == "https://aws-external-anthropic.eu-west-1.api.aws/v1"
    assert {name: source.text for name, source in provider.headers.items()} == {"anthropic-workspace-id": "wrkspc_1"}


def test_a_section_may_say_that_its_upstream_runs_no_tools(tmp_path: Path) -> None:
    text = '[providers.a]\nkind = "bedrock-claude"\nhosted_tools = false\n[providers.b]\nkind = "anthropic"\n'
    sections = read(tmp_path, text).providers
    hosted = {
        name: KINDS[section.kind](section, Surroundings(HttpClient().send, {})).requests.hosted_tools
        for name, section in sections.items()
    }
    assert hosted == {"a": frozenset(), "b": frozenset({"web_search", "web_fetch"})}


def test_a_misspelt_vendor_is_reported_with_the_right_spelling(tmp_path: Path) -> None:
    assert problem_of(tmp_path, '[providers.p]\nkind = "open-router"\n').endswith('; did you mean "openrouter"?')


def test_values_of_a_preset_have_it_as_their_origin(tmp_path: Path) -> None:
    origins = read(tmp_path, '[providers.p]\nkind = "openrouter"\n').origins
    assert origins["providers.p.endpoint"] == "preset openrouter"
    assert origins["providers.p.kind"].endswith("dragoman.toml:2")


PAGE = Path(__file__).parent.parent.parent / "docs" / "providers.md"
MARK = "<!-- presets: written by tests/config/test_presets.py with DRAGOMAN_WRITE_PAGES=1 -->\n"


def render_table() -> str:
    rows = ["| kind | vendor | key variable | by key | protocols | parameters | note |", "|-|-|-|-|-|-|-|"]
    for name, preset in PRESETS.items():
        parameters = ", ".join(
            f"`{parameter.name}` ({', '.join(f'`{variable}`' for variable in parameter.variables)})"
            for parameter in preset.parameters
        )
        cells = [
            f"`{name}`",
            f"[{preset.title}]({preset.docs})",
            ", ".join(f"`{key}`" for key in preset.keys) or "–",
            "yes" if preset.keys and preset.found_by_key else "no",
            ", ".join(preset.protocols),
            parameters or "–",
            preset.note or "–",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def test_the_page_lists_every_preset() -> None:
    head = PAGE.read_text().partition(MARK)[0]
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(f"{head}{MARK}\n{render_table()}")
    assert PAGE.read_text() == f"{head}{MARK}\n{render_table()}"
