"""Load and validate the configuration, or raise a ConfigError with all its problems."""

import ipaddress
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.discovery import DATA_VARIABLE, LocalServer, data_directory, find_credentials, find_own_credentials
from dragoman.config.environment import (
    DOTENV,
    EnvironmentSettings,
    Variable,
    add_environment,
    add_servers,
    has_providers,
    parse_dotenv,
    read_environment,
)
from dragoman.config.limit_sections import read_limits, read_teams
from dragoman.config.problems import ConfigError, Key, Problem, list_known, suggest
from dragoman.config.providers import read_providers
from dragoman.config.proxies import read_proxies
from dragoman.config.settings import (
    Config,
    ConsoleSettings,
    Debug,
    Effort,
    Fetch,
    ModelRoute,
    PriceOverride,
    ProviderConfig,
    ResponsesSettings,
    Retry,
    ServerSettings,
    StoreSettings,
    Tools,
    WebFetch,
    WebSearch,
)
from dragoman.config.syntax import describe_syntax_error
from dragoman.config.tree import (
    SettingOrigin,
    Tree,
    build_struct,
    expand,
    expand_source,
    key_lines,
    list_tables,
    read_fields,
    read_section,
    table_at,
)
from dragoman.config.urls import split_url

FILE_NAME = "dragoman.toml"
SECTIONS = (
    *("server", "retry", "debug", "store", "fetch", "responses", "effort", "tools", "console"),
    *("providers", "models", "prices", "limits", "teams"),
)
SQLITE = "sqlite:///"
POSTGRESQL = "postgresql://"
HOST_NAME = re.compile(r"(?:[\w-]+\.)*(?!\d+\.?$)[\w-]+\.?")  # digits at the end are those of an IP address
TOOLS = ("web_search", "web_fetch")
NEEDS_KEY = ("brave", "tavily", "exa")

ToolSettings = TypeVar("ToolSettings", WebSearch, WebFetch)


class ConfigSource(Struct, frozen=True):
    """Where the configuration is read from: a file that is named, or the usual ones, and the environment."""

    file: str | None
    environ: Mapping[str, str]
    directory: Path
    home: Path

    def find_file(self) -> Path | None:
        """Return the file that `read` reads: one that is named must exist, else the first in the usual places."""
        named = self.file or self.environ.get("DRAGOMAN_CONFIG")
        if named:
            path = expand(named, self.directory, self.home)
            if not path.is_file():
                source = "--config" if self.file else "$DRAGOMAN_CONFIG"
                raise ConfigError([Problem(str(path), None, "", f"there is no such file; check {source}")])
            return path
        usual = (self.directory / FILE_NAME, user_config_file(self.environ, self.home))
        return next((path for path in usual if path.is_file()), None)

    def take_stamp(self) -> "Stamp":
        """Return the stamp of what `read` reads by now."""
        return Stamp(stamp_file(self.find_file), find_own_credentials(self.environ, self.home))

    def read(
        self,
        flags: Mapping[str, object] | None = None,
        servers: Iterable[LocalServer] = (),
        *,
        text: str | None = None,
    ) -> Config:
        """Read and validate everything. Flags override the file, and the file overrides the environment.

        Flags are `{"server.port": 9000}`, with None for absent ones.
        `servers` are model servers found on this machine. They are used if no provider is configured.
        `text` is read instead of the content of the file. Raise ConfigError with all that is wrong.
        """
        path = self.find_file()
        tree = _parse(path, self.directory, text)
        found = read_environment(self.environ, _read_dotenv(self.directory / DOTENV), self.directory)
        tree.problems.extend(found.problems)
        tree.warnings.extend(found.warnings)
        # Note an invalid proxy variable as a problem: connecting directly would ignore the user's intention.
        try:
            read_proxies(self.environ)
        except ConfigError as error:
            tree.problems.extend(error.problems)
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        _apply_flags(tree, given, self.directory)
        configured = has_providers(tree)
        add_environment(tree, found, find_credentials(self.environ, self.home))
        used = () if configured else tuple(servers)
        add_servers(tree, used)
        found_models = tuple(f"{server.name}/{model}" for server in used for model in server.models)
        config = _check(tree, found, self)
        return replace(config, source=path, has_providers=configured, found_models=found_models)


