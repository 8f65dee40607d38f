"""A timeline that is read while its request is answered has the entries of the whole one."""

from dragoman.admin.live_timeline import hide_content
from dragoman.admin.timeline import FrameReader, TimelineEntry
from dragoman.flow.capture.format import Chunk
from dragoman.flow.capture.memory_bounds import TAIL_BYTES, HeadAndTail

SSE = "text/event-stream"


def test_frames_are_the_same_however_the_bytes_are_cut() -> None:
    data = b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n"
    whole = FrameReader(SSE)
    expected = [text for _, text in whole.feed(Chunk(0.0, data))]
    for cut in range(len(data)):
        reader = FrameReader(SSE)
        frames = [*reader.feed(Chunk(0.0, data[:cut] or b":\n")), *reader.feed(Chunk(0.0, data[cut:] or b":\n"))]
        assert [text for _, text in frames] == expected


def test_parts_are_read_once_and_a_gap_stands_for_those_that_were_dropped() -> None:
    stream: HeadAndTail[str] = HeadAndTail("gap")
    stream.add("1")
    assert stream.read_from(0) == (["1"], 1)
    stream.add("2")
    assert stream.read_from(1) == (["2"], 2)
    stream.add_to_tail("3", 10)
    assert stream.read_from(2) == (["3"], 3)
    for number in range(4, 8):
        stream.add_to_tail(str(number), TAIL_BYTES)
    parts, position = stream.read_from(3)
    assert (parts, position) == (["gap", "7"], 7)
    assert stream.read_from(position) == ([], 7)


def test_without_the_right_to_content_an_entry_has_a_name_and_a_size() -> None:
    shown = hide_content(TimelineEntry(0.1, "client", 'content_block_delta {"text":"secret"}'))
    assert shown.text == "content_block_delta, 37 characters"
    assert hide_content(TimelineEntry(0.1, "hub", '{"secret":1}')).text == "frame, 12 characters"
