"""kiro-gateway: its variables become settings of Kiro."""

from operate.importing.imported import import_fixture, reasons_of, settings_of


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
