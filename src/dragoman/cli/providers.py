"""`dragoman providers`: list, add and remove providers, and list the vendors that have a preset."""

import os

import click

from dragoman.cli.completion import complete_kinds, complete_providers
from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import config_option, config_source, json_option, read_found_settings, store_options
from dragoman.config.presets import Preset, load_presets
from dragoman.operate import InvalidArgument
from dragoman.operate.clients.settings_file import FileEdit
from dragoman.operate.configuration.config_file import (
    Section,
    find_vendor,
    list_providers,
    plan_addition,
    plan_removal,
)

HEADINGS = ("NAME", "KIND", "ADDRESS", "CREDENTIAL", "SET BY", "PROBLEM")


@click.group("providers")
def command() -> None:
    """List, add and remove providers."""


@command.command("list", short_help="List the providers that the gateway uses.")
@store_options
def list_all(config_file: str | None, as_json: bool) -> None:
    """List the providers that the gateway uses, and where each comes from."""
    rows = list_providers(read_found_settings(config_file), os.environ)
    if as_json:
        show_json(rows)
        return
    shown = [(row.name, row.kind, row.endpoint, row.credential, row.origin, row.problem) for row in rows]
    show_table(HEADINGS, shown)


@command.command("presets")
@json_option
def presets(as_json: bool) -> None:
    """List the vendors whose name can be used as a kind."""
    if as_json:
        show_json(load_presets())
        return
    rows = [
        (name, preset.title, ", ".join(preset.keys) or "-", ", ".join(preset.protocols))
        for name, preset in load_presets().items()
    ]
    show_table(("KIND", "VENDOR", "KEY VARIABLE", "PROTOCOLS"), rows)
    print_note("# `dragoman providers add KIND` adds one.")


@command.command("add")
@click.argument("kind", shell_complete=complete_kinds)
@click.option("--name", metavar="N", help="The provider's name. [default: KIND]")
@click.option("--api-key", metavar="SOURCE", help="env:NAME or file:PATH. [default: the vendor's variable]")
@click.option("--endpoint", metavar="URL", help="The address, up to and including the version.")
@click.option("--model", "models", multiple=True, metavar="M", help="A model, for servers that list none. Repeatable.")
@click.option(
    "--set",
    "others",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other setting, for example region=eu-west-1. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show the change only.")
@config_option
def add(
    kind: str,
    name: str | None,
    api_key: str | None,
    endpoint: str | None,
    models: tuple[str, ...],
    others: tuple[str, ...],
    dry_run: bool,
    config_file: str | None,
) -> None:
    """Add a provider to dragoman.toml. KIND is a vendor (`dragoman providers presets`) or a kind such as openai."""
    section: Section = {"kind": kind}
    if api_key is not None:
        # Where a key comes from; a key itself is refused, since other users can see arguments.
        if not api_key.startswith(("env:", "file:")):
            raise click.UsageError("--api-key says where the key is: env:NAME or file:PATH. Never pass the key itself.")
        section["api_key"] = api_key
    if endpoint is not None:
        section["endpoint"] = endpoint
    if models:
        section["models"] = list(models)
    section |= dict(map(_split_setting, others))
    try:
        preset = find_vendor(kind)
        edit = plan_addition(config_source(config_file), name or kind, section)
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from error
    _write(edit, is_dry_run=dry_run)
    if not dry_run:
        _show_next_step(name or kind, preset, api_key)


@command.command("remove")
@click.argument("name", shell_complete=complete_providers)
@click.option("--dry-run", is_flag=True, help="Show the change only.")
@config_option
def remove(name: str, dry_run: bool, config_file: str | None) -> None:
    """Remove a provider from dragoman.toml."""
    _write(plan_removal(config_source(config_file), name), is_dry_run=dry_run)


def _write(edit: FileEdit, *, is_dry_run: bool) -> None:
    click.echo(edit.diff())
    if is_dry_run:
        print_note("\nNothing was written.")
        return
    backup = edit.apply()
    old = f" The old file is {backup.name}." if backup is not None else ""
    print_note(f"\nWrote {edit.path}.{old} A running gateway uses it within a second.")


def _show_next_step(name: str, preset: Preset | None, api_key: str | None) -> None:
    variable = api_key.removeprefix("env:") if api_key is not None and api_key.startswith("env:") else None
    if api_key is None and preset is not None and preset.keys:
        variable = next((key for key in preset.keys if os.environ.get(key)), preset.keys[0])
    if variable is not None and not os.environ.get(variable):
        print_note(f"${variable} is not set here: set it where the gateway starts, and restart the gateway.")
    print_note(f"`dragoman doctor` checks it; `dragoman models` lists its models as {name}/….")


def _split_setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise click.UsageError(f'--set needs KEY=VALUE, got "{text}".')
    if value in ("true", "false"):
        return key, value == "true"
    return key, float(value) if _is_number(value) and "." in value else int(value) if _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and all(character.isdigit() or character == "." for character in text)
