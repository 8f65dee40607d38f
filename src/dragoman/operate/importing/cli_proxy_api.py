"""CLIProxyAPI: `config.yaml` with keys of vendors in lists."""

from dragoman.operate.importing.draft import Draft, Section
from dragoman.operate.importing.source_values import SourceValue
from dragoman.operate.importing.vendors import make_address, name_key

# Lists of keys, with the kind that they are for.
KINDS = {
    "gemini-api-key": "gemini",
    "codex-api-key": "openai",
    "claude-api-key": "anthropic",
    "vertex-api-key": "gemini",
}
MARKS = frozenset({*KINDS, "openai-compatibility", "auth-dir", "remote-management", "api-keys", "kiro"})
NO_PROXY = ("direct", "none")
NOT_HERE = {
    "auth-dir": "sign in anew: `dragoman login codex`, `copilot` or `kiro`; the files of these tools are found",
    "remote-management": "the console and the admin API are for client keys with a role; see docs/console.md",
    "tls": "TLS is for a reverse proxy in front; see docs/install.md",
    "routing": "a conversation stays with one credential while that one answers; others are used in turn",
    "quota-exceeded": "the next credential or target is tried when a quota is exhausted",
    "ampcode": "Amp is not supported",
    "payload": "bodies are not rewritten",
}
ENTRY_NOT_HERE = {
    "excluded-models": "a provider's models cannot be excluded; a key's can: `dragoman keys set --models`",
    "cloak": "no other client is imitated",
    "priority": "the order of keys is that of the list",
    "weight": "keys are used in turn",
    "websockets": "upstreams are asked over HTTP",
}


def read_cli_proxy_api(document: SourceValue, draft: Draft) -> None:
    host, port, interval = document.at("host"), document.at("port"), document.at("max-retry-interval")
    draft.set(host, "server", "host", host.text())
    if not host:
        host.skip("empty means every address there; here set server.host, which is this machine otherwise")
    if port.number() is not None:
        draft.set(port, "server", "port", port.number())
    draft.set_attempts(document.at("request-retry"))
    if interval.number() is not None:
        draft.set(interval, "retry", "max_wait_s", interval.number())
    draft.take_client_key(*document.at("api-keys").elements())
    proxy = document.at("proxy-url")
    for field, kind in KINDS.items():
        for entry in document.at(field).elements():
            _read_key(entry, kind, proxy, draft)
    for entry in document.at("openai-compatibility").elements():
        _read_compatible(entry, proxy, draft)
    for entry in document.at("kiro").elements():
        _read_kiro(entry, draft)
    for field, reason in NOT_HERE.items():
        document.at(field).skip(reason)


def _read_key(entry: SourceValue, kind: str, proxy: SourceValue, draft: Draft) -> None:
    base = entry.at("prefix").text() or kind
    address = entry.at("base-url").text()
    section: Section = (
        make_address(kind, address, "responses" if kind == "openai" else "") if address else {"kind": kind}
    )
    key = entry.at("api-key")
    draft.take_keys([key], name_key(str(section["kind"]), base), section)
    name = _finish(entry, base, section, proxy, draft)
    key.map(f"providers.{name}.api_key")


def _read_compatible(entry: SourceValue, proxy: SourceValue, draft: Draft) -> None:
    if entry.at("disabled").value is True:
        entry.skip("it is disabled")
        return
    base = entry.at("prefix").text() or entry.at("name").text()
    address = entry.at("base-url").text()
    if not address:
        entry.skip("it has no base-url")
        return
    section: Section = make_address("", address, "chat")
    keys = entry.at("api-key-entries").elements()
    draft.take_keys((key.at("api-key") for key in keys), name_key(str(section["kind"]), base), section)
    name = _finish(entry, base, section, proxy, draft)
    entry.at("name").map(f"providers.{name}")
    for key in keys:
        key.at("api-key").map(f"providers.{name}.api_key")
        key.at("proxy-url").skip("keys of one provider share its proxy")


def _finish(entry: SourceValue, base: str, section: Section, proxy: SourceValue, draft: Draft) -> str:
    """Add what all kinds of entries share, and record it; return the provider's name."""
    headers, own_proxy = entry.at("headers"), entry.at("proxy-url")
    if headers:
        section["headers"] = draft.take_headers(headers, base)
    if own_proxy.text() in NO_PROXY:
        own_proxy.map("", "the provider has no proxy")
    elif own_proxy or proxy:
        section["proxy"] = draft.take_proxy(own_proxy or proxy, base)
    name = draft.add_provider(base, section)
    entry.at("prefix").map(f"providers.{name}", "as before, PREFIX/MODEL asks it")
    entry.at("base-url").map(f"providers.{name}.{'endpoint' if 'endpoint' in section else 'kind'}")
    for model in entry.at("models").elements():
        alias = model.at("alias").text() or model.at("name").text()
        draft.add_target(alias, f"{name}/{model.at('name').text()}")
        model.at("alias").map("models.name")
        model.at("name").map("models.to")
    for field, reason in ENTRY_NOT_HERE.items():
        entry.at(field).skip(reason)
    return name


def _read_kiro(entry: SourceValue, draft: Draft) -> None:
    file, token, profile = entry.at("token-file"), entry.at("refresh-token"), entry.at("profile-arn")
    section: Section = {"kind": "kiro"}
    if file:
        section["credentials"] = file.text()
    elif token:
        section["credentials"] = draft.take_secret(token, "REFRESH_TOKEN")
    if profile:
        section["profile_arn"] = profile.text()
    if entry.at("proxy-url"):
        section["proxy"] = draft.take_proxy(entry.at("proxy-url"), "kiro")
    name = draft.add_provider("kiro", section)
    for place in (file, token):
        place.map(f"providers.{name}.credentials")
    profile.map(f"providers.{name}.profile_arn")
    entry.at("access-token").skip("the refresh token gives a new one")
