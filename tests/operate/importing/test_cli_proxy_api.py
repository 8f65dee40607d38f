"""CLIProxyAPI: its keys become providers."""

from operate.importing.imported import import_fixture, reasons_of, settings_of


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
