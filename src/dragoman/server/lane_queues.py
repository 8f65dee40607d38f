"""The requests that wait in the lanes of a WebSocket: one lane's are run in order, the lanes side by side."""

from collections import deque

from dragoman.server.socket_messages import DEFAULT_LANE, QueuedRequest
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError

MAX_LANES = 32
MAX_WAITING = 64  # requests of a connection, those under way included


class LaneQueues:
    """What waits in each lane, and how many requests wait or are under way."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[QueuedRequest]] = {}
        self._busy: set[str] = set()  # lanes that are being run
        self.waiting = 0

    def ensure_lane(self, lane: str) -> None:
        """Open a lane if it is new. Raises RequestError if there are too many."""
        if lane in self._lanes:
            return
        if lane and len(self._lanes.keys() - {DEFAULT_LANE}) >= MAX_LANES:
            message = f"A connection has at most {MAX_LANES} different stream_ids."
            raise BadRequest("/stream_id", message, code="websocket_stream_limit_reached")
        self._lanes[lane] = deque()

    def check_room(self) -> None:
        """Raise RequestError if no further request may wait."""
        if self.waiting >= MAX_WAITING:
            message = f"This connection has {MAX_WAITING} requests under way or waiting. Wait for one of them to end."
            raise RequestError(Failure(Kind.RATE_LIMITED, message, retry_after=1.0))

    def add(self, lane: str, request: QueuedRequest) -> bool:
        """Queue a request; return whether the caller must now run the lane."""
        self.waiting += 1
        self._lanes[lane].append(request)
        if lane in self._busy:
            return False
        self._busy.add(lane)
        return True

    def take(self, lane: str) -> QueuedRequest | None:
        """Return the next request of a lane, which the caller runs; None if it has run all of them."""
        if self._lanes[lane]:
            return self._lanes[lane].popleft()
        self._busy.discard(lane)
        return None

    def clear(self) -> None:
        self._lanes.clear()
