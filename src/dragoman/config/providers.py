"""Read the `[providers.*]` tables: endpoint, protocols, headers, and one or several credentials."""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import msgspec
from msgspec.structs import replace

from dragoman.config.presets import (
    DEFAULT_ENDPOINTS,
    apply_preset,
    load_presets,
    normalise_endpoint,
    split_url,
    suggest_vendor,
)
from dragoman.config.problems import Key, format_key, quote_choices
from dragoman.config.proxies import NO_PROXY, parse_proxy
from dragoman.config.secret import STORE, SecretSource
from dragoman.config.settings import (
    CodexProviderConfig,
    CopilotProviderConfig,
    GeminiProviderConfig,
    KiroProviderConfig,
    PathName,
    ProtocolName,
    ProviderConfig,
    ProviderKind,
)
from dragoman.config.tree import PlacedTable, Raw, Tree, build_struct, expand, expand_source, read_fields, table_at

KINDS: tuple[str, ...] = get_args(ProviderKind)
INTERNAL_FIELDS = frozenset({"name", "extra_credentials", "preset"})
PICKER_NAME = "claude-code"  # before the names of models that Claude Code's picker would not show
STORED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
WRONG_STORED_NAME = "expected a name of 1 to 64 letters, digits, dots, hyphens and underscores"
PROVIDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
GATEWAY_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade"})

PROTOCOLS_BY_KIND: Mapping[str, tuple[ProtocolName, ...]] = MappingProxyType(
    {
        "openai": ("responses", "chat"),
        "anthropic": ("messages",),
        "codex": ("responses",),
        "gemini": ("gemini",),
        "copilot": (),
        "kiro": (),
        "echo": (),
    }
)

PATHS: tuple[PathName, ...] = get_args(PathName)
DEFAULT_PATHS: tuple[PathName, ...] = ("embeddings", "completions")
KINDS_WITH_PATHS = ("openai", "openai-compatible")

# The kind of provider whose addresses have the version of a protocol's.
VERSIONED_LIKE: Mapping[str, str] = MappingProxyType(
    {"chat": "openai", "responses": "openai", "messages": "anthropic", "gemini": "gemini"}
)

SECTION_TYPES: Mapping[str, type[ProviderConfig]] = MappingProxyType(
    {
        "kiro": KiroProviderConfig,
        "codex": CodexProviderConfig,
        "copilot": CopilotProviderConfig,
        "gemini": GeminiProviderConfig,
    }
)


def read_providers(tree: Tree, home: Path, environ: Mapping[str, str]) -> dict[str, ProviderConfig]:
    """Read every provider table. Problems are noted in the tree."""
    providers: dict[str, ProviderConfig] = {}
    for name in table_at(tree, ("providers",)) or {}:
        provider = _read_provider(tree, name, home, environ)
        if provider is not None:
            providers[name] = provider
    return providers


def _read_provider(tree: Tree, name: str, home: Path, environ: Mapping[str, str]) -> ProviderConfig | None:
    key: Key = ("providers", name)
    table = table_at(tree, key)
    if table is None:
        return None
    if not PROVIDER_NAME.fullmatch(name):
        tree.problem(key, "a provider's name may contain only letters, digits, dots, hyphens and underscores")
    if name == PICKER_NAME:
        tree.problem(key, f"{PICKER_NAME}/ is the prefix of models in Claude Code's picker: choose another name")
    before = len(tree.problems)
    named = _read_kind(tree, key, table)
    if named is None:
        return None
    section = PlacedTable(tree, key, table)
    preset = apply_preset(section, environ)
    if len(tree.problems) > before:
        return None
    kind = named if preset is None else preset.kind
    _listify(table, "protocol")
    _listify(table, "quirks")
    _expand_path_names(table)
    model = SECTION_TYPES.get(kind, ProviderConfig)
    _report_foreign_keys(tree, key, table, model)
    extra = read_extra_credentials(tree, key, table, home)
    fields = read_fields(tree, key, model, INTERNAL_FIELDS)
    if fields is None:
        return None
    fields["extra_credentials"] = extra
    fields["protocols"] = protocols = _protocols(tree, key, kind, fields.get("protocols"))
    fields["paths"] = _paths(section, kind, protocols, fields.get("paths"))
    _read_addresses(section, kind, fields, adds_version=preset is None or preset.has_version)
    _expand_paths(tree, key, fields, home)
    _check_headers(tree, key, fields.get("headers"))
    _check_stored_names(section, fields, extra)
    if fields.get("quirks") and kind != "openai-compatible":
        tree.problem((*key, "quirks"), 'this key exists only for providers of kind "openai-compatible"; remove it')
    fields |= {"name": name, "preset": "" if preset is None else named}
    return build_struct(model, fields) if len(tree.problems) == before else None


