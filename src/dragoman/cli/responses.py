"""`dragoman responses`: list, show and delete stored responses."""

import asyncio
from datetime import datetime

import click

from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import config_option, read_settings, store_options
from dragoman.operate.stored_responses import open_stored
from dragoman.store.response_rows import ResponseRow

HEADINGS = ("ID", "CREATED", "KEY", "MODE", "STATUS", "MODEL", "ROUTE")


@click.group("responses")
def command() -> None:
    """List, show and delete stored responses."""


@command.command("list")
@click.option("--key", metavar="ID", help="Only those of the client key with this id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, metavar="N", show_default=True, help="How many.")
@store_options
def list_responses(key: str | None, limit: int, config_file: str | None, as_json: bool) -> None:
    """List stored responses, newest first."""

    async def read() -> tuple[ResponseRow, ...]:
        async with open_stored(read_settings(config_file)) as stored:
            return await stored.list(key, limit)

    rows = asyncio.run(read())
    if as_json:
        show_json([_describe(row) for row in rows])
        return
    if not rows:
        click.echo("No responses are stored.")
        return
    show_table(HEADINGS, [tuple(str(value) for value in _describe(row).values()) for row in rows])


@command.command("show")
@click.argument("id")
@config_option
def show(id: str, config_file: str | None) -> None:
    """Show a stored response as JSON, as its client sees it."""

    async def read() -> dict[str, object]:
        async with open_stored(read_settings(config_file)) as stored:
            return await stored.show(id)

    show_json(asyncio.run(read()))


@command.command("delete")
@click.argument("id")
@config_option
def delete(id: str, config_file: str | None) -> None:
    """Delete a stored response."""

    async def remove() -> None:
        async with open_stored(read_settings(config_file)) as stored:
            await stored.delete(id)

    asyncio.run(remove())
    print_note(f"Deleted {id}.")


def _describe(row: ResponseRow) -> dict[str, object]:
    created = datetime.fromtimestamp(row.created_at).isoformat(" ", "seconds")
    return {
        "id": row.id,
        "created": created,
        "key": row.owner,
        "mode": row.mode or "foreground",
        "status": row.status,
        "model": row.model,
        "route": row.route,
    }
