"""A client's name comes in; the lines that point it at this gateway go out, or into its own settings."""

import os
from pathlib import Path

import click

from dragoman.admin import settings_file as files
from dragoman.admin.clients import RECIPES, Recipe, SettingsFile, Target
from dragoman.admin.settings_text import CannotMerge
from dragoman.cli.clients.choosing import choose_model
from dragoman.cli.faults import Trouble
from dragoman.cli.screen import remark, show_json
from dragoman.cli.settings import base_url, config_option, json_option, read_found_settings, suggested_model
from dragoman.config import Config


@click.command("connect")
@click.argument("client", type=click.Choice(list(RECIPES)))
@click.option("--write", is_flag=True, help="Merge into the client's own settings, after a backup.")
@click.option("--undo", is_flag=True, help="Put the newest backup back.")
@click.option("-m", "--model", metavar="M", help="The model the client should ask for.")
@config_option
@json_option
def command(client: str, write: bool, undo: bool, model: str | None, config_file: str | None, as_json: bool) -> None:
    """Show what points a client at this gateway, or write it into the client's own settings."""
    if write and undo:
        raise click.UsageError("--write and --undo exclude each other.")
    recipe = RECIPES[client]
    if undo:
        _undo(recipe)
        return
    config = read_found_settings(config_file)
    root = base_url(config.server.host, config.server.port)
    target = Target(root, model or suggested_model(config))
    if write and recipe.file is not None:
        _write(recipe, recipe.file, config, Target(root, model))
    elif as_json:
        show_json(_told(client, recipe, target))
    else:
        _show(recipe, target, wanted_file=write)
    _warn(recipe)


def _show(recipe: Recipe, target: Target, *, wanted_file: bool) -> None:
    place = f", in {_path(recipe.file)}" if recipe.file is not None and recipe.lines_are_file else ""
    remark(f"# {recipe.title}{place}")
    click.echo("\n".join(recipe.lines(target)))
    for note in (*recipe.notes, *(recipe.notes_on_file if recipe.lines_are_file else ())):
        remark(f"# {note}")
    if target.model is None:
        remark("# `dragoman models` lists what MODEL may be; --model puts it in.")
    if recipe.file is not None:
        remark(f"# `dragoman connect {_name(recipe)} --write` merges it into {_path(recipe.file)}")
    elif wanted_file:
        remark(f"Nothing was written: {recipe.why_no_file}")


def _write(recipe: Recipe, file: SettingsFile, config: Config, target: Target) -> None:
    path = _path(file)
    try:
        old = files.read_text(path)
        file.merge(old or "", file.settings(target))  # what cannot be changed is known before anybody is asked
        if target.model is None:
            target = Target(target.root, choose_model(recipe, config, file.read_model(old or "")))
        new = file.merge(old or "", file.settings(target))
    except CannotMerge as reason:
        advice = f"Put these lines in yourself: dragoman connect {_name(recipe)}"
        raise Trouble(f"{path} is left as it is: {reason}.\n{advice}") from reason
    if target.model is None:
        if file.needs_model:
            raise click.UsageError(f"{recipe.title} must be told a model: --model M; `dragoman models` lists them.")
        remark("No model is known, so none is written: --model M names one.")
    if new == old:
        click.echo(f"{path} is right already.")
        return
    click.echo(files.difference(path, old or "", new))
    backup = files.back_up(path, old)
    files.replace(path, new, files.mode_of(path))
    click.echo(f"\nWrote {path}; as it was: {backup.name}; `dragoman connect {_name(recipe)} --undo` puts it back.")
    for note in (*recipe.notes, *recipe.notes_on_file):
        remark(note)


def _undo(recipe: Recipe) -> None:
    if recipe.file is None:
        raise Trouble(f"there is nothing to undo: {recipe.why_no_file}")
    path = _path(recipe.file)
    backup = files.newest_backup(path)
    if backup is None:
        raise Trouble(f"there is no backup of {path}: dragoman has not written it, or all is undone.")
    files.put_back(path, backup)
    click.echo(f"{path} is as it was before {backup.name.rpartition('-')[2]}.")


def _warn(recipe: Recipe) -> None:
    from dragoman.protocols import PROTOCOLS

    if PROTOCOLS[recipe.protocol].client is None:
        remark(f"Note: this version does not yet serve the protocol that {recipe.title} speaks ({recipe.protocol}).")


def _told(client: str, recipe: Recipe, target: Target) -> dict[str, object]:
    file = recipe.file
    return {
        "client": client,
        "base_url": target.root if recipe.protocol in ("messages", "gemini") else target.api,
        "model": target.model,
        "lines": recipe.lines(target),
        "file": str(_path(file)) if file is not None else None,
        "settings": file.settings(target) if file is not None else None,
        "notes": [*recipe.notes, *recipe.notes_on_file, *([recipe.why_no_file] if recipe.why_no_file else [])],
    }


def _path(file: SettingsFile) -> Path:
    return file.where(os.environ, Path.home())


def _name(recipe: Recipe) -> str:
    return next(name for name, known in RECIPES.items() if known is recipe)