def _read_kind(tree: Tree, key: Key, table: Raw) -> str | None:
    """Return the kind, or the name of a preset."""
    kind = table.get("kind")
    if isinstance(kind, str) and (kind in KINDS or kind in load_presets()):
        return kind
    choices = f"{quote_choices(KINDS)}, or a vendor that `dragoman providers presets` lists"
    if kind is None:
        tree.problem(key, f'"kind" is missing; set it to one of {choices}')
    elif isinstance(kind, str):
        tree.problem((*key, "kind"), f'expected one of {choices}, got "{kind}"{suggest_vendor(kind, KINDS)}')
    else:
        tree.problem((*key, "kind"), f"expected one of {choices}")
    return None


def _listify(table: Raw, name: str) -> None:
    if isinstance(table.get(name), str):
        table[name] = [table[name]]


def local_settings(kind: str, protocol: str, root: str) -> dict[str, str]:
    """Return the settings of a provider whose server is at this root, and takes any credential."""
    match kind:
        case "kiro":
            addresses = dict.fromkeys(("endpoint", "control_endpoint", "auth_endpoint"), root)
            return {"kind": kind, **addresses, "credentials": "ksk_replayed"}
        case "anthropic":
            return {"kind": kind, "endpoint": f"{root}/v1", "api_key": "sk-replayed"}
    server = {"kind": "openai-compatible", "endpoint": f"{root}/v1", "protocol": protocol}
    return {**server, "api_key": "sk-replayed"}


def _report_foreign_keys(tree: Tree, key: Key, table: Raw, model: type[ProviderConfig]) -> None:
    """Report the key of another kind of provider with that kind, instead of as unknown."""
    own = _keys(model)
    for name in [name for name in table if name not in own]:
        owners = [kind for kind, section in SECTION_TYPES.items() if name in _keys(section)]
        if owners:
            tree.problem((*key, name), f"this key exists only for providers of kind {quote_choices(owners)}; remove it")
            del table[name]


def _keys(model: type[ProviderConfig]) -> frozenset[str]:
    return frozenset(info.encode_name for info in msgspec.structs.fields(model))


def _protocols(tree: Tree, key: Key, kind: str, configured: object) -> tuple[ProtocolName, ...]:
    supported = PROTOCOLS_BY_KIND.get(kind)
    if not isinstance(configured, tuple):
        return ("chat",) if supported is None else supported
    if not configured:
        tree.problem((*key, "protocol"), "must name at least one protocol")
    if len(set(configured)) < len(configured):
        tree.problem((*key, "protocol"), "names the same protocol twice; remove one")
    for protocol in configured:
        if supported and protocol not in supported:
            tree.problem((*key, "protocol"), f'kind "{kind}" supports {quote_choices(supported)}, not "{protocol}"')
    return configured


def _expand_path_names(table: Raw) -> None:
    """Accept `/v1/embeddings` for `embeddings`, and `audio` or `images` for everything below them."""
    _listify(table, "paths")
    listed = table.get("paths")
    if not isinstance(listed, list):
        return
    expanded: list[object] = []
    for item in listed:
        name = item.strip("/").removeprefix("v1/") if isinstance(item, str) else item
        expanded += [path for path in PATHS if path.startswith(f"{name}/")] or [name]
    table["paths"] = list(dict.fromkeys(expanded)) if all(isinstance(item, str) for item in expanded) else listed


