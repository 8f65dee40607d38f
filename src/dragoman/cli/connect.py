"""`dragoman connect`: show the lines that point a client at this gateway, or write them into its own settings."""

import asyncio
import os
from functools import cached_property
from pathlib import Path

import click

from dragoman.cli.client_name import ConnectedClient
from dragoman.cli.completion import complete_models
from dragoman.cli.models import ModelPage, read_page
from dragoman.cli.screen import print_note, show_json
from dragoman.cli.settings import CommonOptions, common_options, read_found_settings
from dragoman.config.settings import Config
from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate import AdminError
from dragoman.operate.clients.connecting import RECIPES, Recipe, SettingsFile
from dragoman.operate.clients.launching import choose_model, find_window
from dragoman.operate.clients.settings_file import list_backups, read_text
from dragoman.operate.clients.settings_format import CannotMerge
from dragoman.operate.clients.written_settings import choose_defaults, combine, plan_undo, plan_write, write
from dragoman.operate.configuration.effective import GatewayTarget, base_url
from dragoman.operate.gateway.running_gateway import find_gateway


@click.command("connect", epilog=f"CLIENT is one of: {', '.join(RECIPES)}.")
@click.argument("client", metavar="CLIENT", type=ConnectedClient())
@click.option("--write", "is_writing", is_flag=True, help="Write into the client's own settings, after a backup.")
@click.option("--undo", is_flag=True, help="Take back what --write has written, and nothing else.")
@click.option(
    "-m", "--model", metavar="M", shell_complete=complete_models, help="The model that the client should use."
)
@common_options
def command(
    client: str,
    is_writing: bool,
    undo: bool,
    model: str | None,
    options: CommonOptions,
) -> None:
    """Show how to point CLIENT at this gateway, or write it into the client's own settings."""
    if is_writing and undo:
        raise click.UsageError("--write and --undo cannot be used together.")
    recipe = RECIPES[client]
    if undo:
        if recipe.file is None:
            raise AdminError(f"There is nothing to undo. {recipe.why_no_file}")
        files = [file for file in (recipe.file, recipe.second_file) if file is not None]
        undone = [_undo_file(file) for file in files]
        if not any(undone):
            raise AdminError(_explain_no_record(_path(recipe.file)))
        return
    config, url = read_found_settings(options.config_file), options.url
    root = asyncio.run(find_gateway(config, os.environ, url)) or base_url(config.server.host, config.server.port)
    targets = Targets(config, root, recipe, url)
    if is_writing and recipe.file is not None:
        _write(client, recipe.file, targets, model)
        return
    target = targets.choose(model)
    if options.as_json:
        show_json(_fields(client, recipe, target))
    else:
        _show(client, recipe, target, is_writing=is_writing)


class Targets:
    """Chooses model and context window for one client; the models are listed at most once, and only if needed."""

    def __init__(self, config: Config, root: str, recipe: Recipe, url: str | None) -> None:
        self._config, self._root, self._recipe, self._url = config, root, recipe, url

    @cached_property
    def _page(self) -> ModelPage:
        try:
            return asyncio.run(read_page(self._config, url=self._url))
        except (AdminError, ConnectionLost, UpstreamTimeout, SizeLimitExceeded):
            return ModelPage()

    def choose(self, model: str | None, present: object = None) -> GatewayTarget:
        """Return the target with the given model, else with `present` if it is served, else with the best one."""
        model = model or choose_model(self._recipe, self._config, present, lambda: self._page.ids)
        window = None if model is None else find_window(self._config, model, self._page.windows)
        return GatewayTarget(self._root, model, window)


def _show(client: str, recipe: Recipe, target: GatewayTarget, *, is_writing: bool) -> None:
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


def _write(client: str, file: SettingsFile, targets: Targets, model: str | None) -> None:
    recipe = RECIPES[client]
    path = _path(file)
    try:
        text = read_text(path) or ""
        file.format.read(text)  # fails before any model list is read
        target = targets.choose(model, file.read_model(text))
        if target.model is None:
            if file.needs_model:
                raise click.UsageError(f"{recipe.title} needs a model: --model M. `dragoman models` lists them.")
            print_note("No model is known, so none is written: --model M names one.")
        is_written = _write_file(client, file, target)
    except CannotMerge as reason:
        raise AdminError(
            f"{path} was not changed: {reason}.\nAdd these lines yourself: dragoman connect {client}"
        ) from reason
    if is_written:
        for note in recipe.notes_on_file:
            print_note(note)
    if recipe.second_file is not None:
        _write_second(client, recipe.second_file, target)


def _write_second(client: str, file: SettingsFile, target: GatewayTarget) -> None:
    """Write what has no place in the first file."""
    try:
        _write_file(client, file, target)
    except CannotMerge as reason:
        raise AdminError(
            f"{_path(file)} was not changed: {reason}.\n`dragoman connect {client}` says what to add."
        ) from reason


def _write_file(client: str, file: SettingsFile, target: GatewayTarget) -> bool:
    """Write settings into one file, and return whether that changed it."""
    path, format = _path(file), file.format
    settings = combine(file.settings(target), choose_defaults(path, format, file.defaults(target)))
    if not settings:
        return False
    edit = plan_write(path, format, settings)
    if not edit.is_change:
        click.echo(f"{path} already has these settings.")
        return False
    click.echo(edit.diff())
    backup = write(edit, format, settings)
    old = f" The old file is {backup.name}." if backup is not None else ""
    click.echo(f"\nWrote {path}.{old} `dragoman connect {client} --undo` takes it back.\n")
    return True


def _undo_file(file: SettingsFile) -> bool:
    """Take back what was written into one file, and return whether there was anything."""
    path = _path(file)
    try:
        undo = plan_undo(path, file.format)
    except CannotMerge as reason:
        raise AdminError(f"{path} was not changed: {reason}.{_describe_backups(path)}") from reason
    if undo is None:
        return False
    click.echo(undo.edit.diff())
    undo.apply()
    if undo.removes_file:
        click.echo(f"\nRemoved {path}: it had only what dragoman wrote.")
    else:
        click.echo(f"\nTook back what dragoman wrote into {path}.")
    if undo.left:
        print_note(f"Left as they are, because they were changed since: {', '.join(map('.'.join, undo.left))}")
    return True


def _explain_no_record(path: Path) -> str:
    return f"There is nothing to undo: dragoman has no record of writing into {path}.{_describe_backups(path)}"


def _describe_backups(path: Path) -> str:
    backups = list_backups(path)
    return f" The newest backup of it is {backups[-1].name}." if backups else ""


def _fields(client: str, recipe: Recipe, target: GatewayTarget) -> dict[str, object]:
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