def _apply_flags(tree: Tree, flags: Mapping[str, object], cwd: Path) -> None:
    """Apply flags, after checking the values that they override: the file must be valid without the flags."""
    for section in dict.fromkeys(name.partition(".")[0] for name in flags):
        SECTIONS_WITH_FLAGS[section](tree)
    for name, value in flags.items():
        tree.put(tuple(name.split(".")), value, SettingOrigin("command line", None, f"--{name.split('.')[-1]}", cwd))


def user_config_file(environ: Mapping[str, str], home: Path) -> Path:
    """Return the path of the user's file, as opposed to the file in the working directory."""
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "dragoman" / FILE_NAME


def _parse(path: Path | None, cwd: Path, text: str | None) -> Tree:
    if path is None and text is None:
        return Tree({}, SettingOrigin("configuration", None, "", cwd), {})
    path = path or cwd / FILE_NAME
    text = _read_text(path) if text is None else text
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([describe_syntax_error(str(path), text, error)]) from error
    return Tree(values, SettingOrigin(str(path), None, "", path.parent), key_lines(text))


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError([Problem(str(path), None, "", f"cannot be read: {error.strerror}")]) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(str(path), line, "", "not valid TOML: the file is not UTF-8 text")]) from error


def _read_dotenv(path: Path) -> dict[str, Variable]:
    try:
        return parse_dotenv(path.read_text("utf-8", "replace"))
    except OSError:
        return {}


def _check(tree: Tree, found: EnvironmentSettings, source: ConfigSource) -> Config:
    home, environ = source.home, source.environ
    for name in tree.values:
        if name not in SECTIONS:
            tree.problem((name,), f"unknown key{suggest(name, SECTIONS) or list_known(SECTIONS)}")
    providers = read_providers(tree, home, environ)
    config = Config(
        server=_read_server(tree),
        retry=read_section(tree, "retry", Retry),
        debug=_read_debug(tree, home, environ),
        store=_read_store(tree, home, environ),
        fetch=read_section(tree, "fetch", Fetch),
        responses=read_section(tree, "responses", ResponsesSettings),
        effort=read_section(tree, "effort", Effort),
        tools=read_tools(tree, home),
        console=_read_console(tree),
        providers=providers or {"echo": ProviderConfig(name="echo", kind="echo")},
        models=_read_models(tree, providers),
        prices=_read_prices(tree),
        limits=read_limits(tree, tuple(providers)),
        teams=read_teams(tree),
        client_key=found.client_key,
        origins=tree.origins(),
        warnings=tuple(tree.warnings),
    )
    if tree.problems:
        raise ConfigError(sorted(dict.fromkeys(tree.problems), key=lambda problem: (problem.file, problem.line or 0)))
    return config


def _read_server(tree: Tree) -> ServerSettings:
    server = read_section(tree, "server", ServerSettings)
    if not _is_host(server.host):
        expected = 'expected an IP address or a host name, such as "127.0.0.1" or "localhost"'
        tree.problem(("server", "host"), f'{expected}, got "{server.host}"')
    return server


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return HOST_NAME.fullmatch(text) is not None
    return True


SECTIONS_WITH_FLAGS: Mapping[str, Callable[[Tree], Struct]] = MappingProxyType({"server": _read_server})


def _read_debug(tree: Tree, home: Path, environ: Mapping[str, str]) -> Debug:
    debug = read_section(tree, "debug", Debug)
    if "directory" not in (table_at(tree, ("debug",)) or {}):
        return msgspec.structs.replace(debug, directory=data_directory(environ, home) / "captures")
    base = tree.origin(("debug", "directory")).base
    return msgspec.structs.replace(debug, directory=expand(str(debug.directory), base, home))


