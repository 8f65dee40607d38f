"""The server of `store.shared`, if one is configured."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dragoman.config.secret import resolve_secret
from dragoman.config.settings import StoreSettings

if TYPE_CHECKING:
    from dragoman.store.valkey import Valkey


def make_shared(settings: StoreSettings, environ: Mapping[str, str]) -> "Valkey | None":
    """Return the server unasked: its first call connects. Raises ConfigError, or DriverMissing without its driver."""
    source = settings.shared
    if source is None:
        return None
    from dragoman.store.valkey import Valkey, parse_address  # slow to import, and most users have no such server

    try:
        return Valkey(parse_address(resolve_secret(source, environ).reveal()))
    except ValueError as error:
        raise source.make_error(str(error)) from None
