"""How to point each client at this gateway, as JSON."""

from collections.abc import Iterator

from dragoman.accounts.access import Scope
from dragoman.admin.clients import RECIPES, Recipe, Target
from dragoman.admin.configuration import suggest_model
from dragoman.flow.gateway import Gateway
from dragoman.http.api.parameters import Parameters
from dragoman.http.api.responses import PREFIX, respond
from dragoman.http.routes import Role, Route, RoutedRequest


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
        host = (headers.get(b"host") or b"").decode("latin-1")
        target = Target(f"{scheme}://{host}", suggest_model(self._gateway.runtime.config))
        respond(request, {"clients": [_describe(name, recipe, target) for name, recipe in RECIPES.items()]})


def _describe(name: str, recipe: Recipe, target: Target) -> dict[str, object]:
    return {
        "name": name,
        "title": recipe.title,
        "protocol": recipe.protocol,
        "lines": recipe.lines(target),
        "writes": recipe.file is not None,
        "notes": [*recipe.notes, *(recipe.notes_on_file if recipe.lines_are_file else ())],
    }
