"""The configuration of another gateway becomes a dragoman.toml, and every field of it is mapped or has a reason."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from dragoman.operate import Conflict, InvalidArgument, NotFound
from dragoman.operate.importing.draft import Draft, Export, Unresolved
from dragoman.operate.importing.plan import ImportPlan, plan_import, write_import
from dragoman.operate.importing.source_values import Report, SourceValue
from dragoman.operate.importing.vendors import cut_operation, find_kind, make_address
from tables import each_row
from wire_json import JsonObject

SECRET = "fake-secret-4711"  # in every value of these files that is a secret
FIXTURES = Path(__file__).parents[2] / "fixtures" / "other_gateways"
FILES = {
    "LiteLLM": "litellm.yaml",
    "claude-code-router": "claude-code-router.json",
    "CLIProxyAPI": "cli-proxy-api.yaml",
    "Bifrost": "bifrost.json",
    "kiro-gateway": "kiro-gateway.env",
}


def import_fixture(gateway: str) -> ImportPlan:
    return plan_import(FIXTURES / FILES[gateway], Path("dragoman.toml"))


def list_leaves(value: object, path: str) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, member in value.items():
                yield from list_leaves(member, f"{path}.{key}".removeprefix("."))
        case list() if value:
            for index, element in enumerate(value):
                yield from list_leaves(element, f"{path}[{index}]")
        case _:
            yield path


def read_fixture(gateway: str) -> object:
    text = (FIXTURES / FILES[gateway]).read_text()
    if FILES[gateway].endswith(".env"):
        return dict(line.split("=", 1) for line in text.splitlines())
    value: object = yaml.safe_load(text)  # JSON is YAML
    return value


def settings_of(plan: ImportPlan) -> JsonObject:
    return msgspec.json.decode(json.dumps(tomllib.loads(plan.text)), type=JsonObject)


def reasons_of(plan: ImportPlan) -> dict[str, str]:
    return {field.path: field.reason for field in plan.fields if not field.setting}


@each_row("gateway", list(FILES))
def test_the_gateway_is_recognised_and_no_secret_leaves_its_file(gateway: str) -> None:
    plan = import_fixture(gateway)
    assert plan.gateway == gateway
    assert SECRET in (FIXTURES / FILES[gateway]).read_text()
    assert SECRET not in str(msgspec.to_builtins(plan))


@each_row("gateway", list(FILES))
def test_each_field_is_mapped_or_has_a_reason(gateway: str) -> None:
    plan = import_fixture(gateway)
    assert all(field.setting or field.reason for field in plan.fields)
    paths = [field.path for field in plan.fields]
    leaves = list(list_leaves(read_fixture(gateway), ""))
    missing = [
        leaf for leaf in leaves if not any(leaf == path or leaf.startswith((f"{path}.", f"{path}[")) for path in paths)
    ]
    assert leaves
    assert missing == []


def test_deployments_of_litellm_become_targets_in_order() -> None:
    plan = import_fixture("LiteLLM")
    settings = settings_of(plan)
    assert settings["providers"] == {
        "fast": {"kind": "azure-openai", "resource": "one", "api_key": "env:AZ"},
        "openai": {"kind": "openai", "api_key": "env:OPENAI_API_KEY"},
        "anthropic": {"kind": "anthropic", "api_key": "env:ANTHROPIC_API_KEY"},
        "own": {
            "kind": "openai-compatible",
            "endpoint": "http://10.0.0.1:8000/v1",
            "headers": {"X-Key": "env:OWN_X_KEY", "X-A": "b"},
        },
        "openrouter": {"kind": "openrouter", "api_key": "env:OPENROUTER_API_KEY"},
        "g": {
            "kind": "gemini",
            "endpoint": "https://us-east1-aiplatform.googleapis.com/v1/projects/p/locations/us-east1/publishers/google",
            "credentials": "adc",
        },
    }
    assert settings["models"] == [
        {"name": "fast", "to": ["fast/my-4o", "openai/gpt-4o"]},
        {"name": "smart", "to": ["anthropic/claude-sonnet-4-5", "fast/my-4o", "openai/gpt-4o"]},
        {"name": "own", "to": ["own/qwen3"]},
        {"name": "g", "to": ["g/gemini-2.5-pro"]},
        {"name": "quick", "to": ["fast/my-4o", "openai/gpt-4o"]},
    ]
    assert settings["retry"] == {"attempts": 4}
    reasons = reasons_of(plan)
    assert reasons["model_list[6]"].startswith('no address is known for "predibase"')
    assert reasons["litellm_settings.fallbacks[0].smart[1]"] == 'there is no model "none"'
    assert reasons["litellm_settings.callbacks[0]"] == "dragoman has no such setting"
    assert Export("DRAGOMAN_API_KEY", "general_settings.master_key") in plan.exports
    assert Export("AZ", "") in plan.exports


def test_routes_of_claude_code_router_become_names_of_claude_code() -> None:
    plan = import_fixture("claude-code-router")
    settings = settings_of(plan)
    assert settings["providers"] == {
        "deepseek": {
            "kind": "deepseek",
            "api_key": "env:DEEPSEEK_API_KEY",
            "models": ["deepseek-chat"],
            "proxy": "env:DEEPSEEK_PROXY",
        },
        "mine": {
            "kind": "openai-compatible",
            "endpoint": "https://llm.example/v1",
            "protocol": "responses",
            "api_key": "env:MINE",
            "models": ["m"],
            "proxy": "env:MINE_PROXY",
        },
        "local": {"kind": "ollama", "api_key": "env:LOCAL_API_KEY", "models": ["q"]},
        "gemini": {"kind": "gemini", "api_key": "env:GKEY", "proxy": "env:GEMINI_PROXY"},
    }
    assert settings["models"] == [
        {"name": "claude-*haiku*", "to": ["local/q"]},
        {"name": "claude-*", "to": ["deepseek/deepseek-chat"]},
    ]
    assert settings["server"] == {"port": 3456, "first_token_timeout_s": 600.0}
    assert {"Router.think", "Router.longContextThreshold", "Providers[0].transformer", "LOG"} <= reasons_of(plan).keys()


def test_keys_of_cli_proxy_api_become_providers() -> None:
    plan = import_fixture("CLIProxyAPI")
    settings = settings_of(plan)
    assert settings["providers"] == {
        "team": {"kind": "gemini", "api_key": "env:GEMINI_API_KEY"},
        "openai": {
            "kind": "openai-compatible",
            "endpoint": "https://codex.example/v1",
            "protocol": "responses",
            "api_key": "env:OPENAI_API_KEY",
            "proxy": "env:OPENAI_PROXY",
        },
        "anthropic": {"kind": "anthropic", "api_key": "env:ANTHROPIC_API_KEY"},
        "openrouter": {"kind": "openrouter", "api_key": ["env:OPENROUTER_API_KEY", "env:OPENROUTER_API_KEY_2"]},
        "kiro": {"kind": "kiro", "credentials": "~/.aws/sso/cache/kiro-auth-token.json"},
    }
    assert settings["models"] == [
        {"name": "flash", "to": ["team/gemini-2.5-flash"]},
        {"name": "kimi", "to": ["openrouter/moonshotai/kimi-k2:free"]},
    ]
    left_out = {"host", "api-keys[1]", "auth-dir", "remote-management", "proxy-url", "openai-compatibility[1]"}
    assert left_out <= reasons_of(plan).keys()


def test_keys_of_bifrost_with_one_address_are_one_provider() -> None:
    plan = import_fixture("Bifrost")
    settings = settings_of(plan)
    assert settings["providers"] == {
        "openai": {
            "kind": "openai",
            "api_key": ["env:OPENAI_API_KEY", "env:OPENAI_API_KEY_2"],
            "headers": {"X-A": "b"},
        },
        "azure": {
            "kind": "azure-openai",
            "resource": "one",
            "api_key": "env:AZURE_OPENAI_API_KEY",
            "models": ["my-gpt"],
        },
        "azure-2": {"kind": "azure-openai", "resource": "two", "api_key": "env:AZURE_OPENAI_API_KEY_2"},
        "vertex": {
            "kind": "gemini",
            "endpoint": "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google",
            "credentials": "adc",
        },
        "mine": {"kind": "openai-compatible", "endpoint": "https://llm.example/v1", "api_key": "env:MINE_API_KEY"},
        "ollama": {"kind": "ollama"},
    }
    assert settings["models"] == [{"name": "gpt", "to": ["azure/my-gpt"]}]
    reasons = reasons_of(plan)
    assert "$NOT_SET_HERE, which is not set here" in reasons["providers.azure.keys[2]"]
    assert {"$schema", "governance", "providers.elevenlabs.keys[0]", "client.enable_logging"} <= reasons.keys()


def test_variables_of_kiro_gateway_become_settings_of_kiro() -> None:
    plan = import_fixture("kiro-gateway")
    assert settings_of(plan) == {
        "providers": {
            "kiro": {
                "kind": "kiro",
                "credentials": "env:REFRESH_TOKEN",
                "profile_arn": "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABC",
                "region": "eu-central-1",
                "first_token_timeout_s": 20,
                "thinking_by": "off",
                "repair_truncation": True,
            }
        },
        "server": {"port": 8001},
        "retry": {"attempts": 4},
        "debug": {"capture": "errors"},
        "tools": {"web_search": {"backend": "off"}},
    }
    reasons = reasons_of(plan)
    assert reasons["VPN_PROXY_URL"].startswith("SOCKS4 is not supported"), "what is not valid here is left out"
    assert reasons["SOMETHING_ELSE"] == "dragoman has no such setting"


@each_row(
    ("name", "text", "message"),
    [
        ("config.yaml", "a: [", "is not valid YAML, line 1"),
        ("config.json", "{", "is not valid JSON"),
        ("config.yaml", "- 1", "is not a configuration of LiteLLM"),
        ("config.yaml", "services: {}", "is not a configuration of LiteLLM"),
    ],
)
def test_what_is_no_configuration_is_refused(
    name: str, text: str, message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    (folder / name).write_text(text)
    with pytest.raises(InvalidArgument, match=message):
        plan_import(folder / name, folder / "dragoman.toml")


def test_a_folder_must_have_exactly_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no"):
        plan_import(tmp_path / "none", tmp_path)
    with pytest.raises(NotFound, match="has none of"):
        plan_import(tmp_path, tmp_path)
    for name in ("config.yaml", ".env"):
        (tmp_path / name).write_text("x: y")
    with pytest.raises(InvalidArgument, match=r"config\.yaml and .*\.env"):
        plan_import(tmp_path, tmp_path)


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "dragoman.toml"
    target.write_text("# mine\n")
    with pytest.raises(Conflict, match="exists already"):
        write_import(plan_import(FIXTURES / "litellm.yaml", target))
    assert target.read_text() == "# mine\n"


def test_equal_secrets_share_a_variable_and_names_of_providers_are_unique() -> None:
    draft = Draft({"SET": "x"})
    report = Report()
    first, same, other = (SourceValue(text, report, (text,)) for text in ("a-secret", "a-secret", "b-secret"))
    assert [draft.take_secret(value, "KEY") for value in (first, same, other)] == ["env:KEY", "env:KEY", "env:KEY_2"]
    assert draft.take_secret(first, "1 key") == "env:KEY_1_KEY"
    assert draft.add_provider("claude-code", {"kind": "a"}) == "claude-code-2"
    assert [draft.add_provider("a b", {"kind": kind}) for kind in "xyx"] == ["a-b", "a-b-2", "a-b"]
    assert draft.read_value(SourceValue("$SET", report)) == "x"
    with pytest.raises(Unresolved, match=r"\$GONE"):
        draft.read_value(SourceValue("env.GONE", report, ("endpoint",)))


def test_an_address_identifies_the_vendor() -> None:
    assert cut_operation("https://llm.example/v1/messages/") == ("https://llm.example/v1", "messages")
    assert make_address("", "https://api.openai.com/v1") == {"kind": "openai"}
    assert make_address("anthropic", "https://claude.example") == {
        "kind": "anthropic",
        "endpoint": "https://claude.example/v1",
    }
    assert (find_kind("together_ai"), find_kind("groq"), find_kind("predibase")) == ("together", "groq", "")


def test_references_that_make_very_many_fields_are_refused(tmp_path: Path) -> None:
    source = (FIXTURES / FILES["LiteLLM"]).read_text() + "\nmany0: &a0 [1, 2]\n"
    for number in range(1, 20):
        source += f"many{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n"
    path = tmp_path / "config.yaml"
    path.write_text(source)
    with pytest.raises(InvalidArgument, match="more than 100000 fields"):
        plan_import(path, tmp_path / "dragoman.toml")


def test_a_number_that_is_not_finite_is_none() -> None:
    assert [SourceValue(text, Report()).number() for text in ("inf", "nan", "1e999", "2")] == [None, None, None, 2]
