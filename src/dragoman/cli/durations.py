"""Durations in arguments of commands, such as 90m or 7d."""

import re

import click

DURATION = re.compile(r"(\d{1,6})([smhdw])?")
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the seconds of a duration such as 90m, 24h or 7d."""
    if text is None:
        return None
    found = DURATION.fullmatch(text)
    if found is None:
        raise click.BadParameter("use a duration such as 90m, 24h or 7d")
    return int(found[1]) * UNIT_S[found[2] or "s"]
