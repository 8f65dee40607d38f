"""`dragoman cache why`: say why a prompt cache had less of a request than it could."""

import asyncio
import os
import sys

import click
import msgspec

from dragoman.cli.completion import complete_captures
from dragoman.cli.screen import one_line, print_note, show_json
from dragoman.cli.settings import CommonOptions, common_options, key_option
from dragoman.operate import NotFound
from dragoman.operate.captures.cache_request import ask_why
from dragoman.operate.captures.cache_why import HIT, UNKNOWN, CacheExplanation
from dragoman.operate.gateway.running_gateway import choose_key, find_gateway, require_key

EXIT_CODES = {HIT: 0, UNKNOWN: 3}  # a miss that is explained: 1
NOT_FOUND = 3


@click.group("cache")
def command() -> None:
    """Look into the prompt caches of upstreams."""


@command.command("why", short_help="Explain why a request was not read from the cache.")
@click.argument("which", metavar="REQUEST", shell_complete=complete_captures)
@click.option("--against", metavar="OTHER", help="Compare with this request. [default: the session's one before]")
@key_option
@common_options
def why(which: str, against: str | None, key: str | None, options: CommonOptions) -> None:
    """Explain why an upstream read less of REQUEST from its prompt cache than it could.

    REQUEST and OTHER are request ids, their beginnings or ends, or `last`. Where both were captured, they are compared;
    else the request's row answers. The exit code is 0 for a hit, 1 for a miss that is explained, and 3 for one that is
    not, or if there is no such request.
    """
    config, url = options.config, options.url
    key = choose_key(config, key)

    async def ask() -> tuple[CacheExplanation, str]:
        root = await find_gateway(config, os.environ, url)
        return await ask_why(config, root, key if url is None else require_key(key, url), (which, against))

    try:
        found, problem = asyncio.run(ask())
    except NotFound as unknown:
        print_note(str(unknown))
        sys.exit(NOT_FOUND)
    if problem:
        print_note(f"The store was read instead of the gateway: {problem}")
    if options.as_json:
        show_json(msgspec.to_builtins(found))
    else:
        for name, text in list_lines(found):
            click.echo(f"{name:<11}{one_line(text)}".rstrip())
    sys.exit(EXIT_CODES.get(found.verdict, 1))


def list_lines(found: CacheExplanation) -> list[tuple[str, str]]:
    """Return what is printed, line by line, each with its name."""
    against = f" against {found.against}" if found.against else ""
    lines = [
        ("request", f"{found.request_id}{against}, {found.route or 'no upstream'}"),
        ("session", found.session),
        ("cache", f"{found.verdict}{'' if found.cause is None else f': {found.cause}'}"),
        ("why", found.detail),
        ("read", _describe_read(found)),
        ("byte", "" if found.first_byte is None else f"{found.first_byte:,} of the request as the vendor reads it"),
        ("upstream", found.upstream_path or ""),
        ("client", found.client_path or ""),
        ("earlier", found.earlier or ""),
        ("later", found.later or ""),
        ("tokens", _describe_tokens(found)),
        ("to do", found.remedy),
        ("source", "captures" if found.source == "captures" else "the row: two captures would tell what differs"),
    ]
    return [(name, text) for name, text in lines if text]


def _describe_read(found: CacheExplanation) -> str:
    read = "not known" if found.read_tokens is None else f"{found.read_tokens:,}"
    possible = "" if found.possible_tokens is None else f" of {found.possible_tokens:,} possible"
    whole = "" if found.input_tokens is None else f", of {found.input_tokens:,} in all"
    return f"{read}{possible} tokens{whole}"


def _describe_tokens(found: CacheExplanation) -> str:
    if found.tokens_before is None or found.tokens_after is None:
        return ""
    return f"{found.tokens_before:,} before the first difference, {found.tokens_after:,} after it"