def _read_console(tree: Tree) -> ConsoleSettings:
    console = read_section(tree, "console", ConsoleSettings)
    for network in console.trusted_proxies:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            expected = "expected IP addresses or networks such as 10.0.0.0/8"
            tree.problem(("console", "trusted_proxies"), f'{expected}, got "{network}"')
    return console


def _read_store(tree: Tree, home: Path, environ: Mapping[str, str]) -> StoreSettings:
    store = read_section(tree, "store", StoreSettings)
    if "url" not in (table_at(tree, ("store",)) or {}):
        return msgspec.structs.replace(store, url=f"{SQLITE}{_default_store(store, home, environ)}")
    if store.url.startswith(SQLITE):
        base = tree.origin(("store", "url")).base
        path = expand(store.url.removeprefix(SQLITE), base, home)
        return msgspec.structs.replace(store, url=f"{SQLITE}{path}")
    if not store.url.startswith(POSTGRESQL):
        tree.problem(("store", "url"), f"expected {SQLITE}PATH or {POSTGRESQL}USER@HOST/NAME")
    elif not _has_address(store.url):
        advice = "write / and @ in user or password as %2F and %40"
        tree.problem(("store", "url"), f"expected {POSTGRESQL}USER@HOST/NAME; {advice}")
    return store


def _default_store(store: StoreSettings, home: Path, environ: Mapping[str, str]) -> Path:
    """Return the store in the data directory. One from before $XDG_DATA_HOME counted is kept, with its keys."""
    path = data_directory(environ, home) / "dragoman.db"
    earlier = expand(store.url.removeprefix(SQLITE), home, home)
    return earlier if DATA_VARIABLE not in environ and not path.exists() and earlier.exists() else path


def _has_address(url: str) -> bool:
    try:
        parts = split_url(url)
        return parts.port != 0 and len(parts.path) > 1
    except ValueError:
        return False


def _read_models(tree: Tree, providers: dict[str, ProviderConfig]) -> tuple[ModelRoute, ...]:
    routes = []
    for index in list_tables(tree, ("models",)):
        fields = read_fields(tree, ("models", index), ModelRoute)
        if fields is not None:
            routes.append(build_struct(ModelRoute, fields))
            _check_targets(tree, ("models", index, "to"), routes[-1].to, providers)
            _check_order(tree, index, routes)
            _check_provider_pattern(tree, index, routes[-1].name, providers)
    return tuple(routes)


def _check_order(tree: Tree, index: int, routes: list[ModelRoute]) -> None:
    """Warn about a name that an earlier one always matches first."""
    *earlier, route = routes
    for other in earlier:
        if route.name == other.name:
            tree.warn(("models", index, "name"), f'never used: "{route.name}" is already above; list all targets there')
            return
        # A name with a slash may be `provider/model`, which only a name with the same provider comes before. A pattern
        # is compared as if it were a name: right as long as neither has more than `*`.
        is_comparable = not re.search(r"[?\[]", route.name + other.name) and _provider_in(route) == _provider_in(other)
        if is_comparable and fnmatchcase(route.name, other.name):
            tree.warn(("models", index, "name"), f'never used: "{other.name}" above matches first; move this one up')
            return


def _provider_in(route: ModelRoute) -> str:
    """Return what stands before the slash of a name; empty if it has none."""
    return route.name.partition("/")[0] if "/" in route.name else ""


def _check_provider_pattern(tree: Tree, index: int, name: str, providers: dict[str, ProviderConfig]) -> None:
    """Warn about a glob in place of a provider: a request for `provider/model` does not match it."""
    pattern, slash, model = name.partition("/")
    hidden = next((provider for provider in providers if slash and fnmatchcase(provider, pattern)), None)
    if hidden is not None and hidden != pattern:
        why = f'does not match requests for the models of provider "{hidden}"; for those, write "{hidden}/{model}"'
        tree.warn(("models", index, "name"), why)


