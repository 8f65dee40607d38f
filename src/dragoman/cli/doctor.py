"""`dragoman doctor`: check everything that can be wrong, or one provider's server in detail."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import click
import msgspec

from dragoman.cli.completion import complete_providers
from dragoman.cli.logs import NoteFormatter, log_to_stderr
from dragoman.cli.screen import count, fit, print_note, remove_control, show_json, show_table
from dragoman.cli.settings import CommonOptions, common_options, config_source, read_found_settings
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config
from dragoman.operate import AdminError
from dragoman.operate.configuration.config_file import config_path
from dragoman.operate.configuration.effective import read_with_local_servers
from dragoman.operate.diagnosis.diagnosis import (
    ProbeReport,
    choose_provider,
    examine,
    plan_probed_settings,
    probe_provider,
    report_config_errors,
)
from dragoman.upstreams.account_state import BROKEN, OK, WARNING, Finding

LABELS = {OK: "ok    ", WARNING: "note  ", BROKEN: "BROKEN"}
MAX_MESSAGE_CHARACTERS = 60


@click.command("doctor")
@click.argument("name", required=False, shell_complete=complete_providers)
@click.option("-m", "--model", metavar="M", help="With NAME: the model to use instead of the first.")
@click.option("--write", is_flag=True, help="With NAME: write the result into dragoman.toml, after a backup.")
@common_options
def command(name: str | None, model: str | None, write: bool, options: CommonOptions) -> None:
    """Check configuration, store, port, providers, search services and clock, and show what to do.

    With the NAME of a provider of kind openai-compatible: find out which protocols and parameters its server supports,
    and which protocols and quirks to configure. This sends some small requests to it.
    """
    log_to_stderr(NoteFormatter(), logging.ERROR)
    if name is not None:
        if options.url is not None:
            raise click.UsageError("--url cannot be used with NAME: the provider's own server is checked.")
        config = read_found_settings(options.config_file)
        report = _probe(config, name, model, as_json=options.as_json)
        if write:
            _write(config, report)
        elif not options.as_json:
            path = config_path(config, os.environ, Path.home())
            print_note(f"# `dragoman doctor {name} --write` writes this into {path}")
        return
    if model is not None or write:
        raise click.UsageError("--model and --write need the NAME of a provider.")
    findings = asyncio.run(_examine(options))
    broken = sum(finding.state == BROKEN for finding in findings)
    if options.as_json:
        show_json({"ok": not broken, "checks": findings})
    else:
        print_note(f"\n{count(broken, 'problem')} found." if broken else "\nNo problems found.")
    sys.exit(1 if broken else 0)


async def _examine(options: CommonOptions) -> list[Finding]:
    """Collect the findings, and print each as soon as it is made."""
    findings = []
    async for finding in _findings(options):
        findings.append(finding)
        if not options.as_json:
            line = f"{LABELS[finding.state]}  {finding.what:<22}  {finding.found}"
            click.echo(f"{line}\n{' ' * 8}→ {finding.to_do}" if finding.to_do else line)
    return findings


async def _findings(options: CommonOptions) -> AsyncIterator[Finding]:
    try:
        config = await read_with_local_servers(config_source(options.config_file))
    except ConfigError as error:
        for finding in report_config_errors(error):
            yield finding
        return
    async for finding in examine(config, os.environ, options.url):
        yield finding


def _probe(config: Config, name: str, model: str | None, *, as_json: bool) -> ProbeReport:
    """Find out what a provider supports, show it and return it; raises AdminError if it supports nothing."""
    provider = choose_provider(config, name)
    report = asyncio.run(probe_provider(provider, model, print_note))
    if as_json:
        profile = msgspec.structs.asdict(report.profile)
        undecided = sorted(report.profile.undecided)
        show_json({**profile, "undecided": undecided, "section": report.settings})
    else:
        _show_report(report)
    if not report.profile.protocols:
        raise AdminError(f"{name} responds in no protocol that dragoman knows: there is nothing to configure.")
    return report


def _show_report(report: ProbeReport) -> None:
    rows = [
        (trait.what, trait.found, trait.quirk or "", fit(remove_control(trait.message), MAX_MESSAGE_CHARACTERS))
        for trait in report.profile.traits
    ]
    show_table(("CHECK", "RESULT", "QUIRK", "SERVER'S MESSAGE"), rows)
    click.echo(f"\n[providers.{report.provider.name}]")
    for key, value in report.settings.items():
        click.echo(f"{key} = {msgspec.json.encode(value).decode()}")
    print_note(f"\n# {count(report.profile.requests, 'request')} sent. Another model of this server may differ.")


def _write(config: Config, report: ProbeReport) -> None:
    edit = plan_probed_settings(config, report, os.environ)
    if not edit.is_change:
        print_note(f"{edit.path} already has these settings.")
        return
    print_note(edit.diff())
    backup = edit.apply()
    old = f" The old file is {backup.name}." if backup is not None else ""
    print_note(f"\nWrote {edit.path}.{old}")
