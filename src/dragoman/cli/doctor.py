"""Nothing comes in; every part that can be wrong is looked at, and what to do about it goes out."""

import asyncio
import logging
import sys

import click

from dragoman.cli.diagnosis import Findings, examine
from dragoman.cli.screen import remark, show_json
from dragoman.cli.settings import config_option, json_option, read_found_settings
from dragoman.config import Config, ConfigError
from dragoman.providers.finding import BROKEN, Finding

SIGNS = {"ok": "ok    ", "warning": "note  ", "broken": "BROKEN"}


@click.command("doctor")
@config_option
@json_option
def command(config_file: str | None, as_json: bool) -> None:
    """Check configuration, store, port, providers and clock, and say what to do."""
    from dragoman.cli.logs import Remark, log_to_stderr

    log_to_stderr(Remark(), logging.ERROR)
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
    source = str(config.source) if config.source else "no dragoman.toml: defaults and environment"
    return [
        Finding("configuration", "ok", source),
        *(Finding("configuration", "warning", warning) for warning in config.warnings),
    ]


def _shown(finding: Finding) -> str:
    line = f"{SIGNS[finding.state]}  {finding.what:<22}  {finding.found}"
    return f"{line}\n{' ' * 8}→ {finding.to_do}" if finding.to_do else line
