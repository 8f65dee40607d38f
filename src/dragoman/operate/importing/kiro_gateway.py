"""kiro-gateway and its relatives: a `.env` file."""

from dragoman.config.environment import KIRO_NAMES
from dragoman.operate.importing.draft import Draft, Section
from dragoman.operate.importing.source_values import SourceValue

CREDENTIALS = ("KIRO_CREDS_FILE", "KIRO_CLI_DB_FILE", "REFRESH_TOKEN", "KIRO_API_KEY")
MARKS = frozenset({*CREDENTIALS, *KIRO_NAMES, "PROXY_API_KEY"})
SETTINGS = {**KIRO_NAMES, "KIRO_API_REGION": "region", "FIRST_TOKEN_TIMEOUT": "first_token_timeout_s"}
TEXTS = frozenset({"profile_arn", "region"})
# Sections and keys of settings that are not Kiro's.
GENERAL = {
    "SERVER_HOST": ("server", "host"),
    "HOST": ("server", "host"),
    "SERVER_PORT": ("server", "port"),
    "PORT": ("server", "port"),
    "MAX_RETRIES": ("retry", "attempts"),
    "BASE_RETRY_DELAY": ("retry", "base_s"),
    "STREAMING_READ_TIMEOUT": ("server", "idle_timeout_s"),
    "DEBUG_MODE": ("debug", "capture"),
    "DEBUG_DIR": ("debug", "directory"),
}
CAPTURES = frozenset({"off", "errors", "all"})
THINKING = {
    "as_reasoning_content": "as_reasoning",
    "as_reasoning": "as_reasoning",
    "remove": "remove",
    "pass": "pass",
    "strip_tags": "strip_tags",
}
ON = frozenset({"true", "1", "yes", "on", "enabled"})
NOT_HERE = {
    "LOG_LEVEL": "the log has one level; `dragoman serve --log-json` writes JSON",
    "FIRST_TOKEN_MAX_RETRIES": "retry.attempts counts these, too",
    "FAKE_REASONING_MAX_TOKENS": "thinking is asked for as the client asks for it; see default_thinking",
}


def read_kiro_gateway(document: SourceValue, draft: Draft) -> None:
    section: Section = {"kind": "kiro"}
    _read_credentials(document, section, draft)
    for name, key in SETTINGS.items():
        place = document.at(name)
        value = place.text() if key in TEXTS else place.number()
        if place and value is not None and key not in section:
            section[key] = value
            place.map(f"providers.kiro.{key}")
    _read_switches(document, section, draft)
    if document.at("VPN_PROXY_URL"):
        section["proxy"] = draft.take_proxy(document.at("VPN_PROXY_URL"), "kiro")
    draft.add_provider("kiro", section)
    for name, (part, key) in GENERAL.items():
        place = document.at(name)
        is_text = key in ("host", "capture", "directory")
        value = place.text() if is_text else place.number()
        if value is not None and (key != "capture" or value in CAPTURES):
            draft.set(place, part, key, value)
    draft.take_client_key(document.at("PROXY_API_KEY"))
    for name, reason in NOT_HERE.items():
        document.at(name).skip(reason)


def _read_credentials(document: SourceValue, section: Section, draft: Draft) -> None:
    for name in CREDENTIALS:
        place = document.at(name)
        if not place:
            continue
        if "credentials" in section:
            place.skip("another credential is used, which comes first")
            continue
        is_file = name.endswith("_FILE")
        section["credentials"] = place.text() if is_file else draft.take_secret(place, name)
        place.map("providers.kiro.credentials")


def _read_switches(document: SourceValue, section: Section, draft: Draft) -> None:
    reasoning, handling = document.at("FAKE_REASONING"), document.at("FAKE_REASONING_HANDLING")
    repair, search = document.at("TRUNCATION_RECOVERY"), document.at("WEB_SEARCH_ENABLED")
    if reasoning:
        section["thinking_by"] = "auto" if reasoning.text().lower() in ON else "off"
        reasoning.map("providers.kiro.thinking_by")
    if handling.text() in THINKING:
        section["thinking"] = THINKING[handling.text()]
        handling.map("providers.kiro.thinking")
    if repair:
        section["repair_truncation"] = repair.text().lower() in ON
        repair.map("providers.kiro.repair_truncation")
    if search:
        is_on = search.text().lower() in ON
        draft.set(search, "tools", "web_search", {"backend": ["native", "kiro"] if is_on else "off"})