def _paths(
    section: PlacedTable, kind: str, protocols: tuple[ProtocolName, ...], configured: object
) -> tuple[PathName, ...]:
    """Return the default paths and the configured ones; an empty list takes the defaults away as well."""
    if kind not in KINDS_WITH_PATHS:
        if configured is not None:
            kinds = quote_choices(KINDS_WITH_PATHS)
            section.problem("paths", f"this key exists only for providers of kind {kinds}; remove it")
        return ()
    if isinstance(configured, tuple):
        return tuple(dict.fromkeys((*DEFAULT_PATHS, *configured))) if configured else ()
    return DEFAULT_PATHS if "chat" in protocols or "responses" in protocols else ()


def _read_addresses(section: PlacedTable, kind: str, fields: dict[str, object], *, adds_version: bool) -> None:
    for name in ("endpoint", "control_endpoint", "auth_endpoint"):
        value = fields.get(name)
        if isinstance(value, str):
            try:
                fields[name] = normalise_endpoint(value, kind if adds_version and name == "endpoint" else "")
            except ValueError as error:
                section.problem(name, str(error))
    _read_other_addresses(section, fields)
    if "endpoint" not in fields and kind in DEFAULT_ENDPOINTS:
        fields["endpoint"] = DEFAULT_ENDPOINTS[kind]
    if "endpoint" not in fields and kind == "openai-compatible":
        section.tree.problem(section.key, '"endpoint" is missing; a provider of kind "openai-compatible" needs one')
    proxy = fields.get("proxy")
    if isinstance(proxy, SecretSource) and proxy.text != NO_PROXY and not proxy.text.startswith(("env:", "file:")):
        try:
            parse_proxy(proxy.text)
        except ValueError as error:
            section.problem("proxy", str(error))


def _read_other_addresses(section: PlacedTable, fields: dict[str, object]) -> None:
    """Check the addresses of single protocols and of the model list."""
    configured = fields.get("endpoints")
    endpoints: dict[str, str] = {}
    for protocol, url in configured.items() if isinstance(configured, dict) else ():
        try:
            endpoints[protocol] = normalise_endpoint(url, VERSIONED_LIKE[protocol])
        except ValueError as error:
            section.tree.problem((*section.key, "endpoints", protocol), str(error))
    if endpoints:
        fields["endpoints"] = endpoints
    models = fields.get("models_endpoint")
    if isinstance(models, str):
        try:
            split_url(models)
        except ValueError as error:
            section.problem("models_endpoint", str(error))


def _expand_paths(tree: Tree, key: Key, fields: dict[str, object], home: Path) -> None:
    for name, value in fields.items():
        base = tree.origin((*key, name)).base
        if isinstance(value, Path):
            fields[name] = _expand_path(str(value), base, home)
        elif isinstance(value, SecretSource):
            fields[name] = expand_source(value, base, home)
        elif name == "headers" and isinstance(value, dict):
            fields[name] = {header: expand_source(source, base, home) for header, source in value.items()}
    ca_file = fields.get("ca_file")
    if isinstance(ca_file, Path):
        _check_certificates(tree, (*key, "ca_file"), ca_file)


def _check_certificates(tree: Tree, key: Key, file: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        tree.problem(key, f"{file} contains no certificates in PEM format")
    except OSError as error:
        tree.problem(key, f"{file} cannot be read: {error.strerror}")


def _check_headers(tree: Tree, key: Key, headers: object) -> None:
    for name, source in headers.items() if isinstance(headers, dict) else ():
        at = (*key, "headers", name)
        if not HEADER_NAME.fullmatch(name):
            tree.problem(at, "not a valid name of an HTTP header; use letters, digits and hyphens")
        elif name.lower() in GATEWAY_HEADERS:
            tree.problem(at, "the gateway sets this header itself; remove it")
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in source.text):
            tree.problem(at, "a header's value must not contain control characters")


