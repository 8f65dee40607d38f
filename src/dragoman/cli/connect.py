"""`dragoman connect`: show the lines that point a client at this gateway, or write them into its own settings."""

import asyncio
import os
from pathlib import Path

import click

from dragoman.admin import AdminError
from dragoman.admin.clients import RECIPES, Recipe, SettingsFile
from dragoman.admin.configuration import Target, base_url, suggest_model
from dragoman.admin.launching import choose_model, find_window
from dragoman.admin.running_gateway import find_gateway
from dragoman.admin.settings_file import CannotMerge, FileEdit, plan_edit, undo_newest
from dragoman.cli.completion import complete_models
from dragoman.cli.screen import print_note, show_json
from dragoman.cli.settings import config_option, json_option, read_found_settings, url_option
from dragoman.config import Config


@click.command("connect", epilog=f"CLIENT is one of: {', '.join(RECIPES)}.")
@click.argument("client", metavar="CLIENT", type=click.Choice(list(RECIPES)))
@click.option("--write", is_flag=True, help="Write into the client's own settings, after a backup.")
@click.option("--undo", is_flag=True, help="Restore the newest backup.")
@click.option(
    "-m", "--model", metavar="M", shell_complete=complete_models, help="The model that the client should use."
)
@url_option
@config_option
@json_option
def command(
    client: str, write: bool, undo: bool, model: str | None, url: str | None, config_file: str | None, as_json: bool
) -> None:
    """Show how to point CLIENT at this gateway, or write it into the client's own settings."""
    if write and undo:
        raise click.UsageError("--write and --undo cannot be used together.")
    recipe = RECIPES[client]
    if undo:
        _undo(recipe)
        return
    config = read_found_settings(config_file)
    root = asyncio.run(find_gateway(config, os.environ, url)) or base_url(config.server.host, config.server.port)
    target = _make_target(config, root, model or suggest_model(config))
    if write and recipe.file is not None:
        _write(client, recipe, recipe.file, config, _make_target(config, root, model))
        if recipe.second_file is not None:
            _write_second(client, recipe.second_file, target)
    elif as_json:
        show_json(_fields(client, recipe, target))
    else:
        _show(client, recipe, target, is_writing=write)


def _show(client: str, recipe: Recipe, target: Target, *, is_writing: bool) -> None:
    place = f", in {_path(recipe.file)}" if recipe.file is not None and recipe.lines_are_file else ""
    print_note(f"# {recipe.title}{place}")
    click.echo("\n".join(recipe.lines(target)))
    for note in (*recipe.notes, *(recipe.notes_on_file if recipe.lines_are_file else ())):
        print_note(f"# {note}")
    if target.model is None:
        print_note("# `dragoman models` lists the models; --model fills one in for MODEL.")
    if recipe.file is not None:
        print_note(f"# `dragoman connect {client} --write` writes it into {_path(recipe.file)}")
    elif is_writing:
        print_note(f"Nothing was written. {recipe.why_no_file}")


def _write(client: str, recipe: Recipe, file: SettingsFile, config: Config, target: Target) -> None:
    path = _path(file)
    try:
        edit, target = _plan(recipe, file, config, target)
    except CannotMerge as reason:
        raise AdminError(
            f"{path} was not changed: {reason}.\nAdd these lines yourself: dragoman connect {client}"
        ) from reason
    if target.model is None:
        if file.needs_model:
            raise click.UsageError(f"{recipe.title} needs a model: --model M. `dragoman models` lists them.")
        print_note("No model is known, so none is written: --model M names one.")
    if not edit.is_change:
        click.echo(f"{path} has these settings already.")
        return
    click.echo(edit.diff())
    backup = edit.apply()
    click.echo(f"\nWrote {path}. The old file is {backup.name}; `dragoman connect {client} --undo` restores it.")
    for note in (*recipe.notes, *recipe.notes_on_file):
        print_note(note)


def _write_second(client: str, file: SettingsFile, target: Target) -> None:
    """Write what else a client needs; the first file names address and model."""
    path = _path(file)
    try:
        edit = plan_edit(path, file.merge, file.settings(target))
    except CannotMerge as reason:
        raise AdminError(
            f"{path} was not changed: {reason}.\n`dragoman connect {client}` says what to add."
        ) from reason
    if edit.is_change:
        click.echo(f"\n{edit.diff()}")
        backup = edit.apply()
        click.echo(f"\nWrote {path}. The old file is {backup.name}.")


def _plan(recipe: Recipe, file: SettingsFile, config: Config, target: Target) -> tuple[FileEdit, Target]:
    """Choose a model where none is given, and return the change of the client's settings file."""
    edit = plan_edit(_path(file), file.merge, file.settings(target))  # fails before any model list is read
    if target.model is not None:
        return edit, target
    present = file.read_model(edit.old or "")
    target = _make_target(config, target.root, choose_model(recipe, config, present, lambda: _list_model_ids(config)))
    return plan_edit(_path(file), file.merge, file.settings(target)), target


def _make_target(config: Config, root: str, model: str | None) -> Target:
    return Target(root, model, None if model is None else find_window(config, model))


def _list_model_ids(config: Config) -> list[str]:
    from dragoman.cli.models import list_models
    from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout

    try:
        return [model.id for model in asyncio.run(list_models(config))]
    except (AdminError, ConnectionLost, UpstreamTimeout, SizeLimitExceeded):
        return []


def _undo(recipe: Recipe) -> None:
    if recipe.file is None:
        raise AdminError(f"There is nothing to undo. {recipe.why_no_file}")
    path = _path(recipe.file)
    backup = undo_newest(path)
    if backup is None:
        raise AdminError(f"There is no backup of {path}: dragoman has not written it, or every change is undone.")
    click.echo(f"{path} is as it was before {backup.name.rpartition('-')[2]}.")
    if recipe.second_file is not None and undo_newest(_path(recipe.second_file)) is not None:
        click.echo(f"So is {_path(recipe.second_file)}.")


def _fields(client: str, recipe: Recipe, target: Target) -> dict[str, object]:
    file = recipe.file
    return {
        "client": client,
        "base_url": recipe.base_url(target),
        "model": target.model,
        "lines": recipe.lines(target),
        "file": str(_path(file)) if file is not None else None,
        "settings": file.settings(target) if file is not None else None,
        "notes": [*recipe.notes, *recipe.notes_on_file, *([recipe.why_no_file] if recipe.why_no_file else [])],
    }


def _path(file: SettingsFile) -> Path:
    return file.find(os.environ, Path.home())
