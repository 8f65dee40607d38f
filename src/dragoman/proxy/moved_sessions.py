"""Remember which conversations were taken over by a target that is not their first: their prompt cache is there."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec
from msgspec import Struct

from dragoman.net.body_threads import run_off_loop
from dragoman.net.tasks import spawn
from dragoman.proxy.call import Call
from dragoman.proxy.ports import OtherProcesses
from dragoman.translate.caching.session_names import digest_beginning, read_name
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.request import Role
from dragoman.upstreams.routing import Route

MAX_SESSIONS = 10_000
LIFE_S = 3600.0  # after the last request: no cache with marks lives longer
SESSION_MOVED = "session-moved"
_FIELD = "move"


class _Move(Struct, frozen=True):
    key: bytes  # digest of the conversation
    tenant: str
    route: Route | None  # None: it is back at its first target
    expires_at: float


class MovedSessions:
    """The conversations of this process, least recently used first; other processes learn of each move."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.time
        self._moves: OrderedDict[bytes, _Move] = OrderedDict()
        self._counts: Counter[str] = Counter()  # by tenant; none without any
        self._others: OtherProcesses | None = None

    @property
    def count(self) -> int:
        """Return how many conversations are remembered."""
        return len(self._moves)

    def join_group(self, others: OtherProcesses) -> None:
        self._others = others
        others.answer(SESSION_MOVED, self._answer_moved)

    def has_any(self, tenant: str) -> bool:
        return tenant in self._counts

    def find(self, key: bytes) -> Route | None:
        """Return the target that has a conversation, if it is not its first one."""
        move = self._moves.get(key)
        return None if move is None or move.expires_at < self.clock() else move.route

    def record(self, key: bytes, tenant: str, route: Route | None) -> None:
        """Remember which target has answered a conversation; None: its first one."""
        old, now = self._moves.get(key), self.clock()
        move = _Move(key, tenant, route, now + LIFE_S)
        self._keep(move)
        is_known = route is None if old is None else old.route == route and old.expires_at > now + LIFE_S / 2
        if self._others is not None and not is_known:
            question = {_FIELD: msgspec.json.encode(move).decode()}
            spawn(self._others.ask_all(SESSION_MOVED, question), name="report a session that moved")

    def _keep(self, move: _Move) -> None:
        self._forget(self._moves.get(move.key))
        if move.route is not None:
            self._moves[move.key] = move
            self._counts[move.tenant] += 1
        if len(self._moves) > MAX_SESSIONS:
            self._forget(next(iter(self._moves.values())))

    def _forget(self, move: _Move | None) -> None:
        if move is None:
            return
        del self._moves[move.key]
        self._counts[move.tenant] -= 1
        if not self._counts[move.tenant]:
            del self._counts[move.tenant]

    async def _answer_moved(self, question: Mapping[str, str]) -> bytes:
        self._keep(msgspec.json.decode(question[_FIELD], type=_Move))
        return b""


class CallTargets:
    """The targets of one call that has several: first the one that has its conversation."""

    def __init__(self, call: Call, moved: MovedSessions) -> None:
        self._call = call
        self._moved = moved
        self._key: bytes | None = None  # of the conversation, once it matters
        self._continues = False  # it has an answer already; a new one begins at the first target

    async def order(self, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        """Return the targets in the order in which they are tried."""
        if not self._moved.has_any(self._call.tenant):  # as of nearly every request
            return routes
        await self._identify()
        route = self._moved.find(self._key) if self._key is not None and self._continues else None
        return routes if route not in routes else (route, *(one for one in routes if one != route))

    async def prepare(self, route: Route) -> None:
        """Identify the conversation, if this target would take it over."""
        if route != self._call.routes[0] and self._key is None:
            await self._identify()

    def record(self, route: Route) -> None:
        """Note which target has answered."""
        is_first = route == self._call.routes[0]
        if self._key is not None and (self._continues or not is_first):
            self._moved.record(self._key, self._call.tenant, None if is_first else route)

    async def _identify(self) -> None:
        try:
            await self._call.read()
        except RequestError:  # a body that only its own protocol can read
            return
        self._key = await run_off_loop(self._call.size, self._digest)
        self._continues = any(turn.role is Role.ASSISTANT for turn in self._call.request().turns)

    def _digest(self) -> bytes:
        """Several conversations may have one name, so their beginnings count as well."""
        call, request = self._call, self._call.request()
        name = f"{call.tenant}\0{read_name(call.headers.get, request)}\0{digest_beginning(request)}"
        return blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
