"""A provider's name comes in; what its server takes goes out, as a table and as lines for dragoman.toml, or into it."""

import asyncio
import os
from difflib import get_close_matches
from pathlib import Path

import click
import msgspec

from dragoman.admin import settings_file as files
from dragoman.admin.settings_text import CannotMerge, merge_toml
from dragoman.cli.faults import Trouble
from dragoman.cli.screen import harmless, remark, shortened, show_json, show_table
from dragoman.config import Config, ProviderConfig
from dragoman.config.load import user_config_file
from dragoman.framing.known_secrets import Secrets, list_secrets, redact_known
from dragoman.framing.redaction import redact
from dragoman.net.client import HttpClient
from dragoman.providers.catalogue import CachedCatalogue
from dragoman.providers.compatible.probe import ProbeResult, Trait, probe
from dragoman.providers.compatible.probe_client import ProbeClient
from dragoman.providers.compatible.probe_trials import CAP, MAX_REQUESTS
from dragoman.providers.compatible.provider import make_compatible
from dragoman.providers.compatible.quirks import quirks_of
from dragoman.providers.provider import ModelInfo, Provider

Stanza = dict[str, object]
SAID = 60  # characters of a server's words


class Wish(msgspec.Struct, frozen=True):
    """What the person asked for."""

    name: str
    model: str | None
    write: bool
    as_json: bool


def examine_one(config: Config, wish: Wish) -> None:
    provider = _chosen(config, wish.name)
    profile = asyncio.run(_probed(provider, wish.model))
    stanza = stanza_of(profile, provider)
    if wish.as_json:
        show_json({**msgspec.structs.asdict(profile), "undecided": sorted(profile.undecided), "stanza": stanza})
    else:
        _show(profile, provider, stanza)
    if not profile.protocols:
        raise Trouble(f"{provider.name} answers in no protocol that we speak: nothing to write down.")
    if wish.write:
        _write(config, provider, stanza)
    elif not wish.as_json:
        remark(f"# `dragoman doctor {provider.name} --write` puts this into {_file(config)}")


def stanza_of(profile: ProbeResult, provider: ProviderConfig) -> Stanza:
    """What to write down: the protocols, the configured ones first; the quirks, if there are or were any."""
    before = [name for name in provider.protocols if name in profile.protocols]
    spoken = [*before, *(name for name in profile.protocols if name not in before)]
    known = quirks_of(provider.quirks)
    quirks = [*profile.quirks, *sorted(known & profile.undecided)]
    stanza: Stanza = {"protocol": spoken[0] if len(spoken) == 1 else spoken}
    if set(quirks) == known and provider.quirks:
        stanza["quirks"] = provider.quirks[0] if len(provider.quirks) == 1 else list(provider.quirks)
    elif quirks or provider.quirks:
        stanza["quirks"] = quirks
    return stanza


def _chosen(config: Config, name: str) -> ProviderConfig:
    provider = config.providers.get(name)
    if provider is None:
        near = get_close_matches(name, config.providers, 1)
        advice = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(config.providers)}."
        raise Trouble(f'there is no provider "{name}"; {advice}')
    if provider.kind != "openai-compatible":
        advice = "what its kind takes is known. `dragoman doctor` without a name checks it."
        raise Trouble(f'"{name}" is of kind {provider.kind}: {advice}')
    return provider


async def _probed(config: ProviderConfig, model: str | None) -> ProbeResult:
    http = HttpClient()
    try:
        provider = make_compatible(config, http.send, os.environ)
        model = model or next((info.id for info in await _listed(provider)), None)
        if model is None:
            raise Trouble(f"{config.name} lists no models: is it up? `--model M` names one.")
        cost = f"at most {MAX_REQUESTS} small requests, each for at most {CAP} tokens"
        remark(f"Asking {model} at {provider.endpoint.url}: {cost} if it heeds the cap.")
        profile = await probe(ProbeClient(provider, model), model)
        return _hide_secrets(
            profile, list_secrets(await provider.auth.authorize(provider.endpoint.protocols[0]), provider.auth.secrets)
        )
    finally:
        await http.close()


def _hide_secrets(profile: ProbeResult, secrets: Secrets) -> ProbeResult:
    """A server's words may repeat what it was sent: its key, or a secret of `headers`."""

    def hide_in(trait: Trait) -> Trait:
        said = redact_known(trait.said.encode(errors="replace"), secrets).decode()
        return msgspec.structs.replace(trait, said=redact(said))

    return msgspec.structs.replace(profile, traits=tuple(map(hide_in, profile.traits)))


async def _listed(provider: Provider) -> tuple[ModelInfo, ...]:
    return provider.catalogue.models or await CachedCatalogue(provider, asyncio.get_running_loop().time).wait_for_list()


def _show(profile: ProbeResult, provider: ProviderConfig, stanza: Stanza) -> None:
    rows = [(trait.what, trait.found, trait.quirk or "", _short(trait.said)) for trait in profile.traits]
    show_table(("WHAT", "FOUND", "QUIRK", "SAID"), rows)
    click.echo(f"\n[providers.{provider.name}]")
    for key, value in stanza.items():
        click.echo(f"{key} = {msgspec.json.encode(value).decode()}")
    remark(f"\n# {profile.requests} requests were sent. Another model of this server may differ.")


def _short(text: str) -> str:
    return shortened(harmless(text), SAID)


def _write(config: Config, provider: ProviderConfig, stanza: Stanza) -> None:
    path = _file(config)
    # A server that was found by itself is not in the file yet.
    own: Stanza = {} if config.has_providers else {"kind": provider.kind, "endpoint": provider.endpoint}
    try:
        old = files.read_text(path)
        new = merge_toml(old or "", {"providers": {provider.name: {**own, **stanza}}})
    except CannotMerge as reason:
        raise Trouble(f"{path} is left as it is: {reason}.\nPut the lines above in yourself.") from reason
    if new == old:
        remark(f"{path} is right already.")
        return
    remark(files.difference(path, old or "", new))
    backup = files.back_up(path, old)
    files.replace(path, new, files.mode_of(path))
    remark(f"\nWrote {path}; as it was: {backup.name}.")


def _file(config: Config) -> Path:
    return config.source or user_config_file(os.environ, Path.home())
