"""Provider tables: the raw `[providers.*]` come in; checked ProviderConfigs with endpoint and protocols go out."""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import msgspec
from msgspec.structs import replace

from dragoman.config.check import build_struct, expand, expand_source, read_fields, table_at
from dragoman.config.endpoints import DEFAULT_ENDPOINTS, normalise_endpoint
from dragoman.config.problems import Key, format_key, quote_choices, suggest
from dragoman.config.proxies import NO_PROXY, parse_proxy
from dragoman.config.secret import SecretSource
from dragoman.config.settings import (
    CodexProviderConfig,
    CopilotProviderConfig,
    KiroProviderConfig,
    ProtocolName,
    ProviderConfig,
    ProviderKind,
)
from dragoman.config.tree import Raw, Tree

KINDS: tuple[str, ...] = get_args(ProviderKind)
INTERNAL_FIELDS = frozenset({"name", "extra_credentials"})
PROVIDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
OUR_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade"})

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

SECTION_TYPES: Mapping[str, type[ProviderConfig]] = MappingProxyType(
    {"kiro": KiroProviderConfig, "codex": CodexProviderConfig, "copilot": CopilotProviderConfig}
)


def read_providers(tree: Tree, home: Path) -> dict[str, ProviderConfig]:
    """Check every provider table; what is wrong is noted in the tree."""
    providers: dict[str, ProviderConfig] = {}
    for name in table_at(tree, ("providers",)) or {}:
        provider = _read_provider(tree, name, home)
        if provider is not None:
            providers[name] = provider
    return providers


def _read_provider(tree: Tree, name: str, home: Path) -> ProviderConfig | None:
    key: Key = ("providers", name)
    table = table_at(tree, key)
    if table is None:
        return None
    if not PROVIDER_NAME.fullmatch(name):
        tree.problem(key, "a provider's name consists of letters, digits, dots, dashes and underscores")
    kind = _read_kind(tree, key, table)
    if kind is None:
        return None
    _listify(table, "protocol")
    _listify(table, "quirks")
    model = SECTION_TYPES.get(kind, ProviderConfig)
    _refuse_others_keys(tree, key, table, model)
    before = len(tree.problems)
    spares = read_extra_credentials(tree, key, table, home)
    fields = read_fields(tree, key, model, INTERNAL_FIELDS)
    if fields is None:
        return None
    fields["extra_credentials"] = spares
    fields["protocols"] = _protocols(tree, key, kind, fields.get("protocols"))
    _read_addresses(tree, key, kind, fields)
    _expand_paths(tree, key, fields, home)
    _check_headers(tree, key, fields.get("headers"))
    if fields.get("quirks") and kind != "openai-compatible":
        tree.problem((*key, "quirks"), 'only a provider of kind "openai-compatible" has this key')
    fields["name"] = name
    return build_struct(model, fields) if len(tree.problems) == before else None


def _read_kind(tree: Tree, key: Key, table: Raw) -> str | None:
    kind = table.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        return kind
    if kind is None:
        tree.problem(key, f'"kind" is missing; one of {quote_choices(KINDS)}')
    elif isinstance(kind, str):
        tree.problem((*key, "kind"), f'expected one of {quote_choices(KINDS)}, got "{kind}"{suggest(kind, KINDS)}')
    else:
        tree.problem((*key, "kind"), f"expected one of {quote_choices(KINDS)}")
    return None


def _listify(table: Raw, name: str) -> None:
    if isinstance(table.get(name), str):
        table[name] = [table[name]]


def _refuse_others_keys(tree: Tree, key: Key, table: Raw, model: type[ProviderConfig]) -> None:
    """Say of another kind's key whose it is, instead of calling it unknown."""
    own = _keys(model)
    for name in [name for name in table if name not in own]:
        owners = [kind for kind, stanza in SECTION_TYPES.items() if name in _keys(stanza)]
        if owners:
            tree.problem((*key, name), f"only a provider of kind {quote_choices(owners)} has this key")
            del table[name]


def _keys(model: type[ProviderConfig]) -> frozenset[str]:
    return frozenset(info.encode_name for info in msgspec.structs.fields(model))


def _protocols(tree: Tree, key: Key, kind: str, asked: object) -> tuple[ProtocolName, ...]:
    spoken = PROTOCOLS_BY_KIND.get(kind)
    if not isinstance(asked, tuple):
        return ("chat",) if spoken is None else spoken
    if not asked:
        tree.problem((*key, "protocol"), "names no protocol")
    if len(set(asked)) < len(asked):
        tree.problem((*key, "protocol"), "names a protocol twice")
    for protocol in asked:
        if spoken and protocol not in spoken:
            tree.problem((*key, "protocol"), f'kind "{kind}" speaks {quote_choices(spoken)}, not "{protocol}"')
    return asked


