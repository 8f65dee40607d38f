"""`dragoman quirks`: show and forget what was learned from the rejections of upstreams."""

import asyncio

import click

from dragoman.cli.completion import complete_providers
from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import config_option, read_settings, store_options
from dragoman.operate.quirks import forget_learned, list_learned

HEADINGS = ("RULE", "PATH", "PROVIDER", "MODEL", "KEY", "LEARNED", "UNTIL")


@click.group("quirks", invoke_without_command=True)
@store_options
@click.pass_context
def command(context: click.Context, config_file: str | None, as_json: bool) -> None:
    """Show what is left out of requests because upstreams rejected it."""
    if context.invoked_subcommand is not None:
        return
    rules = asyncio.run(list_learned(read_settings(config_file)))
    if as_json:
        show_json(rules)
        return
    if not rules:
        print_note("No rules were learned in the last 24 hours.")
        return
    rows = [
        (rule.rule, rule.path or "-", rule.provider, rule.model or "all", rule.key, rule.learnt, rule.until)
        for rule in rules
    ]
    show_table(HEADINGS, rows)


@command.command("forget")
@click.argument("provider", required=False, shell_complete=complete_providers)
@click.option("--all", "all_providers", is_flag=True, help="Forget the rules of all providers.")
@config_option
def forget(provider: str | None, all_providers: bool, config_file: str | None) -> None:
    """Forget the rules of a provider. A running gateway then tries the full form of requests again."""
    if (provider is None) is not all_providers:
        raise click.UsageError("Name a provider, or give --all.")
    count = asyncio.run(forget_learned(read_settings(config_file), provider))
    click.echo(f"Forgot {count} {'rule' if count == 1 else 'rules'}.")
