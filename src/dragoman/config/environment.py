"""Settings from environment variables and the .env file, and from credentials and servers found on this machine."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import Struct

from dragoman.config.discovery import LocalServer
from dragoman.config.presets import find_vendor_keys, normalise_endpoint, points_to
from dragoman.config.problems import Key, Problem
from dragoman.config.secret import Secret, is_placeholder
from dragoman.config.settings import Debug, KiroProviderConfig, Retry, ServerSettings
from dragoman.config.tree import SettingOrigin, Tree

DOTENV = ".env"
ENVIRONMENT = "environment"
KEY_PREFIX = "dgm_"

# The names of older Kiro gateways, so that an existing set-up works.
GENERAL_NAMES: dict[str, tuple[type[Struct], Key]] = {
    "MAX_RETRIES": (Retry, ("retry", "attempts")),
    "BASE_RETRY_DELAY": (Retry, ("retry", "base_s")),
    "DEBUG_MODE": (Debug, ("debug", "capture")),
    "DEBUG_DIR": (Debug, ("debug", "directory")),
}
KIRO_NAMES: dict[str, str] = {
    "PROFILE_ARN": "profile_arn",
    "KIRO_REGION": "region",
    "TOKEN_REFRESH_THRESHOLD": "refresh_margin_s",
    "MODEL_CACHE_TTL": "model_cache_ttl_s",
    "DEFAULT_MAX_INPUT_TOKENS": "default_max_input_tokens",
    "TOOL_DESCRIPTION_MAX_LENGTH": "tool_description_max",
}
# A credentials file contains more than a token (client registration, expiry), so it is preferred.
KIRO_CREDENTIALS = ("KIRO_CREDS_FILE", "REFRESH_TOKEN", "KIRO_API_KEY")
CLIENT_KEYS = ("DRAGOMAN_API_KEY", "PROXY_API_KEY")
# Kind, variable of its key, variable of its address. Of several variables of one kind the first that is set counts.
API_KEYS = (
    ("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    ("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    ("gemini", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
    ("gemini", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
)

ASSIGNMENT = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*
        (?:"(?P<double>(?:\\.|[^"\\])*)" | '(?P<single>[^']*)' | (?P<bare>(?!["']).*?))
        \s*(?:(?<![^\s"'=])\#.*)?""",
    re.VERBOSE,
)


class Variable(Struct, frozen=True):
    """A value and the line of the .env file that holds it."""

    value: str
    line: int


class EnvironmentSetting(Struct, frozen=True):
    """One setting from the environment. `key` is a path; for Kiro it is relative to the provider's table."""

    key: Key
    value: object
    origin: SettingOrigin


class ApiKeyVariable(Struct, frozen=True):
    """An environment variable with a vendor's API key, and the base URL for it, if any."""

    kind: str
    variable: str
    base_url: str | None


class EnvironmentSettings(Struct, frozen=True):
    """All settings from the environment."""

    general: tuple[EnvironmentSetting, ...]
    kiro: tuple[EnvironmentSetting, ...]
    apis: tuple[ApiKeyVariable, ...]
    client_key: Secret | None
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def parse_dotenv(text: str) -> dict[str, Variable]:
    """Read NAME=value lines, with `export`, quotes and comments; other lines are ignored."""
    variables: dict[str, Variable] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        match = ASSIGNMENT.fullmatch(line)
        if match is None:
            continue
        value = match["single"] or match["bare"] or ""
        if match["double"] is not None:
            # Only these two: a Windows path in quotes keeps its backslashes.
            value = re.sub(r'\\(["\\])', r"\1", match["double"])
        variables[match["name"]] = Variable(value, number)
    return variables


