"""What a Kiro reply costs: at most a fiftieth of the 70 ms of CPU that a FastAPI and httpx gateway needs for it."""

import time

import pytest

from fakes.eventstream import event
from translate.protocols.kiro.kiro_replies import TAIL, Translation, text_event

ALLOWED_S = 0.070 / 50
REFERENCE_S = 0.0034  # what `run_reference` takes on the machine on which the 70 ms were measured
FRAMES = [
    event("messageMetadataEvent", {"conversationId": "c", "utteranceId": "u"}),
    *(text_event(f"word {number} of the reply ") for number in range(62)),
    TAIL,
]


def seconds(client: str, pieces: list[bytes]) -> float:
    start = time.process_time()
    for _ in range(20):
        line = Translation(client, ("f",))
        for piece in pieces:
            line.feed(piece)
        line.finish()
    return (time.process_time() - start) / 20


def run_reference() -> float:
    """Return the seconds that some plain Python takes, by which machines are compared."""
    start = time.process_time()
    table: dict[int, str] = {}
    for number in range(20_000):
        table[number & 255] = table.get(number & 127, "")[:20] + str(number)
    return time.process_time() - start


@pytest.mark.parametrize("client", ["chat", "messages", "responses"])
def test_a_reply_of_64_events_is_translated_within_its_share(client: str) -> None:
    assert len(FRAMES) == 64
    slowness = max(1.0, min(run_reference() for _ in range(5)) / REFERENCE_S)  # of this machine
    assert min(seconds(client, [b"".join(FRAMES)]) for _ in range(5)) <= ALLOWED_S * slowness
    assert min(seconds(client, FRAMES) for _ in range(5)) <= ALLOWED_S * slowness
