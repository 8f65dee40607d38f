"""A running gateway comes in; readings of what it has done and has under way go out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from dragoman.flow.serve import Gateway
from dragoman.http.site import Site
from dragoman.net.server import Server
from dragoman.observers import metrics_catalogue as catalogue
from dragoman.observers.metrics_text import Reading


def gateway_readings(
    gateway: Gateway, site: Site, server: Server, reloads: Mapping[str, int]
) -> Callable[[], Iterable[Reading]]:
    """`reloads` are edited configurations, taken over or not."""

    def readings() -> Iterator[Reading]:
        told = (
            (catalogue.ANSWERED, gateway.answered),
            (catalogue.REFUSED, gateway.refused),
            (catalogue.TRIPS, gateway.trips),
            (catalogue.UNOBSERVED, gateway.unobserved),
            (catalogue.STREAMS, gateway.streams),
            (catalogue.UNDER_WAY, site.under_way),
            (catalogue.CONNECTIONS, server.connections),
        )
        for family, value in told:
            yield Reading(family.name, (), (value,))
        for result, count in reloads.items():
            yield Reading(catalogue.RELOADS.name, (result,), (count,))

    return readings


def provider_address(gateway: Gateway, name: str) -> tuple[str, int] | None:
    """Host and port at which a provider is asked, where it is asked over the network."""
    provider = gateway.world.providers.get(name)
    parts = urlsplit("" if provider is None else provider.endpoint)
    if not parts.hostname:
        return None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
