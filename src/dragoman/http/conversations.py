"""Conversations over HTTP: the paths /conversations and below."""

from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl

from dragoman.accounts.keys import KeyId
from dragoman.http.routes import Role, Route, RoutedRequest, nothing_at, respond_json
from dragoman.hub.request import Json
from dragoman.protocols.responses.state_items import read_request
from dragoman.responses.conversations import Conversations, render
from dragoman.responses.service import includes_opaque, read_page

PATH = "/conversations"


class ConversationsApi:
    """Answers requests about the conversations of one client key at a time."""

    def __init__(self, conversations: Conversations, tenant: Callable[[KeyId], str]) -> None:
        self._conversations = conversations
        self._tenant = tenant

    def routes(self) -> Iterator[Route]:
        yield Route("POST", PATH, Role.CLIENT, self._create)
        yield Route("GET", f"{PATH}/*", Role.CLIENT, self._get)
        yield Route("POST", f"{PATH}/*", Role.CLIENT, self._post)
        yield Route("DELETE", f"{PATH}/*", Role.CLIENT, self._delete)

    async def _create(self, request: RoutedRequest) -> None:
        respond_json(request, await self._conversations.create(self._tenant(request.key), await _read(request)))

    async def _get(self, request: RoutedRequest) -> None:
        owner, parameters = self._tenant(request.key), parse_qsl(request.exchange.query, keep_blank_values=True)
        match request.rest.split("/"):
            case [id]:
                respond_json(request, render(await self._conversations.find(owner, id)))
            case [id, "items"]:
                respond_json(request, await self._conversations.list(owner, id, read_page(parameters)))
            case [id, "items", item]:
                shows = includes_opaque(parameters)
                respond_json(request, await self._conversations.item(owner, id, item, shows_hidden=shows))
            case _:
                raise nothing_at(request)

    async def _post(self, request: RoutedRequest) -> None:
        owner, raw = self._tenant(request.key), await _read(request)
        match request.rest.split("/"):
            case [id]:
                respond_json(request, await self._conversations.update(owner, id, raw))
            case [id, "items"]:
                respond_json(request, await self._conversations.add(owner, id, raw))
            case _:
                raise nothing_at(request)

    async def _delete(self, request: RoutedRequest) -> None:
        owner = self._tenant(request.key)
        match request.rest.split("/"):
            case [id]:
                respond_json(request, await self._conversations.delete(owner, id))
            case [id, "items", item]:
                respond_json(request, await self._conversations.delete_item(owner, id, item))
            case _:
                raise nothing_at(request)


async def _read(request: RoutedRequest) -> dict[str, Json]:
    return read_request(await request.exchange.body() or b"{}")
