"""The table of the other OpenAI paths, and what is observed of their replies."""

from typing import get_args

import pytest

from dragoman.config.settings import PathName
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.usage import MAX_COUNT
from dragoman.translate.protocols.relayed_paths import (
    RELAYED_PATHS,
    EventStream,
    LongDocument,
    observe_document,
    read_usage,
)


def test_the_settings_know_every_path_of_the_table() -> None:
    assert get_args(PathName) == tuple(RELAYED_PATHS)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (b'{"prompt_tokens":7,"total_tokens":7}', (7, 0)),
        (b'{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}', (7, 2)),
        (b'{"type":"tokens","input_tokens":5,"output_tokens":3,"input_token_details":{"text_tokens":1}}', (5, 3)),
        (b'{"total_tokens":11}', (11, 0)),
        (b'{"prompt_tokens":-4,"completion_tokens":99999999999999}', (0, MAX_COUNT)),
        (b'{"type":"duration","seconds":12}', None),
        (b'{"prompt_tokens":"seven"}', None),
        (b"[]", None),
        (b"null", None),
    ],
)
def test_token_counts_are_read_in_every_spelling(usage: bytes, counts: tuple[int, int] | None) -> None:
    found = read_usage(usage)
    assert (None if found is None else (found.input, found.output)) == counts


def test_a_document_with_an_error_is_a_failure() -> None:
    seen = observe_document(b'{"error":{"message":"busy","type":"overloaded_error"}}')
    assert seen.failure is not None
    assert seen.failure.kind is Kind.OVERLOADED
    assert observe_document(b'{"error":null,"model":"m"}').failure is None
    assert observe_document(b"RIFF\xff").model == ""


@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_the_usage_of_a_long_document_is_found_at_its_end(size: int) -> None:
    body = b'{"data":[{"b64_json":"%b"}], "usage" : {"input_tokens":9,"output_tokens":4}}\n' % (b"A" * 100_000)
    document = LongDocument()
    for at in range(0, len(body), size):
        document.feed(body[at : at + size])
    document.finish()
    assert document.seen.usage is not None
    assert (document.seen.usage.input, document.seen.usage.output) == (9, 4)


def observe(path: str, *events: bytes) -> EventStream:
    stream = EventStream(RELAYED_PATHS[path])
    for event in events:
        stream.feed(b"data: " + event + b"\n\n")
    stream.finish()
    return stream


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("completions", b"[DONE]"),
        ("completions", b'{"choices":[{"text":"","finish_reason":"stop"}]}'),
        (
            "audio/transcriptions",
            b'{"type":"transcript.text.done","text":"x","usage":{"input_tokens":3,"output_tokens":1}}',
        ),
        ("audio/speech", b'{"type":"speech.audio.done","usage":{"input_tokens":3,"output_tokens":1}}'),
        ("images/generations", b'{"type":"image_generation.completed","b64_json":"AA","usage":{"input_tokens":3}}'),
        ("images/edits", b'{"type":"image_edit.completed","b64_json":"AA"}'),
        ("audio/translations", b'{"anything":1}'),
    ],
)
def test_a_stream_is_complete_after_its_last_event(path: str, last: bytes) -> None:
    complete = observe(path, b'{"type":"x.delta","delta":"y"}', last)
    assert (complete.is_complete, complete.seen.failure) == (True, None)
    if RELAYED_PATHS[path].stream_ends:
        cut = observe(path, b'{"type":"x.delta","delta":"y"}')
        assert cut.seen.failure is not None
        assert (cut.is_complete, cut.seen.failure.kind) == (False, Kind.TRUNCATED)


def test_an_error_event_ends_a_stream() -> None:
    stream = observe("completions", b'{"choices":[]}', b'{"error":{"message":"no","type":"server_error"}}')
    assert stream.is_complete
    assert stream.seen.failure is not None
    assert stream.seen.failure.message == "no"
