"""How to point each client at this gateway, as JSON."""

from collections.abc import Iterator, Sequence

from dragoman.accounts.access import Scope
from dragoman.admin.clients import RECIPES, Recipe, Target
from dragoman.admin.launching import choose_model, find_window
from dragoman.config import Config
from dragoman.flow.gateway import Gateway
from dragoman.flow.runtime import list_known_models
from dragoman.http.api.parameters import Parameters
from dragoman.http.api.responses import PREFIX, respond
from dragoman.http.routes import Role, Route, RoutedRequest
from dragoman.routing.resolve import list_names


class ConnectApi:
    """Lists the clients with the lines to paste."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> Iterator[Route]:
        yield Route("GET", f"{PREFIX}connect", Role.OWN, self._list_clients, scope=Scope.MODELS_READ)

    async def _list_clients(self, request: RoutedRequest) -> None:
        Parameters(request.exchange.query, ())
        headers = request.exchange.headers
        scheme = "https" if headers.get(b"x-forwarded-proto") == b"https" else "http"
        root = f"{scheme}://{(headers.get(b'host') or b'').decode('latin-1')}"
        runtime = self._gateway.runtime
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
