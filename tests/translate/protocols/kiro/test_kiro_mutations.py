"""Random mutations of valid streams: they end, raise nothing, keep the order of events, and never make half a call.

`DRAGOMAN_MUTATIONS=100000` runs as many as that.
"""

import os
import random
import time
from collections.abc import Callable

import pytest

from dragoman.translate.framing.jsonscan import validate_object
from dragoman.translate.hub.events import Ended, Event, Failed
from fakes.eventstream import encode_message, event, exception
from translate.protocols.kiro.kiro_replies import (
    TAIL,
    Reader,
    calls_of,
    context,
    make_reasoning,
    metering,
    stages,
    text_event,
    uses,
)

RUNS = int(os.environ.get("DRAGOMAN_MUTATIONS", "20000"))
TOOLS = ("f", "g")
WRITE = '{"path":"a.txt","text":"}{\\"é😀"}'

FRAMES: list[list[bytes]] = [
    [
        event("messageMetadataEvent", {"conversationId": "c", "utteranceId": "u"}),
        make_reasoning(text="hm"),
        make_reasoning(signature="S"),
        text_event("<thinking>x</thinking>\n\nHi ", '[Called g with args: {"x":"}]"}]'),
        uses("A", "f"),
        uses("A", input=WRITE[:9]),
        uses("B", "g", input='{"n":'),
        uses("A", input=WRITE[9:]),
        uses("B", input="1}", stop=True),
        uses("A", stop=True),
        TAIL,
    ],
    [
        text_event("Hel", "lo"),
        event("followupPromptEvent", {"followupPrompt": {"content": "no"}}),
        context(10),
        metering(1),
    ],
    [uses("A", "f", input={"a": [1, {"b": None}]}), uses("A", stop=True), text_event("done"), TAIL],
    [text_event("Hi"), exception("InternalServerException", {"message": "oops"})],
]
EXPECTED = {WRITE, '{"n":1}', '{"a":[1,{"b":null}]}', '{"x":"}]"}'}
NAMES = ("toolUseEvent", "assistantResponseEvent", "reasoningContentEvent", "metadataEvent", "citationEvent")
PAYLOAD = b'{"toolUseId":"A","name":"f","input":"{\\"a\\":1}","stop":true,"content":"x","text":"y","signature":"S"}'
UNFRAMED = b'{"content":"Hi"}{"name":"f","toolUseId":"A","input":"{\\"a\\":"}{"input":"1}"}{"stop":true}{"usage":1}'


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def overwrite(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at : at + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(1, 9))


def delete(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randrange(1, 40)]


def insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.choice((b"\0" * 12, b'{"', b"}", b'"', b"\\", chance.randbytes(5)))


def truncate(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def repeat(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data += data[at : at + 60]


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, overwrite, delete, insert, truncate, repeat)


def mutate(data: bytes, chance: random.Random) -> bytes:
    mutant = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        if mutant:
            chance.choice(MUTATIONS)(mutant, chance)
    return bytes(mutant)


def reframe(frames: list[bytes], chance: random.Random) -> bytes:
    """Frames with good checksums around payloads that are damaged, missing, repeated or out of order."""
    out = list(frames)
    for _ in range(chance.randrange(1, 4)):
        index = chance.randrange(len(out))
        match chance.randrange(5):
            case 0 if len(out) > 1:
                del out[index]
            case 1:
                out.insert(chance.randrange(len(out)), out[index])
            case 2:
                other = chance.randrange(len(out))
                out[index], out[other] = out[other], out[index]
            case 3:
                out = out[: index + 1]
            case _:
                headers = {":message-type": "event", ":event-type": chance.choice(NAMES)}
                out[index] = encode_message(headers, mutate(PAYLOAD, chance))
    return b"".join(out)


def decode_stream(stream: bytes, chance: random.Random) -> list[Event]:
    """The events that reach the encoder, after every stage and the guard, which raises here."""
    reader, line = Reader(), stages("messages", TOOLS)
    cut = chance.randrange(len(stream) + 1)
    events = [*reader.feed(stream[:cut]), *reader.feed(stream[cut:]), *reader.finish()]
    for stage in line:
        events = [out for event in events for out in stage.feed(event)] + list(stage.finish())
    return events


def assert_sound(events: list[Event]) -> None:
    assert sum(isinstance(event, Ended | Failed) for event in events) == 1
    assert isinstance(events[-1], Ended | Failed)
    for _, name, arguments in calls_of(events):
        assert name
        assert validate_object(arguments) is not None


def test_the_streams_are_sound_to_begin_with() -> None:
    for frames in FRAMES:
        events = decode_stream(b"".join(frames), random.Random(0))
        assert_sound(events)
        assert {arguments for _, _, arguments in calls_of(events)} <= EXPECTED


@pytest.mark.parametrize("seed", range(4))
def test_damaged_frames_never_make_a_call_that_was_not_intended(seed: int) -> None:
    chance = random.Random(seed)
    slow: list[bytes] = []
    for run in range(RUNS // 6):
        stream = mutate(b"".join(FRAMES[run % len(FRAMES)]), chance)
        start = time.process_time()
        events = decode_stream(stream, chance)
        if time.process_time() - start > 0.5:
            slow.append(stream)
        assert_sound(events)
        assert {arguments for _, _, arguments in calls_of(events)} <= EXPECTED, stream
    for stream in slow:  # once more: the first time, the garbage of all earlier tests may have been collected
        start = time.process_time()
        decode_stream(stream, chance)
        assert time.process_time() - start < 0.5


@pytest.mark.parametrize("seed", range(2))
def test_damaged_payloads_and_texts_never_make_half_a_call(seed: int) -> None:
    chance = random.Random(seed)
    for run in range(RUNS // 6):
        frames = FRAMES[run % len(FRAMES)]
        stream = mutate(UNFRAMED, chance) if run % 3 == 0 else reframe(frames, chance)
        assert_sound(decode_stream(stream, chance))
