"""The timeline of a capture as text: aligned columns, with the reason of a failure on top."""

from pathlib import Path

from msgspec.structs import replace

from dragoman.cli.capture import SHARES, TIME_WIDTH, WIDTH, render_timeline
from dragoman.cli.screen import fit, width_of
from dragoman.proxy.capture.files import read_capture
from dragoman.proxy.capture.format import Capture, Chunk, ClientResponse, event_json
from dragoman.translate.hub.events import Delta, Failed
from dragoman.translate.hub.failure import Failure, Kind
from tables import each_row

FIXTURE = Path(__file__).parents[1] / "fixtures" / "captures" / "kiro-cut-call.json"
CLIENT_COLUMN = TIME_WIDTH + SHARES[0] + SHARES[1] + 3 * len("  ")


def capture(**changes: object) -> Capture:
    return replace(read_capture(FIXTURE.read_bytes()), **changes)


@each_row("text", ["世界您好，今天天气很好，我们去公园吧。", "🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃", "Zoe\u0308 " * 20])
def test_wide_characters_keep_the_columns_aligned(text: str) -> None:
    first = capture().events[2]
    assert '"delta"' in first.event
    events = (*capture().events[:2], replace(first, event=event_json(Delta(0, text))), *capture().events[3:])
    lines = list(render_timeline(capture(events=events)))
    [line] = [line for line in lines if text[:4] in line and "delta 0" in line]
    before, _, after = line.rpartition("  ")
    assert width_of(line) <= WIDTH
    assert width_of(before) + 2 == CLIENT_COLUMN
    assert after.startswith("content_block_start")


@each_row("width", [80, 81, 120, 187, 240])
def test_a_wider_terminal_shows_more_of_each_frame(width: int) -> None:
    lines = list(render_timeline(capture(), width=width))
    assert max(map(width_of, lines)) <= width
    assert sum(map(width_of, lines)) > sum(map(width_of, render_timeline(capture(), width=width - 20)))


@each_row("text", ["plain", "日本語のテキスト", "e\u0301" * 9, ""])
def test_shortened_text_fits_and_is_as_long_as_possible(text: str) -> None:
    for width in range(1, 20):
        short = fit(text, width)
        assert width_of(short) <= width
        assert short == text or width_of(short) >= width - 1


def test_the_message_of_a_failure_is_shown_completely_on_top() -> None:
    message = (
        "The connection to kiro was lost before the reply was whole, " + "and no other target could continue it. " * 9
    )
    failed = replace(capture().events[-1], event=event_json(Failed(Failure(Kind.LOST, message))))
    lines = list(render_timeline(capture(outcome="lost", events=(*capture().events[:-1], failed))))
    place = next(place for place, line in enumerate(lines) if line.startswith("error     The"))
    end = lines.index("")
    assert " ".join(line[10:] for line in lines[place:end]) == message.strip()
    assert max(map(width_of, lines[place:end])) <= WIDTH


@each_row(
    ("body", "why"),
    [
        (b'{"type":"error","error":{"type":"api_error","message":"No such\\nmodel."}}', "error     No such model."),
        (b'{"error":"just a word"}', None),
        (b"<html>", None),
    ],
)
def test_an_error_response_is_explained_by_its_message(body: bytes, why: str | None) -> None:
    sent = ClientResponse(502, (("content-type", "application/json"),), (Chunk(0.1, body),))
    lines = list(render_timeline(capture(outcome="upstream", events=(), response=sent)))
    assert [line for line in lines if line.startswith("error")] == ([] if why is None else [why])


def test_a_request_without_a_model_is_shown_as_such() -> None:
    assert list(render_timeline(capture(requested_model="")))[1].endswith("bytes, no model")


def test_control_sequences_in_names_are_not_printed() -> None:
    shown = "\n".join(
        render_timeline(capture(requested_model="\x1b[2Jgone\r\n$ rm", route="kiro/\x1b]0;title\x07"), full=True)
    )
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "gone $ rm" in shown
