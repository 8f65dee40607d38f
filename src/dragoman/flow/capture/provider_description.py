"""Headers, a provider and its stanza come in; what a capture may tell of them goes out, without secrets or places."""

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


def texts(headers: Iterable[Header]) -> Fields:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def covered(headers: Iterable[Header], names: set[bytes]) -> Iterator[Header]:
    for name, value in headers:
        yield name, (MASK.encode() if name in names else value)


@lru_cache(maxsize=16)
def _tellable(stanza: type[ProviderConfig]) -> tuple[str, ...]:
    """Names of settings that hold neither secrets nor places of this machine."""
    return tuple(field.name for field in msgspec.structs.fields(stanza) if not _holds_secret(field.type))


def _holds_secret(kind: object) -> bool:
    return kind in (SecretSource, Secret, Path) or any(map(_holds_secret, get_args(kind)))


def described(provider: Provider, stanza: ProviderConfig | None, hidden: set[bytes]) -> Json:
    """A provider as it can be made again, without its secrets."""
    told: dict[str, object] = {"name": provider.name, "kind": provider.kind}
    if stanza is not None:
        told = {name: getattr(stanza, name) for name in _tellable(type(stanza))}
    return {
        "stanza": msgspec.to_builtins(told),
        "endpoint": provider.endpoint.url,
        "credentials": []
        if provider.account.pool is None
        else [member.label for member in provider.account.pool.members],
        "fields": [list(field) for field in texts(covered(provider.endpoint.headers, hidden))],
    }
