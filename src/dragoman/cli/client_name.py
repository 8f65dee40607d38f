"""The name of a client as an argument: `connect` and `launch` take each other's names."""

import click

from dragoman.operate.clients.connecting import RECIPES
from dragoman.operate.clients.launching import LAUNCHES

NAMES_OF_LAUNCH = {launch.recipe: name for name, launch in LAUNCHES.items()}
NAMES_OF_RECIPES = {name: launch.recipe for name, launch in LAUNCHES.items()}


class ConnectedClient(click.Choice[str]):
    """A client that `connect` knows."""

    def __init__(self) -> None:
        super().__init__(list(RECIPES))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(NAMES_OF_RECIPES.get(value, value), param, ctx)


class LaunchedClient(click.Choice[str]):
    """A client that `launch` can start."""

    def __init__(self) -> None:
        super().__init__(list(LAUNCHES))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = NAMES_OF_LAUNCH.get(value, value)
        if name not in LAUNCHES and name in RECIPES:
            self.fail(f"`launch` cannot start {name}. `dragoman connect {name}` shows what to set.", param, ctx)
        return super().convert(name, param, ctx)