def _read_addresses(tree: Tree, key: Key, kind: str, fields: dict[str, object]) -> None:
    for name in ("endpoint", "control_endpoint", "auth_endpoint"):
        value = fields.get(name)
        if isinstance(value, str):
            try:
                fields[name] = normalise_endpoint(value, kind)
            except ValueError as error:
                tree.problem((*key, name), str(error))
    if "endpoint" not in fields and kind in DEFAULT_ENDPOINTS:
        fields["endpoint"] = DEFAULT_ENDPOINTS[kind]
    if "endpoint" not in fields and kind == "openai-compatible":
        tree.problem(key, '"endpoint" is missing; a provider of kind "openai-compatible" needs one')
    proxy = fields.get("proxy")
    if isinstance(proxy, SecretSource) and proxy.text != NO_PROXY and not proxy.text.startswith(("env:", "file:")):
        try:
            parse_proxy(proxy.text)
        except ValueError as error:
            tree.problem((*key, "proxy"), str(error))


def _expand_paths(tree: Tree, key: Key, fields: dict[str, object], home: Path) -> None:
    for name, value in fields.items():
        base = tree.origin((*key, name)).base
        if isinstance(value, Path):
            fields[name] = expand(str(value), base, home)
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
        tree.problem(key, f"{file} holds no certificates in PEM form")
    except OSError as error:
        tree.problem(key, f"{file} cannot be read: {error.strerror}")


def _check_headers(tree: Tree, key: Key, headers: object) -> None:
    for name, source in headers.items() if isinstance(headers, dict) else ():
        at = (*key, "headers", name)
        if not HEADER_NAME.fullmatch(name):
            tree.problem(at, "this cannot be the name of an HTTP header")
        elif name.lower() in OUR_HEADERS:
            tree.problem(at, "this header is the gateway's own to set")
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in source.text):
            tree.problem(at, "a header's value must not contain control characters")


FIELDS = ("credentials", "api_key")
ACCOUNTS = ("codex", "copilot")  # whose credentials are no API keys

Credential = SecretSource | Path


def read_extra_credentials(tree: Tree, key: Key, table: Raw, home: Path) -> tuple[Credential, ...]:
    """Leave the first of a list in the table, for the check of a single one, and return the others."""
    lists = [name for name in FIELDS if isinstance(table.get(name), list)]
    for name in lists[1:]:
        tree.problem((*key, name), f'only one of "{lists[0]}" and "{name}" can be a list')
        del table[name]
    if not lists:
        return ()
    name = lists[0]
    items = _checked(tree, (*key, name), table)
    if not items:
        del table[name]
        return ()
    table[name] = items[0]
    kind = str(table.get("kind"))
    if name == "api_key" and kind in ACCOUNTS:
        tree.problem((*key, name), f'several accounts of kind "{kind}" are listed under "credentials"')
    elif name == "api_key" and "credentials" in table:
        tree.problem((*key, name), '"credentials" is set as well, and only that is used')
    wanted = Path if kind == "codex" else SecretSource
    return tuple(_spare(tree, (*key, name, place), text, wanted, home) for place, text in enumerate(items) if place)


def credential_field(config: ProviderConfig) -> str:
    """What the credentials of this provider are called in its stanza."""
    return "credentials" if getattr(config, "credentials", None) is not None else "api_key"


def list_credentials(config: ProviderConfig) -> tuple[Credential, ...]:
    first: Credential | None = getattr(config, credential_field(config))
    return () if first is None else (first, *config.extra_credentials)


def split_by_credential(config: ProviderConfig) -> tuple[ProviderConfig, ...]:
    """The same provider once for each of its credentials."""
    if not config.extra_credentials:
        return (config,)
    field = credential_field(config)
    return tuple(
        replace(config, extra_credentials=(), **{field: credential}) for credential in list_credentials(config)
    )


def _checked(tree: Tree, key: Key, table: Raw) -> list[str]:
    values = table[str(key[-1])]
    assert isinstance(values, list)
    if not values:
        tree.problem(key, "names no credential")
    for place, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            problem = "must not be empty" if isinstance(value, str) else "expected a string"
            tree.problem(key, f"{problem} (at [{place}])")
            return []
        if value in values[:place]:
            tree.problem(key, f"names a credential twice (at [{place}])")
            return []
    return values


def _spare(tree: Tree, key: Key, text: str, wanted: type[Credential], home: Path) -> Credential:
    origin = tree.origin(key)
    if wanted is Path:
        return expand(text, origin.base, home)
    return expand_source(SecretSource(text, format_key(key), origin.file, origin.line), origin.base, home)
