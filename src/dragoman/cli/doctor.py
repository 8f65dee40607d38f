"""Nothing comes in; every part that can be wrong is looked at, and what to do about it goes out."""

import asyncio
import logging
import sys

import click

from dragoman.cli.diagnosis import Findings, examine
from dragoman.cli.screen import remark, show_json
from dragoman.cli.settings import config_option, json_option, named_source, read_found_settings
from dragoman.config import Config, ConfigError
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding

SIGNS = {OK: "ok    ", WARNING: "note  ", BROKEN: "BROKEN"}


@click.command("doctor")
@click.argument("name", required=False)
@click.option("-m", "--model", metavar="M", help="With NAME: ask this model, not the first.")
@click.option("--write", is_flag=True, help="With NAME: put what was found into dragoman.toml, after a backup.")
@config_option
@json_option
def command(name: str | None, model: str | None, write: bool, config_file: str | None, as_json: bool) -> None:
    """Check configuration, store, port, providers and clock, and say what to do.

    With the NAME of a provider of kind openai-compatible: ask its server what it takes, and say which protocols and
    quirks to write down. This sends it some small requests.
    """
    from dragoman.cli.logs import Remark, log_to_stderr

    log_to_stderr(Remark(), logging.ERROR)
    if name is not None:
        from dragoman.cli.probing import Wish, examine_one

        examine_one(read_found_settings(config_file), Wish(name, model, write, as_json))
        return
    if model is not None or write:
        raise click.UsageError("--model and --write go with the NAME of a provider.")
    findings = _examined(config_file)
    broken = sum(finding.state == BROKEN for finding in findings)
    if as_json:
        show_json({"ok": not broken, "checks": findings})
    else:
        for finding in findings:
            click.echo(_shown(finding))
        remark(f"\n{broken} broken." if broken else "\nAll is well.")
    sys.exit(1 if broken else 0)


def _examined(config_file: str | None) -> Findings:
    try:
        config = read_found_settings(config_file)
    except ConfigError as error:
        advice = "mend the line; `dragoman config check` tells when it is right"
        return [Finding("configuration", BROKEN, str(problem), advice) for problem in error.problems]
    return [*_configuration(config), *asyncio.run(examine(config))]


def _configuration(config: Config) -> Findings:
    return [
        Finding("configuration", OK, named_source(config)),
        *(Finding("configuration", WARNING, warning) for warning in config.warnings),
    ]


def _shown(finding: Finding) -> str:
    line = f"{SIGNS[finding.state]}  {finding.what:<22}  {finding.found}"
    return f"{line}\n{' ' * 8}→ {finding.to_do}" if finding.to_do else line
