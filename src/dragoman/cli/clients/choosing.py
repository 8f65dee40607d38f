"""Choose the model that a client's settings should name where the person names none."""

import asyncio
from collections.abc import Sequence

from dragoman.admin.clients import Recipe
from dragoman.cli.faults import Trouble
from dragoman.cli.settings import suggested_model
from dragoman.config import Config


def choose_model(recipe: Recipe, config: Config, present: object) -> str | None:
    """Return the model that the settings name already if the gateway serves it, else the most useful one it has.

    None where no provider can be asked and the configuration names no model.
    """
    suggested = suggested_model(config)
    if present is None and suggested is not None:
        return suggested
    listed = _list_ids(config)
    if isinstance(present, str) and _is_served(present, listed, config):
        return present
    return suggested or _most_useful(listed, recipe.prefers)


def _list_ids(config: Config) -> list[str]:
    from dragoman.cli.models import list_models
    from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout

    try:
        return [model.id for model in asyncio.run(list_models(config))]
    except (Trouble, ConnectionLost, UpstreamTimeout, SizeLimitExceeded):
        return []


def _is_served(name: str, listed: Sequence[str], config: Config) -> bool:
    from dragoman.routing.resolve import configured_targets

    if name in listed:
        return True
    return bool(configured_targets(name, config.models, {}))


def _most_useful(listed: Sequence[str], prefers: Sequence[str]) -> str | None:
    """Return the first model whose name holds the first of the preferred parts that any name holds."""
    for part in (*prefers, ""):
        found = [id for id in listed if part in id.rpartition("/")[2]]
        if found:
            return found[0]
    return None
