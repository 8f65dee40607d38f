"""Keys and admin tokens. A secret is in the response that makes it, and nowhere else."""

from msgspec.structs import asdict

from dragoman.accounts.keys import Keyring, KeyRow
from dragoman.http.api.parameters import Parameters
from dragoman.http.api.responses import convert_errors, respond
from dragoman.http.routes import RoutedRequest


class KeysApi:
    """The keys of the store."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def list_keys(self, request: RoutedRequest) -> None:
        Parameters(request.exchange.query, ())
        with convert_errors():
            rows = await self._keyring.list()
        respond(request, {"keys": [describe_key(row) for row in rows], "environment_key": self._keyring.has_fixed_key})


def describe_key(row: KeyRow) -> dict[str, object]:
    return asdict(row) | {"scopes": row.scopes.split()}
