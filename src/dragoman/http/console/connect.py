"""How to point each client at this gateway, as JSON."""

from collections.abc import Sequence

from dragoman.admin.clients import RECIPES, Recipe
from dragoman.admin.configuration import Target
from dragoman.admin.launching import choose_model, find_window
from dragoman.config import Config
from dragoman.flow.gateway import Gateway
from dragoman.flow.runtime import list_known_models
from dragoman.http.api.wire import Parameters, respond
from dragoman.http.routes import RoutedRequest
from dragoman.routing import list_names


async def list_clients(gateway: Gateway, request: RoutedRequest) -> None:
    """Respond with the clients and the lines to paste for each."""
    Parameters(request.exchange.query, ())
    headers = request.exchange.headers
    scheme = "https" if headers.get(b"x-forwarded-proto") == b"https" else "http"
    root = f"{scheme}://{(headers.get(b'host') or b'').decode('latin-1')}"
    runtime = gateway.runtime
    models = list_names(runtime.config.models, list_known_models(runtime))
    clients = [_describe(name, root, runtime.config, models) for name in RECIPES]
    respond(request, {"clients": clients})


def _describe(name: str, root: str, config: Config, models: Sequence[str]) -> dict[str, object]:
    recipe = RECIPES[name]
    return {
        "name": name,
        "title": recipe.title,
        "protocol": recipe.protocol,
        "lines": recipe.lines(_choose_target(recipe, root, config, models)),
        "writes": recipe.file is not None,
        "is_file": recipe.lines_are_file,
        "notes": [*recipe.notes, *(recipe.notes_on_file if recipe.lines_are_file else ())],
    }


def _choose_target(recipe: Recipe, root: str, config: Config, models: Sequence[str]) -> Target:
    model = choose_model(recipe, config, None, lambda: models)
    return Target(root, model, None if model is None else find_window(config, model))
