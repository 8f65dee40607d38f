"""Describe a provider and headers for a capture, without secrets and local paths."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import get_args

import msgspec

from dragoman.config.secret import Secret, SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.framing.redaction import MASK, Field
from dragoman.hub.request import Json
from dragoman.net.headers import Header
from dragoman.providers.provider import Provider

Fields = tuple[Field, ...]


def to_text(headers: Iterable[Header]) -> Fields:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def hide_values(headers: Iterable[Header], names: set[bytes]) -> Iterator[Header]:
    for name, value in headers:
        yield name, (MASK.encode() if name in names else value)


@lru_cache(maxsize=16)
def _public_settings(section: type[ProviderConfig]) -> tuple[str, ...]:
    """Return the names of settings that contain neither secrets nor local paths."""
    return tuple(field.name for field in msgspec.structs.fields(section) if not _is_private(field.type))


def _is_private(kind: object) -> bool:
    return kind in (SecretSource, Secret, Path) or any(map(_is_private, get_args(kind)))


def describe_provider(provider: Provider, section: ProviderConfig | None, hidden: set[bytes]) -> Json:
    """Return what a replay needs to make the provider again. The keys are part of the file format."""
    settings: dict[str, object] = {"name": provider.name, "kind": provider.kind}
    if section is not None:
        settings = {name: getattr(section, name) for name in _public_settings(type(section))}
    return {
        "stanza": msgspec.to_builtins(settings),
        "endpoint": provider.endpoint.url,
        "credentials": []
        if provider.account.pool is None
        else [member.label for member in provider.account.pool.members],
        "fields": [list(field) for field in to_text(hide_values(provider.endpoint.headers, hidden))],
    }
