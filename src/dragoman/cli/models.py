"""`dragoman models`: list the models that clients can use."""

import asyncio
import logging

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.cli.gateway import open_gateway
from dragoman.cli.logs import NoteFormatter, log_to_stderr
from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import config_option, json_option, key_option, read_found_settings, url_option
from dragoman.config.settings import Config
from dragoman.operate import AdminError
from dragoman.operate.gateway.running_gateway import GatewayClient, choose_key

LIST = "/v1/models?client_version=1.0.0"  # with the parameter by which Codex gets the context windows, too


class ModelEntry(Struct, frozen=True):
    id: str
    owned_by: str = ""
    created: int = 0
    credit_rate: float | None = None  # by which the plan's credits are multiplied for this model


class Described(Struct, frozen=True):
    """A model as Codex reads it from the same list."""

    slug: str = ""
    context_window: int | None = None  # in tokens


class ModelPage(Struct, frozen=True):
    data: list[ModelEntry] = []
    models: list[Described] = []
    problems: dict[str, str] = {}  # provider -> why its list could not be read

    @property
    def ids(self) -> list[str]:
        return [model.id for model in self.data]

    @property
    def windows(self) -> dict[str, int]:
        """The context windows that are known, in tokens."""
        return {model.slug: model.context_window for model in self.models if model.context_window is not None}


@click.command("models")
@url_option
@config_option
@key_option
@json_option
def command(url: str | None, config_file: str | None, key: str | None, as_json: bool) -> None:
    """List the models that clients can use."""
    log_to_stderr(NoteFormatter(), logging.WARNING)
    page = asyncio.run(read_page(read_found_settings(config_file), key, url))
    for provider, problem in page.problems.items():
        print_note(f'Provider "{provider}" could not list its models: {problem}.')
    if as_json:
        show_json(page.data)
    elif page.data:
        _show_models(page.data)
    elif not page.problems:
        print_note("No models: no configured provider lists any. Name some in `models` of its section.")
    if page.problems and not page.data:
        raise AdminError("No models could be listed. Run: dragoman doctor")


def _show_models(models: list[ModelEntry]) -> None:
    if all(model.credit_rate is None for model in models):
        show_table(("MODEL", "OWNED BY"), [(model.id, model.owned_by) for model in models])
        return
    rates = ["" if model.credit_rate is None else f"{model.credit_rate:g}" for model in models]
    rows = [(model.id, model.owned_by, rate) for model, rate in zip(models, rates, strict=True)]
    show_table(("MODEL", "OWNED BY", "CREDIT RATE"), rows, numbers=("CREDIT RATE",))


async def read_page(config: Config, given_key: str | None = None, url: str | None = None) -> ModelPage:
    """Return what the running gateway lists, or what its providers list if none runs or its key is not known."""
    async with open_gateway(config, choose_key(config, given_key), url) as gateway:
        headers, body = await gateway.get_with_headers(LIST)
    page = msgspec.json.decode(body, type=ModelPage)
    problems = headers.get(b"x-dragoman-unlisted")
    return page if problems is None else replace(page, problems=msgspec.json.decode(problems, type=dict[str, str]))


async def read_models(gateway: GatewayClient) -> ModelPage:
    """Return the models that a gateway lists."""
    return msgspec.json.decode(await gateway.get(LIST), type=ModelPage)
