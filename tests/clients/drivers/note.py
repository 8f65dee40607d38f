"""The tool that every driven client offers, and how a driver reports the outcome of a conversation."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Json = dict[str, Any]  # what an SDK takes; each has types of its own for it

URL = os.environ["GATEWAY_URL"]
KEY = os.environ["GATEWAY_KEY"]
PROMPT = "Write a note."
QUESTION = "What did the last tool say?"
SCHEMA: Json = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
    "required": ["title", "text"],
    "additionalProperties": False,
}


def write_note(mode: str, title: str, text: str) -> str:
    Path(f"{mode}-{title}.txt").write_text(text)
    return f"wrote {title} by {mode}"


def model(mode: str) -> str:
    """Return the model's name, which identifies the conversation for the upstream."""
    return f"some-model-{mode}"


def drive(ways: Iterable[str], talk: Callable[[str, str], str]) -> None:
    """Run the conversations named on the command line, or all of them, concurrently."""
    modes = sys.argv[1:] or list(ways)
    with ThreadPoolExecutor(len(modes)) as pool:
        for outcome in pool.map(lambda mode: _outcome(mode, talk), modes):
            print(json.dumps(outcome), flush=True)


def _outcome(mode: str, talk: Callable[[str, str], str]) -> dict[str, object]:
    try:
        return {"mode": mode, "text": talk(mode.partition("@")[0], mode)}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        status = getattr(error, "status_code", None)
        return {"mode": mode, "text": "", "error": kinds, "status": status, "why": str(error)}
