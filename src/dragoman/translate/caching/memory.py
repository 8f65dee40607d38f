"""Remember what sessions have sent, as digests without content: bounded, and least recently used first to go.

No clock is read: `at` is when a request starts, in seconds.
"""

from collections import OrderedDict, deque

from msgspec import Struct

from dragoman.translate.hub.caching import (
    FIVE_MINUTES,
    ONE_HOUR,
    Moved,
    SentPrompt,
    SessionMemory,
    WrittenPrefix,
)

MAX_BRANCHES = 16
MAX_BYTES = 32 * 1024 * 1024
NEW_SESSIONS = 32  # of a client key at one upstream, by which its one-shot requests are recognised
MAX_KEYS = 2048  # client keys at an upstream for which new sessions are remembered
SHORT_GAP_S = 300.0
LONG_GAP_S = 3600.0
_SESSION_BYTES = 800  # what a session takes besides its digests and its name
_BRANCH_BYTES = 200
_KEY_BYTES = 1000  # what the new sessions of a client key at an upstream take, and each of them
_NEW_SESSION_BYTES = 130


class SessionId(Struct, frozen=True, cache_hash=True):
    """Whose prompts are compared: caches are shared neither by accounts nor by models."""

    tenant: str
    session: str
    provider: str
    credential: int
    model: str


class _NewSession(Struct):
    head: bytes
    is_continued: bool = False


class _Session(Struct):
    branches: list[bytes]  # the one that was extended last at the end
    written: list[WrittenPrefix]  # by the last request of each of them
    started_at: float  # of the last request
    ttl: str
    novelty: _NewSession
    strays: int = 0
    size: int = 0


class SessionMemories:
    """The memory of one process."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()
        self._latest: dict[tuple[str, str], SessionId] = {}  # where the last request of (tenant, session) went
        self._new: OrderedDict[tuple[str, str], deque[_NewSession]] = OrderedDict()

    @property
    def size(self) -> int:
        """Return the bytes that are taken, roughly."""
        return self._size

    def recall(self, id: SessionId, at: float) -> SessionMemory:
        """Return what is known when a request of the session starts."""
        session = self._sessions.get(id)
        if session is None:
            return SessionMemory(one_shot_heads=self._one_shot_heads(id), moved=self._find_move(id))
        gap_s = at - session.started_at
        ttl = choose_ttl(session.ttl, gap_s) if gap_s > SHORT_GAP_S else session.ttl
        return SessionMemory(tuple(session.branches), session.strays, ttl, written=tuple(session.written))

    def record(self, id: SessionId, sent: SentPrompt, at: float) -> None:
        """Remember a request that started at `at`, once its reply has begun."""
        if not sent.chain:
            return
        session, added = self._sessions.get(id), 0
        if session is None:
            session = self._sessions[id] = _Session([], [], at, FIVE_MINUTES, self._record_new(id, sent.head))
            added = _SESSION_BYTES + len(id.tenant) + len(id.session) + len(id.provider) + len(id.model)
        else:
            self._sessions.move_to_end(id)
            gap_s = at - session.started_at
            if gap_s > SHORT_GAP_S:
                session.ttl = choose_ttl(session.ttl, gap_s)
            session.started_at = at
        added += _add_branch(session, sent, at)
        session.size += added
        self._size += added
        self._latest[id.tenant, id.session] = id
        while self._size > self._max_bytes and self._sessions:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        id, session = self._sessions.popitem(last=False)
        self._size -= session.size
        if self._latest.get((id.tenant, id.session)) == id:
            del self._latest[id.tenant, id.session]

    def _find_move(self, id: SessionId) -> Moved | None:
        latest = self._latest.get((id.tenant, id.session))
        if latest is None:
            return None
        return Moved.MODEL if latest.model != id.model else Moved.ACCOUNT

    def _record_new(self, id: SessionId, head: bytes) -> _NewSession:
        key = (id.tenant, id.provider)
        known = self._new.pop(key, None)
        if known is None:
            known = deque(maxlen=NEW_SESSIONS)
        else:
            self._size -= _measure_new(known)
        session = _NewSession(head)
        known.append(session)
        self._new[key] = known
        self._size += _measure_new(known)
        if len(self._new) > MAX_KEYS:
            self._size -= _measure_new(self._new.popitem(last=False)[1])
        return session

    def _one_shot_heads(self, id: SessionId) -> tuple[bytes, ...] | None:
        known = self._new.get((id.tenant, id.provider), ())
        if len(known) < NEW_SESSIONS or any(session.is_continued for session in known):
            return None
        return tuple({session.head: None for session in known})


def _add_branch(session: _Session, sent: SentPrompt, at: float) -> int:
    """Replace the branch that a request extends, of several the longest; return by how many bytes the session grew."""
    branches, written, chain = session.branches, session.written, sent.chain
    added, longest, place = len(chain) + _BRANCH_BYTES, -1, -1
    for number, branch in enumerate(branches):
        if len(branch) > longest and chain.startswith(branch):
            longest, place = len(branch), number
    if place >= 0:
        session.strays = 0
        session.novelty.is_continued = True
    else:
        session.strays += 1
        place = 0 if len(branches) == MAX_BRANCHES else -1  # the oldest goes
    if place >= 0:
        added -= len(branches.pop(place)) + _BRANCH_BYTES
        del written[place]
    branches.append(chain)
    written.append(WrittenPrefix(sent.written, at + sent.life_s))
    return added


def choose_ttl(current: str, gap_s: float) -> str:
    """Return how long marks should live after a pause: an hour once pauses outlast five minutes, but not an hour."""
    if gap_s > LONG_GAP_S:
        return FIVE_MINUTES
    return ONE_HOUR if gap_s > SHORT_GAP_S else current


def _measure_new(known: deque[_NewSession]) -> int:
    return _KEY_BYTES + _NEW_SESSION_BYTES * len(known)
