"""Nothing comes in; the models that clients may ask for go out, as the gateway lists them."""

import asyncio
import logging

import click
import msgspec
from msgspec import Struct

from dragoman.cli.gateway import find_running, known_key, reach
from dragoman.cli.screen import remark, show_json, show_table
from dragoman.cli.settings import config_option, json_option, read_found_settings
from dragoman.config import Config


class Model(Struct, frozen=True):
    id: str
    owned_by: str = ""
    created: int = 0


class Page(Struct, frozen=True):
    data: list[Model] = []


@click.command("models")
@config_option
@click.option("--key", metavar="KEY", help="The client key; $DRAGOMAN_API_KEY is the better place.")
@json_option
def command(config_file: str | None, key: str | None, as_json: bool) -> None:
    """List the models that clients may ask for."""
    from dragoman.cli.logs import Remark, log_to_stderr

    log_to_stderr(Remark(), logging.WARNING)
    models = asyncio.run(list_models(read_found_settings(config_file), key))
    if as_json:
        show_json(models)
        return
    if not models:
        remark("No models: `dragoman doctor` says which provider does not answer.")
        return
    show_table(("MODEL", "OWNED BY"), [(model.id, model.owned_by) for model in models])


async def list_models(config: Config, given_key: str | None = None) -> list[Model]:
    """Return what the running gateway lists, or what its providers list where none runs or its key is not known."""
    key = known_key(config, given_key)
    if key is None and (root := await find_running(config)) is not None:
        remark(f"A gateway runs at {root}, but no key for it is known ($DRAGOMAN_API_KEY): asking the providers.")
    async with reach(config, key) as gateway:
        return msgspec.json.decode(await gateway.get("/v1/models"), type=Page).data
