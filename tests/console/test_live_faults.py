"""Faults as the live inspector shows them: what it shows is what the capture shows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asking import ask
from console.browser import sign_in
from console.feed_reader import reading
from console.traffic import make_capturing_config
from dragoman.operate.captures.timeline import build_timeline
from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, Running, provider_section, running


def chunk(delta: str, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"delta":{delta},"finish_reason":{finish}}}'
    return (
        f'data: {{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{choice}]}}\n\n'.encode()
    )


CALL = (
    '{"tool_calls":[{"index":0,"id":"t1","type":"function","function":{"name":"write","arguments":"{\\"path\\": "}}]}'
)
TEXT = chunk('{"role":"assistant","content":"Hello"}') + chunk('{"content":" there"}')
WHOLE = TEXT + chunk("{}", '"stop"') + b"data: [DONE]\n\n"
STALLED = Answer(WHOLE, cut=len(TEXT), pause_s=0.1)
CUT = Answer(TEXT, end=End.CUT)
CUT_CALL = Answer(TEXT + chunk(CALL), end=End.CUT)
BROKEN = Answer(b'{"error":{"message":"Down.","type":"server_error"}}', 500, "application/json", chunked=False)


def send(gateway: Running, request_id: str) -> None:
    tools = [{"name": "write", "input_schema": {"type": "object"}}]
    ask(gateway, "messages", "both", stream=True, headers={"x-request-id": request_id}, tools=tools, top_k=3)


@pytest.mark.parametrize(
    ("first", "second", "outcome", "shows"),
    [
        (STALLED, None, "ok", lambda row: row["ttft_ms"] < row["duration_ms"]),
        (CUT, None, "lost", lambda row: row["route"] == "one/m"),
        (CUT_CALL, None, "lost", lambda row: row["losses"] == 1),
        (BROKEN, Answer(WHOLE), "ok", lambda row: row["failed_attempts"] == ["one/m: upstream"] * 3),
    ],
    ids=["stall", "cut", "cut call", "failover"],
)
def test_a_fault_is_shown_live_as_its_capture_shows_it(
    tmp_path: Path,
    first: Answer,
    second: Answer | None,
    outcome: str,
    shows: Callable[[dict[str, object]], bool],
) -> None:
    with FakeUpstream(answers=[first]) as one, FakeUpstream(answers=[second or first]) as two:
        route = '[retry]\nbase_s = 0.01\n[[models]]\nname = "both"\nto = ["one/m"'
        route += ', "two/m"]\n' if second is not None else "]\n"
        sections = provider_section("chat", one.url, "one") + provider_section("chat", two.url, "two")
        toml = make_capturing_config(tmp_path / "captures").partition("[[models]]")[0] + sections + route
        with running(toml, tmp_path, stored=["someone"]) as gateway:
            browser = sign_in(gateway, KEY)
            with reading(browser) as feed:
                send(gateway, "fault-1")
                feed.wait_for_end("fault-1")
                row = dict(feed.row("fault-1"))
                expected = [(e.at, e.side, e.text) for e in build_timeline(gateway.capture("fault-1"))]
                id = row["request_id"]
                with reading(browser, f"watch=live&frames={id}") as late:
                    late.wait_for_entries(len(expected))
                sent = browser.send("GET", f"/api/v1/live/{id}").json["description"]["upstream_requests"]
    shown = [(entry["at"], entry["side"], entry["text"]) for entry in late.entries]
    assert sorted(shown, key=str) == sorted(expected, key=str)
    assert row["outcome"] == outcome
    assert shows(row), row
    assert len(sent) == (4 if second is not None else len(sent))
