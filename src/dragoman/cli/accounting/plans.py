"""A configuration comes in; how much of each account's plan is used goes out, asked of the providers now."""

import os

from dragoman.cli.screen import remark, show_json, show_table
from dragoman.config import Config, ConfigError
from dragoman.config.providers import split_by_credential
from dragoman.hub.failure import RequestError
from dragoman.net.client import HttpClient
from dragoman.providers import KINDS
from dragoman.providers.account_state import Quota

HEADINGS = ("PROVIDER", "PLAN", "WHAT", "USED", "LIMIT", "RESET ON")
BAR = 20


async def show_plans(config: Config, as_json: bool) -> int:
    """The exit code: 1 where an account could not be asked."""
    quotas, problems = await _asked(config)
    if as_json:
        show_json(quotas)
    elif quotas:
        show_table(HEADINGS, [_row(quota) for quota in quotas])
    for problem in problems:
        remark(problem)
    if not quotas and not problems:
        remark("No configured provider tells how much of its plan is used.")
    return 1 if problems else 0


async def _asked(config: Config) -> tuple[list[Quota], list[str]]:
    http = HttpClient()
    quotas: list[Quota] = []
    problems: list[str] = []
    try:
        for stanza in (single for provider in config.providers.values() for single in split_by_credential(provider)):
            name = stanza.name
            try:
                provider = KINDS[stanza.kind](stanza, http.send, os.environ) if stanza.kind in KINDS else None
                if provider is not None and provider.account.read_quotas is not None:
                    quotas += await provider.account.read_quotas()
            except RequestError as refused:
                problems.append(f"{name}: {refused.failure.message} `dragoman doctor` says what to do.")
            except ConfigError as error:
                problems.append(str(error))
    finally:
        await http.close()
    return quotas, problems


def _row(quota: Quota) -> tuple[str, ...]:
    return (quota.provider, quota.plan, quota.what, f"{quota.used:g}", _limit(quota), quota.resets_on or "–")


def _limit(quota: Quota) -> str:
    """The limit, with a bar that shows how much of it is gone."""
    if not quota.limit:
        return "–"
    filled = min(BAR, round(BAR * quota.used / quota.limit))
    return f"{quota.limit:g} [{'#' * filled}{'.' * (BAR - filled)}]"
