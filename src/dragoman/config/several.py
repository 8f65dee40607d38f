"""Several credentials of one provider: a list in its stanza comes in; the first and its spares go out."""

from pathlib import Path

from msgspec.structs import replace

from dragoman.config.check import expand, expand_source
from dragoman.config.problems import Key, format_key
from dragoman.config.secret import SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.config.tree import Raw, Tree

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
    return () if first is None else (first, *config.spares)


def split_by_credential(config: ProviderConfig) -> tuple[ProviderConfig, ...]:
    """The same provider once for each of its credentials."""
    if not config.spares:
        return (config,)
    field = credential_field(config)
    return tuple(replace(config, spares=(), **{field: credential}) for credential in list_credentials(config))


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
