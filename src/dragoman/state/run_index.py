"""The parked runs of a process, found by id, by idempotency key and by request, and bounded in memory."""

from dragoman.state.parked_run import ParkedRun

MAX_RUN_BYTES = 32 * 1024 * 1024
MAX_OWNER_BYTES = 128 * 1024 * 1024  # of all runs of one client key
MAX_BYTES = 256 * 1024 * 1024  # of all runs
EMPTY_RUN_BYTES = 2048  # what a run costs before its first event


class RunIndex:
    """The runs that clients may come back to. It is searched in many requests: nothing here waits.

    If runs need too much memory, the oldest that have ended are removed first.
    """

    def __init__(self, max_owner_bytes: int = MAX_OWNER_BYTES, max_bytes: int = MAX_BYTES) -> None:
        self._max_owner_bytes = max_owner_bytes
        self._max_bytes = max_bytes
        self._runs: dict[str, ParkedRun] = {}
        self._ended: dict[str, ParkedRun] = {}  # the oldest first
        self._by_key: dict[tuple[str, str, bytes], ParkedRun] = {}
        self._by_request: dict[tuple[str, bytes], list[ParkedRun]] = {}
        self._removed: dict[str, ParkedRun] = {}  # which clients still get, so that they occupy memory
        self._bytes_by_owner: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size(self) -> int:
        """The bytes that all runs occupy."""
        return self._bytes

    def find(self, id: str) -> ParkedRun | None:
        """Return the run with this id."""
        return self._runs.get(id)

    def find_keyed(self, owner: str, path: str, key: bytes) -> ParkedRun | None:
        """Return the run of an owner that has this idempotency key."""
        return self._by_key.get((owner, path, key))

    def find_lost(self, owner: str, digest: bytes) -> ParkedRun | None:
        """Return the oldest run of the same request whose client left before the end."""
        return next((run for run in self._by_request.get((owner, digest), ()) if run.is_lost), None)

    def add(self, run: ParkedRun) -> None:
        """Let requests find a run from now on."""
        origin = run.origin
        self._runs[run.id] = run
        if origin.key is not None:
            self._by_key[origin.owner, origin.path, origin.key] = run
        else:
            self._by_request.setdefault((origin.owner, origin.digest), []).append(run)
        run.size += EMPTY_RUN_BYTES
        self.record_growth(run, EMPTY_RUN_BYTES)

    def record_end(self, run: ParkedRun) -> None:
        """Let a run that has ended make room for others."""
        if run.id in self._runs:
            self._ended[run.id] = run

    def record_growth(self, run: ParkedRun, size: int) -> None:
        """Count what was added to a run; forget it if there is no room."""
        if not size or (run.id not in self._runs and run.id not in self._removed):
            return
        self._count(run.origin.owner, size)
        if run.size > MAX_RUN_BYTES or not self._has_room(run.origin.owner):
            run.forget()
            self.remove(run)
            self.record_left(run)

    def remove(self, run: ParkedRun) -> None:
        """Remove a run; whoever gets it now gets the rest, and it counts until then."""
        if self._runs.pop(run.id, None) is None:
            return
        self._ended.pop(run.id, None)
        run.clear_timer()
        self._removed[run.id] = run
        self.record_left(run)
        origin = run.origin
        if origin.key is not None:
            self._by_key.pop((origin.owner, origin.path, origin.key), None)
            return
        same = self._by_request[origin.owner, origin.digest]
        same.remove(run)
        if not same:
            del self._by_request[origin.owner, origin.digest]

    def record_left(self, run: ParkedRun) -> None:
        """Stop counting a run that was removed, once no client reads it."""
        if (not run.clients or not run.is_resumable) and self._removed.pop(run.id, None) is not None:
            self._count(run.origin.owner, -run.size)

    def _has_room(self, owner: str) -> bool:
        """Remove runs that have ended until there is room; return whether there is."""
        if self._fits(owner):
            return True
        for run in list(self._ended.values()):
            if run.clients:  # its memory would not be free
                continue
            if run.origin.owner == owner or self._bytes > self._max_bytes:
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
