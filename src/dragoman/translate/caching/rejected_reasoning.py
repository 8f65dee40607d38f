"""Remember which reasoning upstreams have rejected, as digests without content: least recently used first to go."""

from collections import Counter, OrderedDict

from msgspec import Struct

from dragoman.translate.passes.adapt_turns import DIGEST_BYTES

MAX_VALUES = 1000  # of one session at one provider; the oldest go first
MAX_BYTES = 8 * 1024 * 1024
_SESSION_BYTES = 400  # what a session takes besides its digests and its name


class ReasoningSession(Struct, frozen=True):
    """Whose reasoning was rejected, and by which provider."""

    tenant: str
    session: str
    provider: str


class RejectedReasoning:
    """The memory of one process. Digests of one session stand one after the other, the latest at the end."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._sessions: OrderedDict[ReasoningSession, bytes] = OrderedDict()
        self.counts: Counter[tuple[str, str]] = Counter()  # (tenant, provider) -> its sessions; none without any

    @property
    def size(self) -> int:
        """Return the bytes that are taken, roughly."""
        return self._size

    def recall(self, id: ReasoningSession) -> bytes:
        """Return the digests of what was rejected in the session; empty: nothing."""
        digests = self._sessions.get(id, b"")
        if digests:
            self._sessions.move_to_end(id)
        return digests

    def record(self, id: ReasoningSession, digests: bytes) -> None:
        """Remember these as well."""
        known = self._sessions.pop(id, None)
        if known is None:
            self.counts[id.tenant, id.provider] += 1
        else:
            self._size -= _measure(id, known)
        in_order = dict.fromkeys(split_digests(digests))
        kept = [digest for digest in split_digests(known or b"") if digest not in in_order]
        self._sessions[id] = digests = b"".join([*kept, *in_order][-MAX_VALUES:])
        self._size += _measure(id, digests)
        while self._size > self._max_bytes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        id, digests = self._sessions.popitem(last=False)
        self._size -= _measure(id, digests)
        key = (id.tenant, id.provider)
        self.counts[key] -= 1
        if not self.counts[key]:
            del self.counts[key]


def split_digests(digests: bytes) -> list[bytes]:
    return [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)]


def _measure(id: ReasoningSession, digests: bytes) -> int:
    return _SESSION_BYTES + len(id.tenant) + len(id.session) + len(id.provider) + len(digests)
