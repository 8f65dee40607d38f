"""Known vendors with address, key variables, protocols, quirks and model list; base URLs as people write them.

`kind = "openrouter"` in a provider's section stands for the values of that preset, each of which the section may
override. A vendor whose key is in the environment appears without a section. presets.json has the vendors.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from dragoman.config.problems import suggest
from dragoman.config.settings import ProtocolName, Quirk, ServerName
from dragoman.config.tree import PlacedTable, Raw, SettingOrigin

PLACE = re.compile(r"\{(\w+)\}")
VERSIONED: Mapping[str, str] = MappingProxyType(
    {"anthropic": "v1", "openai": "v1", "openai-compatible": "v1", "gemini": "v1beta"}
)
DEFAULT_ENDPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "anthropic": "https://api.anthropic.com/v1",
        "openai": "https://api.openai.com/v1",
        "codex": "https://chatgpt.com/backend-api/codex",
        "gemini": "https://generativelanguage.googleapis.com/v1beta",
    }
)
VERSION_SEGMENT = re.compile(r"v\d")
OPERATIONS = ("/chat/completions", "/responses", "/messages", "/models")
# What people may call a vendor by: its service, its company or its models.
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "vertex": "gemini",
        "vertex-ai": "gemini",
        "google": "gemini",
        "claude": "anthropic",
        "gpt": "openai",
        "chatgpt": "codex",
        "aws": "bedrock",
        "amazon": "bedrock",
        "grok": "xai",
        "glm": "zai",
    }
)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


class Parameter(Struct, frozen=True):
    """A part of an address or header that differs between accounts: a key of the section, or an environment variable.

    A variable may contain a URL; its first label is then the value.
    """

    name: str
    variables: tuple[str, ...]
    default: str | None = None


class Preset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vendor. `{name}` in an address or header stands for the parameter of that name."""

    title: str
    endpoint: str
    docs: str
    keys: tuple[str, ...] = ()  # variables, the usual one first; a local server has none
    protocols: tuple[ProtocolName, ...] = ("chat",)  # preferred first
    endpoints: dict[ProtocolName, str] = {}  # of protocols whose address is not `endpoint`
    parameters: tuple[Parameter, ...] = ()
    headers: dict[str, str] = {}
    key_header: str | None = None
    quirks: tuple[Quirk | ServerName, ...] = ()
    models_endpoint: str | None = None
    list_models: bool = True
    kind: Literal["openai-compatible", "anthropic"] = "openai-compatible"
    found_by_key: bool = True  # False: its variable belongs to another preset, or is not only for models
    note: str = ""

    @property
    def has_version(self) -> bool:
        """Whether the vendor's address contains a version."""
        return any(re.match(r"v\d", segment) for segment in urlsplit(self.endpoint).path.split("/"))

    def used_parameters(self, table: Mapping[str, object]) -> tuple[Parameter, ...]:
        """Return the parameters that a section needs: those of the address, unless it has its own, and of headers."""
        texts = [*self.headers.values()] if "endpoint" in table else [self.endpoint, *self.headers.values()]
        names = {name for text in texts for name in PLACE.findall(text)}
        return tuple(parameter for parameter in self.parameters if parameter.name in names)


@lru_cache(maxsize=1)
def load_presets() -> Mapping[str, Preset]:
    return msgspec.json.decode((Path(__file__).parent / "presets.json").read_bytes(), type=dict[str, Preset])


