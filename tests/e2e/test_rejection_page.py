"""The table of rejections in docs/quirks.md is what test_rejections.py plays, and what is never sent is not."""

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from asking import ask
from dragoman.upstreams.rejections.complaint import read_complaint
from dragoman.upstreams.rejections.rules import BY_ID, find_rules
from dragoman.upstreams.rejections.sent import Sent
from e2e.rejection_cases import CASES, TOOL, USER, Case
from rig import Rig, run_rig
from wire_json import Json, JsonObject

PAGE = Path(__file__).parents[2] / "docs" / "quirks.md"
BEGIN = "<!-- rejections: written by tests/e2e/test_rejection_page.py with DRAGOMAN_WRITE_PAGES=1 -->\n"
END = "<!-- end of the rejections -->\n"
LONGEST = 110
NEVER_SENT = {
    "7": "`a ttl='1h' cache_control block must not come after a ttl='5m' …`; "
    "`A maximum of 4 blocks with cache_control may be provided. Found 5.`",
}
LEARNT_IN_SESSION = ("12", "13")  # the values themselves, by their digests


def find_scope(cases: list[Case]) -> str:
    if cases[0].number in LEARNT_IN_SESSION:
        return "session"
    for case in cases:
        headers = tuple((name.encode(), value.encode()) for name, value in case.headers.items())
        body: JsonObject = {"messages": [USER], **case.fields}
        words = {"error": {"message": case.words}} if isinstance(case.words, str) else case.words
        complaint = read_complaint(400 if case.status == 200 else case.status, msgspec.json.encode(words))
        found = find_rules(complaint, Sent(case.upstream, msgspec.json.encode(body), headers))
        if found:
            return BY_ID[found[0].rule].scope.value
    raise AssertionError(f"no rule has the words of row {cases[0].number}")


def shorten(words: str | JsonObject) -> str:
    text = words if isinstance(words, str) else msgspec.json.encode(words).decode()
    lines = [line for line in text.splitlines() if line.strip(" -^")]
    text = lines[-1].strip().removeprefix("Error: ").replace("|", "\\|")
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def render_table() -> str:
    rows = ["| row | the server's words | client → server | more requests: first, later | learned for |", "|-|-|-|-|-|"]
    numbered = sorted(CASES, key=lambda case: int(case.number.split()[0]))
    groups = {number: list(cases) for number, cases in groupby(numbered, lambda case: case.number.split()[0])}
    for number in sorted(groups.keys() | NEVER_SENT.keys(), key=int):
        if number in NEVER_SENT:
            rows.append(f"| {number} | {NEVER_SENT[number]} | any → messages | never sent | – |")
            continue
        cases = groups[number]
        pairs = ", ".join(dict.fromkeys(f"{case.client} → {case.upstream}" for case in cases))
        [later] = {case.later for case in cases}
        own = [case for case in cases if case.number == number] or cases
        words = min((shorten(case.words) for case in own), key=len)
        rows.append(f"| {number} | {words} | {pairs} | 1, {later} | {find_scope(cases)} |")
    return "\n".join(rows) + "\n"


def test_the_page_has_what_is_played() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    written = before + BEGIN + render_table() + END + after
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "write the page: DRAGOMAN_WRITE_PAGES=1 pytest tests/e2e/test_rejection_page.py"


def test_every_row_is_played_or_never_sent() -> None:
    numbers = {case.number.split()[0] for case in CASES} | NEVER_SENT.keys()
    assert numbers == {str(number) for number in range(1, 29)}


MARKED: JsonObject = {"type": "text", "text": "A long part. " * 900}
SHORT: JsonObject = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
LONG: JsonObject = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def find_marks(value: Json) -> list[str]:
    """Return how long each mark lasts, in the order of the prompt: tools, system, messages."""
    if isinstance(value, dict):
        own = value.get("cache_control")
        inner = [mark for key in ("tools", "system", "messages", "content") for mark in find_marks(value.get(key))]
        return [*inner, *([own.get("ttl", "5m")] if isinstance(own, dict) else [])]
    return [mark for each in value for mark in find_marks(each)] if isinstance(value, list) else []


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("never"), upstreams=("messages", "gemini")) as shared:
        shared.gateway.settle()
        yield shared


def test_no_more_marks_than_anthropic_takes_are_sent_and_no_longer_one_after_a_shorter(rig: Rig) -> None:
    """Row 7. A Chat client may mark any part, in any order."""
    parts = [MARKED | (LONG if number % 2 else SHORT) for number in range(7)]
    turns: list[JsonObject] = [
        {"role": "system", "content": parts},
        {"role": "user", "content": [*parts, MARKED | LONG]},
    ]
    rig.play("messages", "Fine.", stream=False)
    reply = ask(rig.gateway, "chat", "messages/claude-opus-4-6", messages=turns, tools=[{**TOOL, **SHORT}])
    assert reply.status == 200
    [sent] = rig.calls("messages")
    marks = find_marks(sent.json)
    assert 0 < len(marks) <= 4
    assert marks == sorted(marks), f"5m before 1h: {marks}"  # "1h" sorts before "5m"


CALLED: dict[str, JsonObject] = {
    "chat": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                    for number in range(2)
                ],
            },
            *({"role": "tool", "tool_call_id": f"c{number}", "content": "seen"} for number in range(2)),
        ],
        "tools": [TOOL],
    },
    "messages": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "seen"}]},
        ]
    },
    "responses": {
        "input": [
            USER,
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        ],
        "store": False,
    },
}


@pytest.mark.parametrize("client", CALLED)
def test_the_first_call_of_a_message_to_gemini_always_has_a_signature(rig: Rig, client: str) -> None:
    """Row 14, for histories of other vendors."""
    rig.play("gemini", "Fine.", stream=False)
    assert ask(rig.gateway, client, "gemini/gemini-3.8-flash", **CALLED[client]).status == 200
    [sent] = rig.calls("gemini")
    models = [turn["parts"] for turn in sent.json["contents"] if turn["role"] == "model"]
    calls = [next(part for part in parts if "functionCall" in part) for parts in models]
    assert calls
    assert all(call["thoughtSignature"] == "skip_thought_signature_validator" for call in calls)
