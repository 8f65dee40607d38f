"""A model name comes in; the ordered `provider/model` targets that answer to it go out."""

import difflib
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from dragoman.config.settings import ModelRoute

DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class Route(Struct, frozen=True):
    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


class Known(Struct, frozen=True):
    """A provider's models; `complete` says whether one that is not listed is known not to exist."""

    ids: tuple[str, ...]
    complete: bool


def configured_targets(name: str, routes: tuple[ModelRoute, ...], providers: Mapping[str, object]) -> tuple[Route, ...]:
    """What `provider/model` and `[[models]]` say: certain, whatever the catalogues hold."""
    outright = _outright(name, providers)
    if outright is not None:
        return (outright,)
    for route in routes:
        if fnmatchcase(name, route.name):
            return tuple(_target(text, name) for text in route.to)
    return ()


def listed_targets(name: str, catalogues: Mapping[str, Known]) -> tuple[Route, ...]:
    """Who lists that id, exactly or but for its date and punctuation; else whoever might know it."""
    exact = tuple(Route(provider, name) for provider, known in catalogues.items() if name in known.ids)
    if exact:
        return exact
    wanted = normalised(name)
    close = tuple(
        Route(provider, next(id for id in known.ids if normalised(id) == wanted))
        for provider, known in catalogues.items()
        if any(normalised(id) == wanted for id in known.ids)
    )
    return close or tuple(Route(provider, name) for provider, known in catalogues.items() if not known.complete)


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


def _outright(name: str, providers: Mapping[str, object]) -> Route | None:
    provider, slash, model = name.partition("/")
    return Route(provider, model) if slash and model and provider in providers else None


def _target(text: str, asked: str) -> Route:
    provider, _, model = text.partition("/")
    return Route(provider, asked if model in ("*", "") else model)
