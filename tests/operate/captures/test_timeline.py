"""The timeline of a capture as data: three sides in the order of time, and frames without repeated fields."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.operate.captures.timeline import build_timeline, failure_message, shorten_frame
from dragoman.proxy.capture.files import read_capture as read
from dragoman.proxy.capture.format import (
    Capture,
    CapturedToolRun,
    Chunk,
    ClientResponse,
    Lookup,
    LookupName,
    event_json,
)
from dragoman.translate.hub.events import Failed
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.server_tools import (
    SearchFound,
    SearchResult,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
)

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture(**changes: object) -> Capture:
    return replace(read(FIXTURE.read_bytes()), **changes)


def test_all_three_sides_are_there_in_the_order_of_time() -> None:
    entries = build_timeline(fixture())
    assert {entry.side for entry in entries} == {"upstream", "hub", "client"}
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert sum(entry.side == "hub" for entry in entries) == len(fixture().events)
    first = next(entry for entry in entries if entry.side == "upstream")
    assert first.text.startswith("> POST ")


def test_chunks_that_were_not_kept_are_marked() -> None:
    response = ClientResponse(
        200, (("content-type", "text/event-stream"),), (Chunk(0.1, b"event: ping\n\n"), Chunk(0.1, b""))
    )
    texts = [entry.text for entry in build_timeline(fixture(response=response)) if entry.side == "client"]
    assert (texts[0], texts[-1]) == ("< 200 text/event-stream", "(... not kept ...)")


@pytest.mark.parametrize(
    ("tool", "outcome", "shown"),
    [
        ("web_search", SearchFound((SearchResult("https://a.example", "A"),)), "found 1 page"),
        ("web_fetch", WebPage("https://a.example/b", "A", "text"), "read https://a.example/b, 4 characters"),
        ("web_fetch", WebPage("https://a.example/b", "A", pdf="JVBERi0="), "read https://a.example/b, a PDF"),
        ("web_search", ToolFailure(ToolErrorCode.UNAVAILABLE, "HTTP 500"), "failed unavailable: HTTP 500"),
        ("web_search", None, "(given up)"),
    ],
)
def test_runs_of_tools_are_shown(tool: str, outcome: ToolOutcome | None, shown: str) -> None:
    run = msgspec.to_builtins(CapturedToolRun(tool, "exa", "pandas", outcome, 0.01, 0.5))
    capture = fixture(lookups=(Lookup("up", LookupName.TOOL_RUN.value, {"value": run}),))
    found = [(entry.at, entry.text) for entry in build_timeline(capture) if tool in entry.text]
    assert found == [(0.01, f'> {tool} "pandas", exa'), (0.51, f"< {tool} {shown}")]


def test_a_failure_in_the_stream_comes_before_the_error_body() -> None:
    failed = replace(fixture().events[-1], event=event_json(Failed(Failure(Kind.LOST, "cut"))))
    body = ClientResponse(502, (), (Chunk(0.1, b'{"error":{"message":"No such model."}}'),))
    assert failure_message(fixture(events=(failed,), response=body)) == "cut"
    assert failure_message(fixture(events=(), response=body)) == "No such model."
    assert failure_message(fixture()) == ""


def test_a_chat_chunk_shows_first_what_is_new_in_it() -> None:
    choice = '{"index":0,"delta":{"role":"assistant","content":"Hello"},"finish_reason":null}'
    chunk = f'{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{choice}]}}'
    assert shorten_frame(chunk) == 'delta:{content:"Hello"},id:"chatcmpl-1",model:"m"'


def test_a_responses_event_shows_first_what_is_new_in_it() -> None:
    event = '{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"delta":"Hello"}'
    shown = shorten_frame(f"response.output_text.delta {event}")
    assert shown == 'output_text.delta delta:"Hello",item_id:"msg_1",output_index:0'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"choices":[],"usage":{"prompt_tokens":3}}', "usage:{prompt_tokens:3}"),
        ('{"choices":[3]}', "choices:[3]"),
        ("[DONE]", "[DONE]"),
    ],
)
def test_chunks_of_another_shape_are_shown_as_they_are(text: str, shown: str) -> None:
    assert shorten_frame(text) == shown