FIELDS = ("credentials", "api_key")
ACCOUNTS = ("codex", "copilot")  # their credentials are not API keys

Credential = SecretSource | Path


def read_extra_credentials(tree: Tree, key: Key, table: Raw, home: Path) -> tuple[Credential, ...]:
    """Return all credentials of a list but the first, which stays in the table like a single one."""
    lists = [name for name in FIELDS if isinstance(table.get(name), list)]
    for name in lists[1:]:
        tree.problem((*key, name), f'only one of "{lists[0]}" and "{name}" can be a list')
        del table[name]
    if not lists:
        return ()
    name = lists[0]
    items = _check_list(tree, (*key, name), table)
    if not items:
        del table[name]
        return ()
    table[name] = items[0]
    kind = str(table.get("kind"))
    if name == "api_key" and kind in ACCOUNTS:
        tree.problem((*key, name), f'list several accounts of kind "{kind}" in "credentials" instead')
    elif name == "api_key" and "credentials" in table:
        tree.problem((*key, name), 'not used, because "credentials" is set as well; remove one of them')
    read = _read_path if kind == "codex" else _read_source
    return tuple(read(tree, (*key, name, index), text, home) for index, text in enumerate(items) if index)


def credential_field(config: ProviderConfig) -> str:
    """Return the key of this provider's credentials in its section."""
    return "credentials" if getattr(config, "credentials", None) is not None else "api_key"


def list_credentials(config: ProviderConfig) -> tuple[Credential, ...]:
    first: Credential | None = getattr(config, credential_field(config))
    return () if first is None else (first, *config.extra_credentials)


def split_by_credential(config: ProviderConfig) -> tuple[ProviderConfig, ...]:
    """Return a copy of the provider for each of its credentials."""
    if not config.extra_credentials:
        return (config,)
    field = credential_field(config)
    return tuple(
        replace(config, extra_credentials=(), **{field: credential}) for credential in list_credentials(config)
    )


def _check_list(tree: Tree, key: Key, table: Raw) -> list[str]:
    values = table[str(key[-1])]
    assert isinstance(values, list)
    if not values:
        tree.problem(key, "must list at least one credential")
    for index, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            problem = "must not be empty" if isinstance(value, str) else "expected a string"
            tree.problem(key, f"{problem} (at [{index}])")
            return []
        if value in values[:index]:
            tree.problem(key, f"lists the same credential twice (at [{index}]); remove one")
            return []
    return values


def find_stored_name(credential: Credential | None) -> str | None:
    """Return the name of the credential in the store that a setting names."""
    if credential is None:
        return None
    text = credential.text if isinstance(credential, SecretSource) else str(credential)
    return text.removeprefix(STORE) if text.startswith(STORE) else None


def _check_stored_names(section: PlacedTable, fields: Mapping[str, object], extra: tuple[Credential, ...]) -> None:
    """Check the names of credentials in the store, and that nothing else is looked up there."""
    for name, value in fields.items():
        for source in value.values() if isinstance(value, dict) else (value,):
            stored = find_stored_name(source) if isinstance(source, SecretSource | Path) else None
            if stored is None:
                continue
            if name != "credentials":
                section.problem(name, f'"{STORE}NAME" is only for "credentials"')
            elif not STORED_NAME.fullmatch(stored):
                section.problem(name, f"after {STORE}, {WRONG_STORED_NAME}")
    for credential in extra:
        stored = find_stored_name(credential)
        if stored is not None and not STORED_NAME.fullmatch(stored):
            section.problem("credentials", f"after {STORE}, {WRONG_STORED_NAME}")


def _expand_path(text: str, base: Path, home: Path) -> Path:
    return Path(text) if text.startswith(STORE) else expand(text, base, home)


def _read_path(tree: Tree, key: Key, text: str, home: Path) -> Credential:
    return _expand_path(text, tree.origin(key).base, home)


def _read_source(tree: Tree, key: Key, text: str, home: Path) -> Credential:
    origin = tree.origin(key)
    return expand_source(SecretSource(text, format_key(key), origin.file, origin.line), origin.base, home)
