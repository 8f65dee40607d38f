"""Layers: what environment and machine offer is laid under what file and flags have set, without ever covering it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from dragoman.config.endpoints import normalise_endpoint, points_to
from dragoman.config.environment import ENVIRONMENT, ApiKeyVariable, EnvironmentSettings
from dragoman.config.local import LocalServer
from dragoman.config.settings import Server
from dragoman.config.tree import Origin, Tree


def add_environment(tree: Tree, found: EnvironmentSettings, files: Mapping[str, Path]) -> None:
    """Add the environment's settings, and accounts whose files were found, wherever the tree has none yet."""
    for setting in found.general:
        tree.put_default(setting.key, setting.value, setting.origin)
    _add_kiro(tree, found, files.get("kiro"))
    for kind in ("codex", "copilot"):
        _add_account(tree, kind, files.get(kind))
    for api in found.apis:
        _add_api(tree, api)


def has_providers(tree: Tree) -> bool:
    """Whether somebody has written down which providers there are."""
    return bool(tree.get(("providers",)))


def add_servers(tree: Tree, servers: Iterable[LocalServer]) -> None:
    """Model servers of this machine become providers, where none bears their name."""
    for server in servers:
        key = ("providers", server.name)
        if tree.get(key) is None:
            origin = Origin(f"port {server.port} of this machine", None, "", Path())
            tree.put((*key, "kind"), "openai-compatible", origin)
            tree.put((*key, "endpoint"), server.endpoint, origin)
            tree.put((*key, "quirks"), list(server.quirks), origin)


def _add_kiro(tree: Tree, found: EnvironmentSettings, file: Path | None) -> None:
    origin = next((setting.origin for setting in found.kiro if setting.key == ("credentials",)), None)
    if origin is None and file is not None:
        origin = Origin(str(file), None, "", Path())
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
    tree.put(("providers", kind, "kind"), kind, Origin(str(file), None, "", Path()))


def _add_api(tree: Tree, api: ApiKeyVariable) -> None:
    if _provider_of_kind(tree, api.kind) is not None or tree.get(("providers", api.kind)) is not None:
        return
    origin = Origin(ENVIRONMENT, None, api.variable, Path())
    if api.base_url and not _is_our_own(tree, api.base_url):
        try:
            normalise_endpoint(api.base_url, api.kind)
        except ValueError as error:
            tree.warnings.append(f"{origin}: ignored, because of the base URL beside it: {error}")
            return
        tree.put(("providers", api.kind, "endpoint"), api.base_url, origin)
    tree.put(("providers", api.kind, "kind"), api.kind, origin)
    tree.put(("providers", api.kind, "api_key"), f"env:{api.variable}", origin)


def _provider_of_kind(tree: Tree, kind: str) -> str | None:
    """The provider to configure: the one that bears the kind's name, else the first of that kind."""
    tables = tree.get(("providers",))
    names = (
        [name for name in tables if tree.get(("providers", name, "kind")) == kind] if isinstance(tables, dict) else []
    )
    return kind if kind in names else next(iter(names), None)


def _is_our_own(tree: Tree, url: str) -> bool:
    host, port = tree.get(("server", "host")), tree.get(("server", "port"))
    defaults = Server()
    return points_to(
        url,
        host if isinstance(host, str) else defaults.host,
        port if isinstance(port, int) else defaults.port,
    )
