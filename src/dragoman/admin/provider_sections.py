"""The provider sections of dragoman.toml: list what is in effect, add a section, remove one."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.admin.configuration import ConfigSource
from dragoman.admin.errors import AdminError, InvalidArgument
from dragoman.admin.settings_file import CannotMerge, FileEdit, merge_toml, plan_edit, remove_toml_table
from dragoman.config import Config, ConfigError, ProviderConfig
from dragoman.config.load import user_config_file
from dragoman.config.presets import Preset, load_presets
from dragoman.config.problems import suggest
from dragoman.config.providers import KINDS, PROVIDER_NAME
from dragoman.config.secret import find_unreadable_secrets

Section = dict[str, object]
PlanEdit = Callable[[Path], FileEdit]


class ProviderRow(Struct, frozen=True):
    """One provider that is in effect. `problem` is why it cannot be used; empty if nothing is known against it."""

    name: str
    kind: str
    endpoint: str
    protocols: tuple[str, ...]
    credential: str
    origin: str
    problem: str


def list_providers(config: Config, environ: Mapping[str, str]) -> list[ProviderRow]:
    return [_describe(name, provider, config, environ) for name, provider in config.providers.items()]


def _describe(name: str, provider: ProviderConfig, config: Config, environ: Mapping[str, str]) -> ProviderRow:
    problems = [problem.message for problem in find_unreadable_secrets(provider, environ)]
    source = provider.api_key or getattr(provider, "credentials", None)
    return ProviderRow(
        name=name,
        kind=provider.preset or provider.kind,
        endpoint=provider.endpoint or "",
        protocols=provider.protocols,
        credential="" if source is None else str(source),
        origin=config.origins.get(f"providers.{name}.kind", "built in"),
        problem="; ".join(problems),
    )


def find_vendor(kind: str) -> Preset | None:
    """Return the preset of that name, None for one of the kinds; raise InvalidArgument for any other word."""
    preset = load_presets().get(kind)
    if preset is None and kind not in KINDS:
        nearest = suggest(kind, (*KINDS, *load_presets()))
        raise InvalidArgument(f'There is no vendor "{kind}"{nearest or "."} `dragoman providers presets` lists all.')
    return preset


def plan_addition(source: ConfigSource, name: str, section: Section) -> FileEdit:
    """Return the change that adds a section, checked as a whole."""
    if not PROVIDER_NAME.fullmatch(name) or "." in name:
        raise InvalidArgument(
            f'"{name}" is not a valid name of a provider: use letters, digits, hyphens and underscores.'
        )
    config = source.read()
    if _is_in_file(config, name):
        raise AdminError(
            f'There is a provider "{name}" in {config.source} already. Edit it there, or pass another --name.'
        )
    edit = _plan(config_path(source, config), lambda path: plan_edit(path, merge_toml, {"providers": {name: section}}))
    _check(edit, source)
    return edit


def plan_removal(source: ConfigSource, name: str) -> FileEdit:
    """Return the change that removes a section, checked as a whole."""
    config = source.read()
    if not _is_in_file(config, name):
        raise AdminError(_explain_absence(name, config))
    path = config_path(source, config)
    edit = _plan(path, lambda path: plan_edit(path, remove_toml_table, {"providers": {name: {}}}))
    _check(edit, source)
    return edit


def config_path(source: ConfigSource, config: Config) -> Path:
    """Return the configuration file, or where a new one belongs."""
    return config.source or user_config_file(source.environ, source.home)


def _is_in_file(config: Config, name: str) -> bool:
    origin = config.origins.get(f"providers.{name}.kind", "")
    return config.source is not None and origin.startswith(f"{config.source}:")


def _explain_absence(name: str, config: Config) -> str:
    if name not in config.providers:
        return f'There is no provider "{name}"{suggest(name, list(config.providers)) or "."}'
    origin = config.origins.get(f"providers.{name}.kind")
    if origin is None:
        return f'"{name}" is built in: it is there as long as there is no other provider.'
    return f'"{name}" is not in a file. It was found at: {origin}. Remove that, and the provider is gone.'


def _plan(path: Path, plan: PlanEdit) -> FileEdit:
    try:
        return plan(path)
    except CannotMerge as reason:
        raise AdminError(f"{path} was not changed: {reason}. Edit it yourself.") from reason


def _check(edit: FileEdit, source: ConfigSource) -> None:
    """Raise ConfigError if the file would be invalid after the edit."""
    directory = edit.path.parent if edit.path.parent.is_dir() else None
    handle, temporary = tempfile.mkstemp(prefix=".dragoman-check-", suffix=".toml", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(edit.new)
        ConfigSource(temporary, source.environ, source.directory, source.home).read()
    except ConfigError as error:
        raise AdminError(
            f"{edit.path} was not changed, because it would then be invalid:\n"
            + str(error).replace(temporary, str(edit.path))
        ) from error
    finally:
        os.unlink(temporary)
