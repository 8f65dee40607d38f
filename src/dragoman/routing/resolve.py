"""A model name comes in; the ordered `provider/model` targets that answer to it go out."""

import difflib
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct

from dragoman.config.settings import ModelRoute

DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class Route(Struct, frozen=True):
    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


class Renames(Protocol):
    """A catalogue, as far as routing needs it."""

    @property
    def rename(self) -> Callable[[str], str]: ...


class HasCatalogue(Protocol):
    """A provider, as far as routing needs it."""

    @property
    def catalogue(self) -> Renames: ...


class Known(Struct, frozen=True):
    """A provider's models; `complete` says whether one that is not listed is known not to exist.

    An incomplete list with a `problem` is one that could not be read; without one, the provider has no list.
    """

    ids: tuple[str, ...]
    complete: bool
    rename: Callable[[str], str] = lambda name: name
    problem: str = ""


def configured_targets(
    name: str, routes: tuple[ModelRoute, ...], providers: Mapping[str, HasCatalogue]
) -> tuple[Route, ...]:
    """What `provider/model` and `[[models]]` say: certain, whatever the catalogues hold."""
    outright = _outright(name, providers)
    if outright is not None:
        return (_renamed(outright, providers),)
    for route in routes:
        if fnmatchcase(name, route.name):
            return tuple(_renamed(_target(text, name), providers) for text in route.to)
    return ()


def listed_targets(name: str, catalogues: Mapping[str, Known]) -> tuple[Route, ...]:
    """Who lists that id, exactly or but for its date and punctuation; else whoever has no list and might serve it.

    A provider whose list could not be read is no target: most names are not its own, and its failure would be
    reported in place of the unknown name.
    """
    exact = tuple(Route(provider, name) for provider, known in catalogues.items() if name in known.ids)
    if exact:
        return exact
    close = tuple(
        Route(provider, id) for provider, known in catalogues.items() if (id := _close(name, known)) is not None
    )
    return close or tuple(
        Route(provider, known.rename(name))
        for provider, known in catalogues.items()
        if not known.complete and not known.problem
    )


def normalised(name: str) -> str:
    """A model id without its date, in one spelling of versions: claude-sonnet-4.5 is claude-sonnet-4-5-20250929."""
    return DATED.sub("", name.lower()).replace(".", "-").replace("_", "-")


def nearest(name: str, routes: tuple[ModelRoute, ...], catalogues: Mapping[str, Known]) -> tuple[str, ...]:
    """Names that exist and look like the one asked for."""
    names = listed_names(routes, catalogues)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    return tuple(close or names[:3])


def listed_names(routes: tuple[ModelRoute, ...], catalogues: Mapping[str, Known]) -> list[str]:
    """What `/v1/models` lists: configured names, then `provider/id`, and the bare id where it is unambiguous."""
    names = [route.name for route in routes if not re.search(r"[*?\[]", route.name)]
    for provider, known in catalogues.items():
        names += [f"{provider}/{id}" for id in known.ids]
    owners: dict[str, int] = {}
    for known in catalogues.values():
        for id in known.ids:
            owners[id] = owners.get(id, 0) + 1
    names += [id for id, count in owners.items() if count == 1]
    return list(dict.fromkeys(names))


def _close(name: str, known: Known) -> str | None:
    """The listed id that is meant by a name which is not listed itself."""
    own = known.rename(name)
    if own in known.ids:
        return own
    wanted, date = normalised(name), _date(name)
    meant = [id for id in known.ids if normalised(id) == wanted]
    return max(meant, key=lambda id: (_date(id) == date, _date(id) == "", _date(id)), default=None)


def _date(id: str) -> str:
    """Of several snapshots the one asked for is meant, else the one that the vendor keeps current, else the latest."""
    dated = DATED.search(id)
    return "" if dated is None else dated[1].replace("-", "").replace("latest", "")


def _renamed(route: Route, providers: Mapping[str, HasCatalogue]) -> Route:
    provider = providers.get(route.provider)
    return route if provider is None else Route(route.provider, provider.catalogue.rename(route.model))


def _outright(name: str, providers: Mapping[str, HasCatalogue]) -> Route | None:
    provider, slash, model = name.partition("/")
    return Route(provider, model) if slash and model and provider in providers else None


def _target(text: str, asked: str) -> Route:
    provider, _, model = text.partition("/")
    return Route(provider, asked if model in ("*", "") else model)