def read_environment(
    environ: Mapping[str, str], dotenv: Mapping[str, Variable], cwd: Path = Path()
) -> EnvironmentSettings:
    """Read all settings. Environment variables take precedence over the .env file."""
    reader = _Reader(environ, dotenv, cwd)
    client_key = reader.client_key()
    return EnvironmentSettings(
        general=reader.read_general_settings(),
        kiro=reader.kiro(),
        apis=tuple(reader.read_api_keys(client_key)),
        client_key=client_key,
        problems=tuple(reader.problems),
        warnings=tuple(reader.warnings),
    )


class _Reader:
    def __init__(self, environ: Mapping[str, str], dotenv: Mapping[str, Variable], cwd: Path) -> None:
        self._environ = environ
        self._dotenv = dotenv
        self._cwd = cwd
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def _value(self, name: str) -> str | None:
        if name in self._environ:
            return self._environ[name].strip()
        return self._dotenv[name].value.strip() if name in self._dotenv else None

    def _origin(self, name: str) -> SettingOrigin:
        if name in self._environ:
            return SettingOrigin(ENVIRONMENT, None, name, self._cwd)
        return SettingOrigin(str(self._cwd / DOTENV), self._dotenv[name].line, name, self._cwd)

    def client_key(self) -> Secret | None:
        for name in CLIENT_KEYS:
            value = self._value(name) if name == "PROXY_API_KEY" else self._environ.get(name)
            if value is None:
                continue
            if is_placeholder(value):
                origin = self._origin(name)
                advice = "set a secret of your own, or unset the variable to have a key generated"
                self.problems.append(Problem(origin.file, origin.line, name, f"empty or a sample value; {advice}"))
                return None
            return Secret(value.strip())
        return None

    def read_general_settings(self) -> tuple[EnvironmentSetting, ...]:
        settings = (self._setting(name, model, key) for name, (model, key) in GENERAL_NAMES.items())
        return tuple(setting for setting in settings if setting)

    def kiro(self) -> tuple[EnvironmentSetting, ...]:
        settings = [self._setting(name, KiroProviderConfig, (key,)) for name, key in KIRO_NAMES.items()]
        return tuple(setting for setting in (self._kiro_credentials(), *settings) if setting)

    def _kiro_credentials(self) -> EnvironmentSetting | None:
        for name in KIRO_CREDENTIALS:
            value = self._value(name)
            if not value:
                continue
            if is_placeholder(value):
                self.warnings.append(f"{self._origin(name)}: ignored, it is a sample value")
                continue
            return EnvironmentSetting(("credentials",), self._credential_text(name, value), self._origin(name))
        return None

    def _credential_text(self, name: str, value: str) -> str:
        if name == "KIRO_CREDS_FILE":
            return value if value.startswith("~") else str(self._cwd / value)
        return f"env:{name}" if name in self._environ else value

    def _setting(self, name: str, model: type[Struct], key: Key) -> EnvironmentSetting | None:
        text = self._value(name)
        if not text:
            return None
        annotation = next(info.type for info in msgspec.structs.fields(model) if info.encode_name == key[-1])
        if Path in get_args(annotation):
            return EnvironmentSetting(key, text, self._origin(name))
        if key == ("debug", "capture"):
            text = text.lower()  # the gateways that introduced this name ignored its case
        try:
            return EnvironmentSetting(key, msgspec.convert(text, annotation, strict=False), self._origin(name))
        except msgspec.ValidationError as error:
            # These names are common words: another program's DEBUG_MODE must not prevent the start.
            self.warnings.append(f"{self._origin(name)}: ignored: {error}")
            return None

    def read_api_keys(self, client_key: Secret | None) -> list[ApiKeyVariable]:
        found = []
        for kind, variable, base_variable in API_KEYS:
            if self._has_vendor_key(variable, client_key):
                base_url = (self._environ.get(base_variable) or "").strip() or None
                found.append(ApiKeyVariable(kind, variable, base_url))
        for preset, variable in find_vendor_keys(self._environ):
            if self._has_vendor_key(variable, client_key):
                found.append(ApiKeyVariable(preset, variable, None))
        return found

    def _has_vendor_key(self, variable: str, client_key: Secret | None) -> bool:
        """Return whether a variable has a vendor's key: clients are configured by the same variables with ours."""
        value = (self._environ.get(variable) or "").strip()
        return not (is_placeholder(value) or value.startswith(KEY_PREFIX) or Secret(value) == client_key)


