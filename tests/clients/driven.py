"""Read the outcome of each conversation from a driver's output, and check it."""

from pathlib import Path

import msgspec

from clients.rig import Ran, Rig
from fakes.agent import Use

DRIVERS = Path(__file__).parent / "drivers"
NOTE = Use("write_note", {"title": "first", "text": 'Grüße 👋 "quoted" \\ and\nlines'})


class Outcome(msgspec.Struct):
    mode: str
    text: str
    error: list[str] = []
    status: int | None = None
    why: str = ""


def outcomes(ran: Ran) -> dict[str, Outcome]:
    lines = [line for line in ran.out.splitlines() if line.startswith('{"mode"')]
    found = [msgspec.json.decode(line, type=Outcome) for line in lines]
    return {outcome.mode: outcome for outcome in found}


def check_notes(rig: Rig, ran: Ran, *modes: str) -> None:
    """Every conversation came to its end, and its tool was really used."""
    assert ran.code == 0, ran
    found = outcomes(ran)
    assert tuple(found) == modes, ran
    for outcome in found.values():
        check_note(rig, outcome)
    assert rig.agent.complaints == []


def check_note(rig: Rig, outcome: Outcome) -> None:
    assert outcome.text == f"Finished. The last tool said: wrote first by {outcome.mode}", outcome
    assert isinstance(NOTE.given, dict)
    assert (rig.work / f"{outcome.mode}-first.txt").read_text() == NOTE.given["text"]
