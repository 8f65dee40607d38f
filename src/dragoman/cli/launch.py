"""`dragoman launch`: start a client that uses the running gateway, or one that runs as long as the client."""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click

from dragoman.cli.client_name import LaunchedClient
from dragoman.cli.completion import complete_models
from dragoman.cli.gateway import start_gateway
from dragoman.cli.logs import NoteFormatter, log_to_stderr
from dragoman.cli.models import read_models
from dragoman.cli.screen import print_note
from dragoman.cli.settings import config_option, key_option, read_found_settings, url_option
from dragoman.config.settings import Config
from dragoman.net.client import HttpClient
from dragoman.operate import AdminError
from dragoman.operate.clients.connecting import RECIPES
from dragoman.operate.clients.launching import (
    LAUNCHES,
    ClientStart,
    choose_model,
    find_program,
    find_window,
    make_command,
)
from dragoman.operate.configuration.effective import GatewayTarget
from dragoman.operate.gateway.running_gateway import GatewayClient, accepts_key, choose_key, find_gateway
from dragoman.store import Store, StoreError, make_store

Arguments = tuple[str, ...]


@click.command(
    "launch",
    context_settings={"ignore_unknown_options": True},
    epilog=f"CLIENT is one of: {', '.join(LAUNCHES)}.",
)
@click.argument("client", metavar="CLIENT", type=LaunchedClient())
@click.argument("arguments", metavar="[--] [ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-m",
    "--model",
    metavar="M",
    shell_complete=complete_models,
    help="The model to use. [default: the first that suits the client]",
)
@url_option
@config_option
@key_option
def command(
    client: str, arguments: Arguments, model: str | None, url: str | None, config_file: str | None, key: str | None
) -> None:
    """Start CLIENT with its requests going through the gateway. ARGS are the client's own; nothing is written.

    The running gateway is used if $DRAGOMAN_API_KEY or --key has a key for it. Otherwise a gateway is started that
    runs as long as the client.
    """
    log_to_stderr(NoteFormatter(), logging.ERROR)
    launch = LAUNCHES[client]
    program = find_program(launch.program, os.environ)
    if program is None:
        raise AdminError(f"There is no `{launch.program}` in $PATH. Install it: {launch.install}")
    start = ClientStart(launch, program, arguments, model)
    config = read_found_settings(config_file)
    known_key = choose_key(config, key)
    root = asyncio.run(find_gateway(config, os.environ, url))
    if url is not None and known_key is None:
        raise AdminError(f"A key for {url} is needed: set $DRAGOMAN_API_KEY, or pass --key.")
    if root is None or known_key is None:
        if root is None:
            print_note("No gateway is running: one is started for this client, and ends with it.")
        else:
            print_note(
                f"A gateway runs at {root}, but $DRAGOMAN_API_KEY is not set: "
                "another one is started for this client, and ends with it."
            )
        sys.exit(asyncio.run(_run_with_gateway(config, start)))
    target = asyncio.run(_find_target(config, start, root, known_key))
    _replace_process(*make_command(start, target, known_key, os.environ))


async def _find_target(config: Config, start: ClientStart, root: str, key: str) -> GatewayTarget:
    if not await accepts_key(root, key):
        raise AdminError(
            f"The gateway at {root} rejects the key. `dragoman keys create` makes a valid one; "
            "set it as $DRAGOMAN_API_KEY, or pass it with --key."
        )
    async with HttpClient() as http:
        return await _choose_target(config, start, GatewayClient(root, key, http))


async def _choose_target(config: Config, start: ClientStart, gateway: GatewayClient) -> GatewayTarget:
    """Return address, model and window; the model is chosen if none is given."""
    launch = start.launch
    page = await read_models(gateway)
    model = start.model or choose_model(RECIPES[launch.recipe], config, None, lambda: page.ids)
    if model is None:
        raise AdminError("No model is known: no provider lists any. Name one with -m, or run `dragoman doctor`.")
    print_note(f"{launch.program} uses {model} through {gateway.root}.")
    problem = launch.find_problem()
    if problem is not None:
        print_note(problem)
    return GatewayTarget(gateway.root, model, find_window(config, model, page.windows))


async def _run_with_gateway(config: Config, start: ClientStart) -> int:
    """Run the client while a gateway runs in this process, and return its exit code."""
    async with HttpClient() as http, _open_store(config) as store, start_gateway(config, store) as (root, key):
        target = await _choose_target(config, start, GatewayClient(root, key, http))
        words, environ = make_command(start, target, key, os.environ)
        return await _run(words, environ)


@asynccontextmanager
async def _open_store(config: Config) -> AsyncIterator[Store | None]:
    """Open the store for the usage of this client; without it, the client works anyway."""
    store = make_store(config.store.url)
    try:
        opened: Store | None = store
        try:
            await store.open()
        except StoreError as error:
            print_note(f"Usage is not stored: {error}")
            opened = None
        yield opened
    finally:
        await store.close()


async def _run(words: Sequence[str], environ: dict[str, str]) -> int:
    """Run a command to its end. Ctrl-C is the client's own: the terminal sends it to both."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[Process] = loop.create_future()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    # Before the client starts, so that a signal in that moment ends the client too.
    loop.add_signal_handler(signal.SIGTERM, lambda: started.add_done_callback(_terminate))
    client = await asyncio.create_subprocess_exec(*words, env=environ)
    started.set_result(client)
    code = await client.wait()
    return 128 - code if code < 0 else code


def _terminate(started: "asyncio.Future[Process]") -> None:
    started.result().terminate()


def _replace_process(words: Sequence[str], environ: dict[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], list(words), environ)
