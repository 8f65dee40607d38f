"""Shell completion of arguments: models, providers, keys and captures. Whatever goes wrong, nothing is offered."""

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from io import StringIO

from click import Context, Parameter
from click.shell_completion import CompletionItem

from dragoman.cli.models import read_models
from dragoman.cli.settings import read_settings
from dragoman.config.presets import load_presets
from dragoman.config.providers import KINDS
from dragoman.config.settings import Config
from dragoman.net.client import HttpClient
from dragoman.operate.captures.files import list_captures
from dragoman.operate.gateway.running_gateway import GatewayClient, choose_key, find_gateway
from dragoman.operate.keys import open_keyring

Complete = Callable[[Context, Parameter, str], list[CompletionItem]]
Offer = tuple[str, str]  # a word, and what it is
TIMEOUT_S = 3.0


def _completer(find: Callable[[Config], Iterable[Offer]]) -> Complete:
    def complete(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with redirect_stderr(StringIO()):
                offers = list(find(read_settings(ctx.params.get("config_file"))))
        except Exception:  # a shell shows no errors of a completion
            return []
        return [CompletionItem(word, help=what) for word, what in offers if word.startswith(incomplete)]

    return complete


def _list_models(config: Config) -> Iterable[Offer]:
    """Yield what the configuration names, then what the running gateway lists."""
    names = [route.name for route in config.models if not any(sign in route.name for sign in "*?[")]
    names += [f"{name}/{model}" for name, provider in config.providers.items() for model in provider.models]
    names += asyncio.run(_list_served_models(config))
    return [(name, "") for name in dict.fromkeys(names)]


async def _list_served_models(config: Config) -> list[str]:
    key = choose_key(config, None)
    if key is None:
        return ["echo"] if "echo" in config.providers else []
    async with asyncio.timeout(TIMEOUT_S):
        root = await find_gateway(config, os.environ)
        if root is None:
            return []
        async with HttpClient() as http:
            return (await read_models(GatewayClient(root, key, http))).ids


def _list_providers(config: Config) -> Iterable[Offer]:
    return [(name, provider.preset or provider.kind) for name, provider in config.providers.items()]


def _list_kinds(config: Config) -> Iterable[Offer]:
    presets = [(name, preset.title) for name, preset in load_presets().items()]
    return [*presets, *((kind, "") for kind in KINDS)]


def _list_keys(config: Config) -> Iterable[Offer]:
    return asyncio.run(_read_keys(config))


async def _read_keys(config: Config) -> list[Offer]:
    async with open_keyring(config) as keyring:
        return [(row.id, row.name) for row in await keyring.list() if row.revoked_at is None]


def _list_captures(config: Config) -> Iterable[Offer]:
    found = [(kept.summary.request_id, kept.summary.route) for kept in reversed(list_captures(config.debug))]
    return [("last", "the newest"), *found] if found else []


complete_models = _completer(_list_models)
complete_providers = _completer(_list_providers)
complete_kinds = _completer(_list_kinds)
complete_keys = _completer(_list_keys)
complete_captures = _completer(_list_captures)
