"""How gateways agree on cooldowns: over Valkey, else over PostgreSQL; a gateway that is alone keeps its own."""

from typing import TYPE_CHECKING, Protocol

from dragoman.store import Store
from dragoman.upstreams.credentials.shared_cooldowns import CooldownBoard

if TYPE_CHECKING:
    from dragoman.store.valkey import Valkey


class CooldownExchange(Protocol):
    """Keeps a board up to date, from its start to its stop."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


def make_exchange(board: CooldownBoard, shared: "Valkey | None", store: Store | None) -> CooldownExchange | None:
    """Return what keeps a board up to date; None if no other gateway can know of it."""
    if shared is not None:
        from dragoman.upstreams.credentials.valkey_cooldowns import ValkeyCooldowns

        return ValkeyCooldowns(board, shared)
    if store is not None and store.is_server:
        from dragoman.upstreams.credentials.stored_cooldowns import StoredCooldowns

        return StoredCooldowns(board, store)
    return None