def suggest_vendor(word: str, kinds: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the kind or preset that the word may stand for, or nothing if there is none."""
    name = OTHER_NAMES.get(word.lower())
    return suggest(word, (*kinds, *load_presets())) if name is None else f'; did you mean "{name}"?'


def find_vendor_keys(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the presets that the environment has a key and all parameters for, each with the key's variable."""
    for name, preset in load_presets().items():
        variable = next((key for key in preset.keys if environ.get(key, "").strip()), None)
        if variable is None or not preset.found_by_key:
            continue
        if all(_find_value(parameter, environ) is not None for parameter in preset.used_parameters({})):
            yield name, variable


def apply_preset(section: PlacedTable, environ: Mapping[str, str]) -> Preset | None:
    """Replace a preset's name in a provider's table by the values that it stands for; None if it names none."""
    tree, key, table = section.tree, section.key, section.values
    name = table["kind"]
    preset = load_presets().get(name) if isinstance(name, str) else None
    if preset is None:
        return None
    values = _take_parameters(section, preset, environ)
    if values is None:
        return preset
    origin = SettingOrigin(f"preset {name}", None, "", Path())
    for field, value in _list_defaults(table, preset, values, environ):
        tree.put_default((*key, field), value, origin)
    for header, text in preset.headers.items():
        tree.put_default((*key, "headers", header), _fill(text, values), origin)
    table["kind"] = preset.kind
    return preset


def _take_parameters(section: PlacedTable, preset: Preset, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Remove the parameters from the table and return their values; None, with the problem noted, if one is missing."""
    values: dict[str, str] = {}
    used = preset.used_parameters(section.values)
    for parameter in preset.parameters:
        given = section.values.pop(parameter.name, None)
        if given is not None and not (isinstance(given, str) and given.strip()):
            section.problem(parameter.name, "expected a string that is not empty")
            return None
        value = _read_value(given) if isinstance(given, str) else _find_value(parameter, environ)
        if value is not None:
            values[parameter.name] = value
        elif parameter in used:
            variables = " or ".join(f"${variable}" for variable in parameter.variables)
            section.tree.problem(section.key, f'"{parameter.name}" is missing; set it here, or set {variables}')
            return None
    return values


def _list_defaults(
    table: Raw, preset: Preset, values: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    """Yield the preset's settings. With an address of the section's own, those that belong to the vendor's are left."""
    if "endpoint" in table:
        elsewhere = {} if "endpoints" in table else preset.endpoints
        yield "protocol", [protocol for protocol in preset.protocols if protocol not in elsewhere]
    else:
        yield "protocol", list(preset.protocols)
        yield "endpoint", _fill(preset.endpoint, values)
        yield "list_models", preset.list_models
        if preset.endpoints:
            yield "endpoints", {protocol: _fill(url, values) for protocol, url in preset.endpoints.items()}
        if preset.models_endpoint is not None:
            yield "models_endpoint", _fill(preset.models_endpoint, values)
    if preset.keys:
        variable = next((key for key in preset.keys if environ.get(key, "").strip()), preset.keys[0])
        yield "api_key", f"env:{variable}"
    if preset.key_header is not None:
        yield "key_header", preset.key_header
    if preset.quirks:
        yield "quirks", list(preset.quirks)


def _find_value(parameter: Parameter, environ: Mapping[str, str]) -> str | None:
    found = (environ.get(variable, "").strip() for variable in parameter.variables)
    text = next(filter(None, found), parameter.default)
    return None if text is None else _read_value(text)


def _read_value(text: str) -> str:
    """Return a parameter's value: `acme` for https://acme.openai.azure.com as well."""
    host = urlsplit(text.strip()).hostname if "://" in text else None
    return text.strip() if host is None else host.partition(".")[0]


def _fill(text: str, values: Mapping[str, str]) -> str:
    return PLACE.sub(lambda place: values[place[1]], text)


def normalise_endpoint(url: str, kind: str) -> str:
    """Return the URL, with the version of the provider's kind added if its path has none; raises ValueError."""
    parts = split_url(url)
    path = parts.path.rstrip("/")
    for operation in OPERATIONS:
        if path.endswith(operation):
            raise ValueError(f"the address must end with the version; remove {operation}")
    version = VERSIONED.get(kind)
    if version and not any(VERSION_SEGMENT.match(segment) for segment in path.split("/")):
        path = f"{path}/{version}"
    return f"{parts.scheme}://{parts.netloc}{path}"


def split_url(url: str) -> SplitResult:
    """Return the parts of an HTTP address without user, query and fragment; raises ValueError for any other."""
    text = url.strip()
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in text):
        raise ValueError("the address contains spaces or control characters")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError("the address must begin with http:// or https://")
    if not parts.hostname or parts.port == 0:  # reading .port raises ValueError outside 0..65535
        raise ValueError("the address has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address must not contain a user or password; use api_key or headers")
    if parts.query or parts.fragment:
        raise ValueError("the address must not contain a query or fragment")
    return parts


def points_to(url: str, host: str, port: int) -> bool:
    """Return whether a URL is the address that this gateway listens on."""
    try:
        parts = urlsplit(url.strip())
        there = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return False
    return there == port and (parts.hostname == host.lower() or parts.hostname in LOOPBACK_NAMES)
