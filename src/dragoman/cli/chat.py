"""`dragoman chat`: send a prompt to a model and show the reply as it streams."""

import asyncio
import logging
import sys
import time

import click
import msgspec

from dragoman.admin.errors import AdminError
from dragoman.admin.running_gateway import GatewayClient, choose_key
from dragoman.cli.completing import complete_models
from dragoman.cli.gateway import open_gateway
from dragoman.cli.models import Page
from dragoman.cli.screen import show_json
from dragoman.cli.settings import config_option, json_option, key_option, read_found_settings
from dragoman.config import Config

MAX_TOKENS = 8192
THINKING_TOKENS = 4096
MAX_SEARCHES = 5


@click.command("chat")
@click.argument("text", nargs=-1, required=True)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="The model to use. [default: the first of `dragoman models`]",
)
@click.option("--think", is_flag=True, help="Ask the model to think first.")
@click.option("--search", is_flag=True, help="Let the model search the web, and list the pages that it cites.")
@click.option("-v", "--verbose", is_flag=True, help="Show the route, the timing and the token counts.")
@config_option
@key_option
@json_option
def command(
    text: tuple[str, ...],
    model: str | None,
    think: bool,
    search: bool,
    verbose: bool,
    config_file: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Send TEXT to a model and show the reply as it streams. TEXT "-" reads standard input."""
    from dragoman.cli.logs import RemarkFormatter, log_to_stderr

    log_to_stderr(RemarkFormatter(), logging.ERROR)
    prompt = sys.stdin.read() if text == ("-",) else " ".join(text)
    if not prompt.strip():
        raise click.UsageError("TEXT is empty.")
    for name, value in (("TEXT", prompt), ("--model", model or "")):
        if not _is_decoded(value):
            raise click.UsageError(f"{name} is not valid UTF-8.")
    output = _Output(verbose, as_json)
    asyncio.run(_chat(read_found_settings(config_file), key, _Prompt(prompt, model, think, search), output))


def _is_decoded(text: str) -> bool:
    """Return whether all bytes that the shell passed on could be decoded."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


class _Prompt(msgspec.Struct, frozen=True):
    text: str
    model: str | None
    think: bool
    search: bool


class _Output(msgspec.Struct, frozen=True):
    verbose: bool
    as_json: bool


async def _chat(config: Config, given_key: str | None, prompt: _Prompt, output: _Output) -> None:
    from dragoman.cli.conversation import ChatResult, ReplyReader, Screen

    async with open_gateway(config, choose_key(config, given_key)) as gateway:
        model = prompt.model or await _first_model(gateway)
        began = time.monotonic()
        timeout_s = config.server.idle_timeout_s
        response = await gateway.send("POST", "/v1/messages", _body(prompt, model), timeout_s)
        screen = None if output.as_json else Screen()
        try:
            reader = ReplyReader(response, screen, timeout_s)
            reply = await reader.read()
        finally:
            response.close()
            if screen is not None:
                screen.close()
        route = (response.headers.get(b"x-dragoman-route") or b"").decode("latin-1")
        result = ChatResult(reply, route, reader.first_s(began), time.monotonic() - began)
    if output.as_json:
        show_json(result.as_record())
    elif screen is not None:
        if prompt.search:
            screen.show_sources(result)
        if output.verbose:
            screen.show_summary(result)
    result.raise_failure()


def _body(prompt: _Prompt, model: str) -> bytes:
    body: dict[str, object] = {
        "model": model,
        "max_tokens": MAX_TOKENS + (THINKING_TOKENS if prompt.think else 0),
        "stream": True,
        "messages": [{"role": "user", "content": prompt.text}],
    }
    if prompt.think:
        body["thinking"] = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
    if prompt.search:
        body["tools"] = [{"type": "web_search_20250305", "name": "web_search", "max_uses": MAX_SEARCHES}]
    return msgspec.json.encode(body)


async def _first_model(gateway: GatewayClient) -> str:
    models = msgspec.json.decode(await gateway.get("/v1/models"), type=Page).data
    if not models:
        raise AdminError("No provider lists its models. Name a model with -m, or run `dragoman doctor`.")
    return models[0].id
