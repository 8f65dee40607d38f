"""Find out what an openai-compatible server supports, and write the matching settings into dragoman.toml."""

import asyncio
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.admin import settings_file
from dragoman.admin.errors import AdminError, InvalidArgument, NotFound
from dragoman.admin.settings_file import CannotMerge, FileEdit, merge_toml
from dragoman.config import Config, ProviderConfig
from dragoman.config.load import user_config_file
from dragoman.framing.known_secrets import Secrets, list_secrets, redact_known
from dragoman.framing.redaction import redact
from dragoman.net.client import HttpClient
from dragoman.providers.api_key import expand_quirks, make_compatible
from dragoman.providers.catalogue import CachedCatalogue
from dragoman.providers.compatible.probe import ProbeResult, Trait, probe
from dragoman.providers.compatible.probe_client import ProbeClient
from dragoman.providers.compatible.probe_trials import CAP, MAX_REQUESTS
from dragoman.providers.provider import ModelInfo, Provider

ProviderSettings = dict[str, object]


class ProbeReport(Struct, frozen=True):
    """What was found, and the settings that follow from it."""

    provider: ProviderConfig
    profile: ProbeResult
    settings: ProviderSettings


def choose_provider(config: Config, name: str) -> ProviderConfig:
    """Return the provider of that name; only one of kind openai-compatible can be probed."""
    provider = config.providers.get(name)
    if provider is None:
        similar = get_close_matches(name, config.providers, 1)
        hint = f'Did you mean "{similar[0]}"?' if similar else f"Configured: {', '.join(config.providers)}."
        raise NotFound(f'There is no provider "{name}". {hint}')
    if provider.kind != "openai-compatible":
        raise InvalidArgument(
            f'Provider "{name}" is of kind {provider.kind}, which needs no probing: '
            "`dragoman doctor` without a name checks it."
        )
    return provider


async def probe_provider(
    config: ProviderConfig, model: str | None, report_progress: Callable[[str], None]
) -> ProbeReport:
    """Send small requests to a provider's server and report what it supports."""
    http = HttpClient()
    try:
        provider = make_compatible(config, http.send, os.environ)
        model = model or next((info.id for info in await _list_models(provider)), None)
        if model is None:
            raise AdminError(f"{config.name} lists no models. Is its server up? `--model M` names a model.")
        report_progress(
            f"Probing {model} at {provider.endpoint.url}: at most {MAX_REQUESTS} small requests, "
            f"each for at most {CAP} tokens if the server respects the limit."
        )
        profile = await probe(ProbeClient(provider, model), model)
        secrets = list_secrets(await provider.auth.authorize(provider.endpoint.protocols[0]), provider.auth.secrets)
    finally:
        await http.close()
    profile = _redact(profile, secrets)
    return ProbeReport(config, profile, choose_settings(profile, config))


def choose_settings(profile: ProbeResult, provider: ProviderConfig) -> ProviderSettings:
    """Return the protocols, the configured ones first, and the quirks, if there are or were any."""
    configured = [name for name in provider.protocols if name in profile.protocols]
    protocols = [*configured, *(name for name in profile.protocols if name not in configured)]
    known = expand_quirks(provider.quirks)
    quirks = [*profile.quirks, *sorted(known & profile.undecided)]
    settings: ProviderSettings = {"protocol": protocols[0] if len(protocols) == 1 else protocols}
    if set(quirks) == known and provider.quirks:
        settings["quirks"] = provider.quirks[0] if len(provider.quirks) == 1 else list(provider.quirks)
    elif quirks or provider.quirks:
        settings["quirks"] = quirks
    return settings


def plan_edit(config: Config, report: ProbeReport, environ: Mapping[str, str]) -> FileEdit:
    """Return the change of dragoman.toml that a report calls for."""
    provider = report.provider
    path = config_path(config, environ)
    # A server that was discovered is not in the file yet.
    own: ProviderSettings = {} if config.has_providers else {"kind": provider.kind, "endpoint": provider.endpoint}
    if provider.preset and own:
        own = {"kind": provider.preset}
    try:
        settings = {"providers": {provider.name: {**own, **report.settings}}}
        return settings_file.plan_edit(path, merge_toml, settings)
    except CannotMerge as reason:
        raise AdminError(f"{path} was not changed: {reason}.\nAdd the lines above yourself.") from reason


def config_path(config: Config, environ: Mapping[str, str]) -> Path:
    """Return the configuration file, or where a new one belongs."""
    return config.source or user_config_file(environ, Path.home())


def _redact(profile: ProbeResult, secrets: Secrets) -> ProbeResult:
    """Remove secrets from a server's messages, which may repeat what it was sent."""

    def redact_trait(trait: Trait) -> Trait:
        message = redact_known(trait.message.encode(errors="replace"), secrets).decode()
        return msgspec.structs.replace(trait, message=redact(message))

    return msgspec.structs.replace(profile, traits=tuple(map(redact_trait, profile.traits)))


async def _list_models(provider: Provider) -> tuple[ModelInfo, ...]:
    return provider.catalogue.models or await CachedCatalogue(provider, asyncio.get_running_loop().time).wait_for_list()