def add_environment(tree: Tree, found: EnvironmentSettings, files: Mapping[str, Path]) -> None:
    """Add settings of the environment, and accounts whose files were found, where the tree has none yet."""
    for setting in found.general:
        tree.put_default(setting.key, setting.value, setting.origin)
    _add_kiro(tree, found, files.get("kiro"))
    for kind in ("codex", "copilot"):
        _add_account(tree, kind, files.get(kind))
    for api in found.apis:
        _add_api(tree, api)


def has_providers(tree: Tree) -> bool:
    """Return whether file or flags configure any provider."""
    return bool(tree.get(("providers",)))


def add_servers(tree: Tree, servers: Iterable[LocalServer]) -> None:
    """Add model servers of this machine as providers, unless there is a provider of that name."""
    for server in servers:
        key = ("providers", server.name)
        if tree.get(key) is None:
            origin = SettingOrigin(f"port {server.port} of this machine", None, "", Path())
            tree.put((*key, "kind"), "openai-compatible", origin)
            tree.put((*key, "endpoint"), server.endpoint, origin)
            tree.put((*key, "quirks"), list(server.quirks), origin)


def _add_kiro(tree: Tree, found: EnvironmentSettings, file: Path | None) -> None:
    origin = next((setting.origin for setting in found.kiro if setting.key == ("credentials",)), None)
    if origin is None and file is not None:
        origin = SettingOrigin(str(file), None, "", Path())
    name = _provider_of_kind(tree, "kiro")
    if name is None:
        if origin is None or tree.get(("providers", "kiro")) is not None:
            return
        name = "kiro"
        tree.put(("providers", name, "kind"), "kiro", origin)
    for setting in found.kiro:
        tree.put_default(("providers", name, *setting.key), setting.value, setting.origin)


def _add_account(tree: Tree, kind: str, file: Path | None) -> None:
    if file is None or _provider_of_kind(tree, kind) is not None or tree.get(("providers", kind)) is not None:
        return
    tree.put(("providers", kind, "kind"), kind, SettingOrigin(str(file), None, "", Path()))


def _add_api(tree: Tree, api: ApiKeyVariable) -> None:
    if _provider_of_kind(tree, api.kind) is not None or tree.get(("providers", api.kind)) is not None:
        return
    origin = SettingOrigin(ENVIRONMENT, None, api.variable, Path())
    if api.base_url and not _is_own_address(tree, api.base_url):
        try:
            normalise_endpoint(api.base_url, api.kind)
        except ValueError as error:
            tree.warnings.append(f"{origin}: ignored, because its base URL is invalid: {error}")
            return
        tree.put(("providers", api.kind, "endpoint"), api.base_url, origin)
    tree.put(("providers", api.kind, "kind"), api.kind, origin)
    tree.put(("providers", api.kind, "api_key"), f"env:{api.variable}", origin)


def _provider_of_kind(tree: Tree, kind: str) -> str | None:
    """Return the provider to configure: the one with the kind's name, else the first of that kind."""
    tables = tree.get(("providers",))
    names = (
        [name for name in tables if tree.get(("providers", name, "kind")) == kind] if isinstance(tables, dict) else []
    )
    return kind if kind in names else next(iter(names), None)


def _is_own_address(tree: Tree, url: str) -> bool:
    host, port = tree.get(("server", "host")), tree.get(("server", "port"))
    defaults = ServerSettings()
    return points_to(
        url,
        host if isinstance(host, str) else defaults.host,
        port if isinstance(port, int) else defaults.port,
    )