def _read_prices(tree: Tree) -> tuple[PriceOverride, ...]:
    found = (read_fields(tree, ("prices", index), PriceOverride) for index in list_tables(tree, ("prices",)))
    return tuple(build_struct(PriceOverride, fields) for fields in found if fields is not None)


def _check_targets(tree: Tree, key: Key, targets: tuple[str, ...], providers: dict[str, ProviderConfig]) -> None:
    for target in targets:
        provider, slash, model = target.partition("/")
        if not (provider and slash and model):
            tree.problem(key, f'expected "provider/model", got "{target}"')
        elif provider not in providers:
            # Only a warning: a provider from the environment may be missing temporarily.
            tree.warn(key, f'there is no provider "{provider}"{suggest(provider, list(providers))}')


# Path, time of the last change, size and inode; None where there is no file.
FileStamp = tuple[Path, int, int, int] | None


def stamp_file(find: Callable[[], Path | None]) -> FileStamp:
    """Return the stamp of the file that `find` finds."""
    try:
        path = find()
        status = None if path is None else path.stat()
    except (ConfigError, OSError):
        return None
    return None if path is None or status is None else (path, status.st_mtime_ns, status.st_size, status.st_ino)


class Stamp(Struct, frozen=True):
    """What a configuration was read from. Take it before reading: a later edit or sign-in then changes it."""

    file: FileStamp
    accounts: frozenset[Path] = frozenset()  # the files of accounts that need no section


def read_tools(tree: Tree, home: Path) -> Tools:
    """Return the settings of both tools; problems are noted in the tree."""
    table = table_at(tree, ("tools",))
    if table is None:
        return Tools()
    for name in table:
        if name not in TOOLS:
            tree.problem(("tools", name), f"unknown key{suggest(name, TOOLS) or list_known(TOOLS)}")
    search_table = table_at(tree, ("tools", "web_search"))
    if search_table is not None and isinstance(search_table.get("backend"), str):
        search_table["backend"] = [search_table["backend"]]  # one may be written without a list
    search = _read_tool(tree, ("tools", "web_search"), WebSearch, home)
    fetch = _read_tool(tree, ("tools", "web_fetch"), WebFetch, home)
    _check_tool(tree, ("tools", "web_search"), search.backend, search)
    _check_tool(tree, ("tools", "web_fetch"), (fetch.backend,), fetch)
    return Tools(search, fetch)


def _read_tool(tree: Tree, key: Key, model: type[ToolSettings], home: Path) -> ToolSettings:
    fields = read_fields(tree, key, model)
    if fields is None:
        return model()
    settings = build_struct(model, fields)
    if settings.api_key is None:
        return settings
    base = tree.origin((*key, "api_key")).base
    return replace(settings, api_key=expand_source(settings.api_key, base, home))


def _check_tool(tree: Tree, key: Key, backends: tuple[str, ...], settings: WebSearch | WebFetch) -> None:
    for backend in backends:
        if backend in NEEDS_KEY and settings.api_key is None:
            tree.problem((*key, "backend"), f'"{backend}" needs an api_key, for example "env:SEARCH_KEY"')
        if backend == "searxng" and settings.endpoint is None:
            tree.problem((*key, "backend"), '"searxng" needs an endpoint, for example "http://127.0.0.1:8888"')
        if backend == "mcp" and settings.endpoint is None and not settings.command:
            tree.problem((*key, "backend"), '"mcp" needs an endpoint (a URL) or a command (a list of words)')
    if settings.endpoint is not None and not settings.endpoint.startswith(("http://", "https://")):
        tree.problem(
            (*key, "endpoint"), f'expected a URL that starts with http:// or https://, got "{settings.endpoint}"'
        )
