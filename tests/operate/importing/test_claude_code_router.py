"""claude-code-router: its routes become names of Claude Code's models."""

from operate.importing.imported import import_fixture, reasons_of, settings_of


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
