"""Refuse a request in the protocol of its client."""

from collections.abc import Sequence

from dragoman.net.headers import JSON, Header
from dragoman.proxy.failures import respond_with_failure
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.response_headers import id_headers
from dragoman.server.api.wire import PREFIX as API
from dragoman.server.api.wire import PRIVATE, use_api_errors
from dragoman.server.routes import MODEL, ArrivedRequest, client_at
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import Client
from dragoman.translate.protocols.relayed_paths import CLIENT as RELAYED_CLIENT
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS

OF_CONSOLE = (API, "/console")  # paths whose errors have the admin API's shape, and are not cached


class ErrorReplies:
    """Sends what a client gets in place of an answer."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def refuse(self, arrived: ArrivedRequest, refused: RequestError) -> None:
        private = PRIVATE if arrived.path.startswith(OF_CONSOLE) else ()
        respond_with_failure(arrived.sink, self._client(arrived), refused, arrived.request_id, private)

    async def respond_with_status(
        self, arrived: ArrivedRequest, status: int, failure: Failure, *fields: Header
    ) -> None:
        """Send a failure with a status that no kind of failure has."""
        client, request_id = self._client(arrived), arrived.request_id
        body = client.render_error(failure, request_id).body
        arrived.sink.respond(status, [JSON, *fields, *id_headers(client, request_id, [])], body)

    async def refuse_path(self, arrived: ArrivedRequest, methods: Sequence[str]) -> None:
        """Respond with 405 if the path has other methods; raises RequestError (404) if it has none."""
        http, allowed = arrived.http, ", ".join(methods)
        # Where the path ends with a verb, another verb is another path, even if GET finds a model there.
        has_verb = http.method == "POST" and ":" in arrived.path
        is_unknown_verb = has_verb and any(MODEL in path for path in self._client(arrived).paths)
        if not allowed or is_unknown_verb:
            raise RequestError(Failure(Kind.NOT_FOUND, f"There is nothing at {http.method} {http.path}."))
        message = f"{http.method} is not possible on {http.path}, only {allowed}."
        failure = Failure(Kind.BAD_REQUEST, message, code="method_not_allowed")
        await self.respond_with_status(arrived, 405, failure, (b"allow", allowed.encode()))

    def _client(self, arrived: ArrivedRequest) -> Client:
        http, path = arrived.http, arrived.path
        if path.removeprefix("/") in RELAYED_PATHS:
            return RELAYED_CLIENT
        client = client_at(http.method, path, self._gateway.runtime.protocols, http.headers.get)
        return use_api_errors(client) if path.startswith(OF_CONSOLE) else client
