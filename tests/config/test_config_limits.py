"""What limits and teams of dragoman.toml may be; anything else is refused by line and name."""

from pathlib import Path

import pytest

from config.test_config_mistakes import find_problems

ECHO = '[providers.echo]\nkind = "echo"\n'
VALID = (
    "usd_per_day = 0",
    "usd_per_week = 0.000000001",
    "usd_per_total = 1e9",
    "requests_per_min = 0",
    "credits_per_month = 1_000_000_000_000_000",
    "wait_s = 0",
    'time_zone = "Europe/Berlin"',
    'webhook = "http://127.0.0.1:9/budget?key=1"',
)
WRONG = {
    "usd_per_day = -1": "usd_per_day: expected a number >= 0.0",
    "usd_per_day = nan": "usd_per_day: expected a number",
    "usd_per_day = inf": "usd_per_day: expected a number <= 1000000000.0",
    "usd_per_week = 1000000001": "usd_per_week: expected a number <= 1000000000.0",
    "usd_per_month = 1e-10": "usd_per_month: expected at most 9 decimals",
    "usd_per_total = true": "usd_per_total: expected a number, got true",
    'tokens_per_day = "5"': "tokens_per_day: expected a whole number, got the string",
    "concurrent = 1.5": "concurrent: expected a whole number, got 1.5",
    "tokens_per_total = 1_000_000_000_000_001": "tokens_per_total: expected a whole number <= 1000000000000000",
    "usd_per_dya = 1": 'usd_per_dya: unknown key; did you mean "usd_per_day"?',
    'time_zone = "Mars/Olympus"': "time_zone: expected a time zone",
    'webhook = "ftp://hooks.example.com"': "webhook: expected a URL",
    'webhook = "https://"': "webhook: expected a URL",
    'webhook = "https://:80/x"': "webhook: expected a URL",
    'budget = "strikt"': 'did you mean "strict"?',
}
SECTIONS = {
    "[limits.user]\nwait_s = 1\n": ":4: limits.user.wait_s: unknown key",
    "[limits.key]\nusd_per_day = -1\n": ":4: limits.key.usd_per_day: expected a number >= 0.0",
    '[[limits.providers]]\nnames = ["ecko"]\n': ':4: limits.providers[0].names: there is no provider "ecko"',
    "[[limits.providers]]\nconcurrent = 1\n": ':3: limits.providers[0]: "names" is missing',
    '[[teams]]\nname = "a"\nlimits = { usd = 1 }\n': ":5: teams[0].limits.usd: unknown key; did you mean",
    '[[teams]]\nname = "a"\n[[teams]]\nname = "a"\n': ':6: teams[1].name: there is already a team "a" above',
    '[[teams]]\nname = "a"\nmembers = ["x", "x"]\n': ':5: teams[0].members: "x" is twice here',
    '[[teams]]\nname = "a/b"\n': ":4: teams[0].name: expected a printable name without /",
}


def test_these_limits_are_valid(tmp_path: Path) -> None:
    assert find_problems(tmp_path, f"{ECHO}[limits]\n" + "\n".join(VALID)) == []


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_limit_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    [problem] = find_problems(tmp_path, f"{ECHO}[limits]\n{line}\n")
    assert problem.startswith("4: limits.")
    assert WRONG[line] in problem


@pytest.mark.parametrize("section", SECTIONS)
def test_a_wrong_section_is_named_with_its_line(section: str, tmp_path: Path) -> None:
    [problem] = find_problems(tmp_path, ECHO + section)
    assert f":{problem}".startswith(SECTIONS[section])
