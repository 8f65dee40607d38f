"""What a WebSocket remembers is counted once, and released with its last user."""

from dragoman.net.bodies import UNCOUNTED_BYTES, BudgetShare, ByteBudget
from dragoman.state.context import ContextItem
from dragoman.state.socket_memory import HeldRequest, SocketMemory
from dragoman.store.response_rows import ItemRow

MB = 1_000_000
LIMIT = 10 * MB
SENT = ContextItem({"type": "message"})


class Counter:
    """Counts in a budget that has room for 10 MB."""

    def __init__(self) -> None:
        self.budget = ByteBudget(LIMIT)
        self.share = BudgetShare(self.budget)
        self.share.hold(UNCOUNTED_BYTES)

    def hold(self, size: int) -> None:
        self.share.hold(size)

    def release(self, size: int) -> None:
        self.share.release_to(self.share.held - size)


def make_stored_item(size: int) -> ContextItem:
    return ContextItem({"type": "message"}, ItemRow(b"", "msg_1", b"x" * size))


def answer(memory: SocketMemory, counter: Counter, lane: str, id: str, size: int, previous: str = "") -> None:
    """Count a request of so many bytes, and remember its response."""
    counter.hold(size)
    request = HeldRequest(size)
    memory.use_parent(request, previous)
    earlier = memory.responses.get(previous, ())
    memory.remember(lane, request, id, (*earlier, SENT))
    memory.end(request)


def test_the_newest_response_replaces_the_one_before_it() -> None:
    counter = Counter()
    memory = SocketMemory(counter)
    for number in range(40):
        answer(memory, counter, "", f"resp_{number}", MB)
    assert counter.budget.held == MB
    assert list(memory.responses) == ["resp_39"]


def test_a_chain_counts_all_that_was_sent_and_is_forgotten_where_there_is_no_room() -> None:
    counter = Counter()
    memory = SocketMemory(counter)
    for number in range(10):
        answer(memory, counter, "", f"resp_{number}", MB, f"resp_{number - 1}")
        assert counter.budget.held == (number + 1) * MB
    request = HeldRequest(0)
    memory.use_parent(request, "resp_9")
    memory.remember("", request, "resp_10", (*memory.responses["resp_9"], make_stored_item(MB)))
    assert not memory.has("resp_10")
    assert counter.budget.held == 0


def test_what_is_stored_counts_with_its_stored_size() -> None:
    counter = Counter()
    memory = SocketMemory(counter)
    memory.remember("", HeldRequest(0), "resp_1", (make_stored_item(MB), make_stored_item(MB)))
    assert counter.budget.held == 2 * MB
    answer(memory, counter, "", "resp_2", MB, "resp_1")
    assert counter.budget.held == 3 * MB


def test_a_request_counts_what_it_continues_though_the_lane_forgets_it() -> None:
    counter = Counter()
    memory = SocketMemory(counter)
    answer(memory, counter, "a", "resp_1", MB)
    running = HeldRequest(0)
    memory.use_parent(running, "resp_1")
    memory.forget("a", "resp_0")
    assert memory.has("resp_1")
    memory.forget("a", "resp_1")
    assert not memory.has("resp_1")
    assert counter.budget.held == MB
    memory.end(running)
    memory.end(running)
    assert counter.budget.held == 0


def test_everything_is_released_at_the_end_of_the_connection() -> None:
    counter = Counter()
    memory = SocketMemory(counter)
    for lane in range(8):
        answer(memory, counter, str(lane), f"resp_{lane}", MB)
    assert counter.budget.held == 8 * MB
    memory.clear()
    assert counter.budget.held == 0
    assert not memory.responses
