"""The runs of this process: found by id, by idempotency key and by request, and bounded in memory."""

from dragoman.http.run import Run

MAX_RUN_BYTES = 32 * 1024 * 1024
MAX_OWNER_BYTES = 128 * 1024 * 1024  # of all runs of one client key
MAX_BYTES = 256 * 1024 * 1024  # of all runs
EMPTY_RUN_BYTES = 2048  # what a run costs before its first event


class RunIndex:
    """Finds runs. If they need too much memory, the oldest that have ended are removed first."""

    def __init__(self, max_owner_bytes: int = MAX_OWNER_BYTES, max_bytes: int = MAX_BYTES) -> None:
        self._max_owner_bytes = max_owner_bytes
        self._max_bytes = max_bytes
        self._runs: dict[str, Run] = {}
        self._ended: dict[str, Run] = {}  # the oldest first
        self._by_key: dict[tuple[str, str, bytes], Run] = {}
        self._by_request: dict[tuple[str, bytes], list[Run]] = {}
        self._bytes_by_owner: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size(self) -> int:
        """The bytes that all runs occupy."""
        return self._bytes

    def find(self, id: str) -> Run | None:
        return self._runs.get(id)

    def find_keyed(self, owner: str, path: str, key: bytes) -> Run | None:
        return self._by_key.get((owner, path, key))

    def find_lost(self, owner: str, digest: bytes) -> Run | None:
        """Return the oldest run of the same request whose client left before the end."""
        return next((run for run in self._by_request.get((owner, digest), ()) if run.is_lost), None)

    def add(self, run: Run) -> None:
        self._runs[run.id] = run
        if run.key is not None:
            self._by_key[run.owner, run.path, run.key] = run
        else:
            self._by_request.setdefault((run.owner, run.digest), []).append(run)
        run.size += EMPTY_RUN_BYTES
        self.note_growth(run, EMPTY_RUN_BYTES)

    def note_end(self, run: Run) -> None:
        if run.id in self._runs:
            self._ended[run.id] = run

    def note_growth(self, run: Run, size: int) -> None:
        """Count what was added to a run; forget it if there is no room."""
        if not size or run.id not in self._runs:
            return
        self._count(run.owner, size)
        if run.size > MAX_RUN_BYTES or not self._has_room(run.owner):
            self.remove(run)
            run.forget()

    def remove(self, run: Run) -> None:
        """Remove a run; whoever gets it now gets the rest."""
        if self._runs.pop(run.id, None) is None:
            return
        self._ended.pop(run.id, None)
        run.clear_timer()
        self._count(run.owner, -run.size)
        if run.key is not None:
            self._by_key.pop((run.owner, run.path, run.key), None)
            return
        same = self._by_request[run.owner, run.digest]
        same.remove(run)
        if not same:
            del self._by_request[run.owner, run.digest]

    def _has_room(self, owner: str) -> bool:
        """Remove runs that have ended until there is room; return whether there is."""
        if self._fits(owner):
            return True
        for run in list(self._ended.values()):
            if run.owner == owner or self._bytes > self._max_bytes:
                self.remove(run)
                if self._fits(owner):
                    return True
        return False

    def _fits(self, owner: str) -> bool:
        return self._bytes <= self._max_bytes and self._bytes_by_owner[owner] <= self._max_owner_bytes

    def _count(self, owner: str, size: int) -> None:
        self._bytes += size
        total = self._bytes_by_owner.get(owner, 0) + size
        if total:
            self._bytes_by_owner[owner] = total
        else:
            del self._bytes_by_owner[owner]
