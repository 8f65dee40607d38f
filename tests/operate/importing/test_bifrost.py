"""Bifrost: keys with one address become one provider."""

from operate.importing.imported import import_fixture, reasons_of, settings_of


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
