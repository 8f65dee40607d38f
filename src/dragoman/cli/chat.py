"""A text comes in; a model's answer is shown as it comes, its thoughts dimmed and beside it."""

import asyncio
import logging
import sys
import time

import click
import msgspec

from dragoman.cli.faults import Trouble
from dragoman.cli.gateway import Gateway, known_key, reach
from dragoman.cli.models import Page
from dragoman.cli.screen import show_json
from dragoman.cli.settings import config_option, json_option, read_found_settings
from dragoman.config import Config

MAX_TOKENS = 8192
THINKING_TOKENS = 4096


@click.command("chat")
@click.argument("text", nargs=-1, required=True)
@click.option("-m", "--model", metavar="MODEL", help="The model to ask; the first of `dragoman models` if not given.")
@click.option("--think", is_flag=True, help="Ask the model to think first.")
@click.option("-v", "--verbose", is_flag=True, help="Say who answered, how fast, and how many tokens it took.")
@config_option
@click.option("--key", metavar="KEY", help="The client key; $DRAGOMAN_API_KEY is the better place.")
@json_option
def command(
    text: tuple[str, ...],
    model: str | None,
    think: bool,
    verbose: bool,
    config_file: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Ask a model and see its answer as it comes. TEXT "-" reads standard input."""
    from dragoman.cli.logs import Remark, log_to_stderr

    log_to_stderr(Remark(), logging.ERROR)
    said = sys.stdin.read() if text == ("-",) else " ".join(text)
    if not said.strip():
        raise click.UsageError("there is nothing to say: TEXT is empty.")
    for name, words in (("TEXT", said), ("--model", model or "")):
        if not _is_text(words):
            raise click.UsageError(f"{name} is not valid UTF-8.")
    asyncio.run(_chat(read_found_settings(config_file), key, _Question(said, model, think), _Manner(verbose, as_json)))


def _is_text(words: str) -> bool:
    """Whether all bytes that the shell passed on could be decoded."""
    return not any("\ud800" <= character <= "\udfff" for character in words)


class _Question(msgspec.Struct, frozen=True):
    text: str
    model: str | None
    think: bool


class _Manner(msgspec.Struct, frozen=True):
    verbose: bool
    as_json: bool


async def _chat(config: Config, given_key: str | None, question: _Question, manner: _Manner) -> None:
    from dragoman.cli.conversation import Answered, Reader, Screen, told

    async with reach(config, known_key(config, given_key)) as gateway:
        model = question.model or await _first_model(gateway)
        began = time.monotonic()
        silence_s = config.server.idle_timeout_s
        answer = await gateway.send("POST", "/v1/messages", _body(question, model), silence_s)
        screen = None if manner.as_json else Screen()
        try:
            reader = Reader(answer, screen, silence_s)
            reply = await reader.read()
        finally:
            answer.close()
            if screen is not None:
                screen.close()
        route = (answer.headers.get(b"x-dragoman-route") or b"").decode("latin-1")
        answered = Answered(reply, route, reader.first_s(began), time.monotonic() - began)
    if manner.as_json:
        show_json(told(answered))
    elif screen is not None:
        screen.conclude(answered, verbose=manner.verbose)
    answered.raise_failure()


def _body(question: _Question, model: str) -> bytes:
    body: dict[str, object] = {
        "model": model,
        "max_tokens": MAX_TOKENS + (THINKING_TOKENS if question.think else 0),
        "stream": True,
        "messages": [{"role": "user", "content": question.text}],
    }
    if question.think:
        body["thinking"] = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
    return msgspec.json.encode(body)


async def _first_model(gateway: Gateway) -> str:
    models = msgspec.json.decode(await gateway.get("/v1/models"), type=Page).data
    if not models:
        raise Trouble("no provider lists its models: name one with -m, or see `dragoman doctor`.")
    return models[0].id
