"""Which upstreams serve a model name: pure functions over the configuration and the catalogues."""

import re
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct

from dragoman.config.providers import PICKER_NAME
from dragoman.config.settings import ModelRoute

# Claude Code's picker lists only names with "claude" or "anthropic" in them: it gets all others behind this prefix too.
PICKER_PREFIX = f"{PICKER_NAME}/"
DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class Route(Struct, frozen=True, cache_hash=True):
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


class KnownModels(Struct, frozen=True):
    """A provider's models; if `complete`, a model that is not listed does not exist.

    An incomplete list with a `problem` could not be read; without a problem, the provider has no list.
    """

    ids: tuple[str, ...]
    complete: bool
    rename: Callable[[str], str] = lambda name: name
    problem: str = ""
    unlisted: Collection[str] = ()  # ids that the provider serves, whether its list has them or not


def find_configured_targets(
    name: str, routes: tuple[ModelRoute, ...], providers: Mapping[str, HasCatalogue]
) -> tuple[Route, ...]:
    """Return the targets of `provider/model` and of `[[models]]`, whatever the catalogues contain.

    A request for `provider/model` matches a configured name only if that spells out the provider: `*` must not hide
    every provider. In its targets, `*` stands for the model without the provider.
    """
    provider, slash, model = name.partition("/")
    outright = Route(provider, model) if slash and model and provider in providers else None
    kept = name if outright is None else outright.model
    for route in routes:
        if route.name != name and not fnmatchcase(name, route.name):
            continue
        if outright is None or route.name.partition("/")[0] == outright.provider:
            return tuple(_rename_target(_parse_target(text, kept), providers) for text in route.to)
    return () if outright is None else (_rename_target(outright, providers),)


def find_listed_targets(name: str, catalogues: Mapping[str, KnownModels]) -> tuple[Route, ...]:
    """Return the providers that list the id, exactly or but for its date and punctuation.

    Without one, return those that serve it without listing it; else those that have no list.

    A provider whose list could not be read is not a target: most names are not its own, and its failure would be
    reported instead of the unknown name.
    """
    exact = tuple(Route(provider, name) for provider, known in catalogues.items() if name in known.ids)
    if exact:
        return exact
    close = tuple(
        Route(provider, id)
        for provider, known in catalogues.items()
        if (id := _find_listed_id(name, known)) is not None
    )
    if close:
        return close
    renamed = tuple((Route(provider, known.rename(name)), known) for provider, known in catalogues.items())
    unlisted = tuple(route for route, known in renamed if route.model in known.unlisted)
    return unlisted or tuple(route for route, known in renamed if not known.complete and not known.problem)


def find_known_id(name: str, known: KnownModels) -> str | None:
    """Return the id by which a provider has the model of a target; None if its list says that it has none."""
    listed = name if name in known.ids else _find_listed_id(name, known)
    return listed or (None if known.complete and name not in known.unlisted else name)


def normalise_id(name: str) -> str:
    """Return an id without date and with one spelling: claude-sonnet-4.5 is claude-sonnet-4-5-20250929."""
    return DATED.sub("", name.lower()).replace(".", "-").replace("_", "-")


def find_similar_names(
    name: str, routes: tuple[ModelRoute, ...], catalogues: Mapping[str, KnownModels]
) -> tuple[str, ...]:
    """Return existing names that resemble the given one."""
    import difflib  # 0.3 MB, only for a model that does not exist

    names = list_names(routes, catalogues)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    return tuple(close or names[:3])


def list_names(routes: tuple[ModelRoute, ...], catalogues: Mapping[str, KnownModels]) -> list[str]:
    """Return what `/v1/models` lists: configured names, then `provider/id`, and the bare id where it is unambiguous."""
    names = [route.name for route in routes if not re.search(r"[*?\[]", route.name)]
    for provider, known in catalogues.items():
        names += [f"{provider}/{id}" for id in known.ids]
    owners: dict[str, int] = {}
    for known in catalogues.values():
        for id in known.ids:
            owners[id] = owners.get(id, 0) + 1
    names += [id for id, count in owners.items() if count == 1]
    return list(dict.fromkeys(names))


def _find_listed_id(name: str, known: KnownModels) -> str | None:
    """Return the listed id that a name means which is not listed itself."""
    own = known.rename(name)
    if own in known.ids:
        return own
    normal, date = normalise_id(name), _read_date(name)
    matching = [id for id in known.ids if normalise_id(id) == normal]
    return max(matching, key=lambda id: (_read_date(id) == date, _read_date(id) == "", _read_date(id)), default=None)


def _read_date(id: str) -> str:
    """Return the date in an id, by which snapshots are compared; empty for one that the vendor keeps current."""
    dated = DATED.search(id)
    return "" if dated is None else dated[1].replace("-", "").replace("latest", "")


def _rename_target(route: Route, providers: Mapping[str, HasCatalogue]) -> Route:
    provider = providers.get(route.provider)
    return route if provider is None else Route(route.provider, provider.catalogue.rename(route.model))


def _parse_target(text: str, requested: str) -> Route:
    provider, _, model = text.partition("/")
    return Route(provider, requested if model in ("*", "") else model)
