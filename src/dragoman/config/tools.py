"""Read the `[tools]` section: which backends run web search and web fetch."""

from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from dragoman.config.check import build_struct, expand_source, read_fields, table_at
from dragoman.config.problems import Key, list_known, suggest
from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.config.tree import Tree

T = TypeVar("T", WebSearch, WebFetch)

SECTIONS = ("web_search", "web_fetch")
NEEDS_KEY = ("brave", "tavily", "exa")


def read_tools(tree: Tree, home: Path) -> Tools:
    """Return the settings of both tools; problems are noted in the tree."""
    table = table_at(tree, ("tools",))
    if table is None:
        return Tools()
    for name in table:
        if name not in SECTIONS:
            tree.problem(("tools", name), f"unknown key{suggest(name, SECTIONS) or list_known(SECTIONS)}")
    search_table = table_at(tree, ("tools", "web_search"))
    if search_table is not None and isinstance(search_table.get("backend"), str):
        search_table["backend"] = [search_table["backend"]]  # one may be written without a list
    search = _read(tree, ("tools", "web_search"), WebSearch, home)
    fetch = _read(tree, ("tools", "web_fetch"), WebFetch, home)
    _check(tree, ("tools", "web_search"), search.backend, search)
    _check(tree, ("tools", "web_fetch"), (fetch.backend,), fetch)
    return Tools(search, fetch)


def _read(tree: Tree, key: Key, model: type[T], home: Path) -> T:
    fields = read_fields(tree, key, model)
    if fields is None:
        return model()
    settings = build_struct(model, fields)
    if settings.api_key is None:
        return settings
    base = tree.origin((*key, "api_key")).base
    return replace(settings, api_key=expand_source(settings.api_key, base, home))


def _check(tree: Tree, key: Key, backends: tuple[str, ...], settings: WebSearch | WebFetch) -> None:
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
