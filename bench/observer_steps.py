"""What each step after a request costs, without a gateway around it: `python -m bench.observer_steps`.

It passes outcomes to each observer and rows to a SQLite file, and prints the CPU time of the best of several rounds.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman.accounts.usage_writer import UsageWriter
from dragoman.config.settings import ProviderConfig
from dragoman.flow.request_record import RequestRecord
from dragoman.flow.source import Source
from dragoman.framing.known_secrets import Secrets
from dragoman.hub.events import Delta, Ended, Opened, Started, Stop, TextBlock, UsageReported
from dragoman.hub.outcome import Outcome
from dragoman.hub.usage import Usage
from dragoman.net.headers import Headers
from dragoman.observers.metrics import RequestMetrics
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.observers.request_log import format_text
from dragoman.prices import Pricing
from dragoman.routing import Route
from dragoman.store import open_store

REQUESTS = 2000
ROUNDS = 25
ROUTE = Route("up", "gpt-4o")
HEADERS = Headers([(b"user-agent", b"OpenAI/Python 2.8.1"), (b"content-type", b"application/json")])
EVENTS = (
    *(Started("chatcmpl-1", "gpt-4o"), Opened(0, TextBlock()), Delta(0, "Hello.")),
    *(UsageReported(Usage(12, 34)), Ended(Stop.END)),
)

Step = Callable[[Sequence[Outcome]], Awaitable[None]]


class Reply:
    """A reply that has ended."""

    def __init__(self) -> None:
        self.watch = ReplyMonitor(time.monotonic)
        self.usage: Usage | None = None
        for event in EVENTS:
            self.watch.observe(event)

    def tap(self, wrap: Callable[[Source], Source]) -> Secrets:
        return ()


def make_records(first: int) -> list[RequestRecord]:
    records = [
        RequestRecord(f"req_0123456789abcdef{number:08x}", "chat", HEADERS, "key_1", "key_1")
        for number in range(first, first + REQUESTS)
    ]
    for record in records:
        record.note_reply(ROUTE, "chat", None, Reply())
        record.end()
    return records


class Measurement:
    """The best time of each step."""

    def __init__(self) -> None:
        self.best_us: dict[str, float] = {}

    def note(self, step: str, since: float) -> float:
        """Note the CPU time since then, by `time.process_time`, and return the time now."""
        now = time.process_time()
        self.best_us[step] = min(self.best_us.get(step, 1e9), (now - since) / REQUESTS * 1e6)
        return time.process_time()

    def table(self) -> Iterator[str]:
        yield "| step | µs of CPU per request |\n|---|---:|"
        yield from (f"| {step} | {cost:.1f} |" for step, cost in self.best_us.items())
        yield f"| together | {sum(self.best_us.values()):.1f} |"


async def measure(directory: Path) -> Measurement:
    store = await open_store(f"sqlite:///{directory}/dragoman.db")
    provider = ProviderConfig(name="up", kind="openai-compatible", endpoint="http://127.0.0.1:1/v1")
    writer, metrics = UsageWriter(store, Pricing({"up": provider})), RequestMetrics()
    found = Measurement()
    for turn in range(ROUNDS):
        records = make_records(turn * REQUESTS)
        began = time.process_time()
        outcomes = [record.outcome() for record in records]
        began = found.note("outcome", began)
        for outcome in outcomes:
            metrics.observe(outcome)
        began = found.note("metrics", began)
        for outcome in outcomes:
            format_text(outcome)
        began = found.note("log line", began)
        for outcome in outcomes:
            writer.observe(outcome)
        began = found.note("usage row with its cost", began)
        await writer.wait_until_written()
        found.note("row and sums into SQLite", began)
    await store.close()
    return found


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        print("\n".join(asyncio.run(measure(Path(place))).table()))
