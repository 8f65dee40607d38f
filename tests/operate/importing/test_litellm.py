"""LiteLLM's proxy: deployments become targets."""

from pathlib import Path

from dragoman.operate.importing.draft import Export
from dragoman.operate.importing.plan import plan_import
from operate.importing.imported import import_fixture, reasons_of, settings_of


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


def test_an_organization_is_sent_beside_the_other_headers(tmp_path: Path) -> None:
    params = "{model: openai/m, organization: org-1, extra_headers: {X-A: b}}"
    (tmp_path / "config.yaml").write_text(f"model_list: [{{model_name: m, litellm_params: {params}}}]\n")
    settings = settings_of(plan_import(tmp_path / "config.yaml", tmp_path / "dragoman.toml"))
    assert settings["providers"] == {
        "openai": {"kind": "openai", "headers": {"X-A": "b", "OpenAI-Organization": "org-1"}}
    }
