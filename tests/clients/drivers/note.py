"""The tool that every driven client offers, and how a driver tells what came of a conversation."""

import json
import os
from pathlib import Path

URL = os.environ["GATEWAY_URL"]
KEY = os.environ["GATEWAY_KEY"]
MODEL = os.environ.get("DRIVEN_MODEL", "some-model")
PROMPT = "Write a note."
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
    "required": ["title", "text"],
    "additionalProperties": False,
}


def write_note(mode: str, title: str, text: str) -> str:
    Path(f"{mode}-{title}.txt").write_text(text)
    return f"wrote {title} by {mode}"


def told(mode: str, text: str, **more: object) -> None:
    print(json.dumps({"mode": mode, "text": text, **more}), flush=True)


def failed(mode: str, error: BaseException, text: str = "") -> None:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    status = getattr(error, "status_code", None)
    print(json.dumps({"mode": mode, "text": text, "error": kinds, "status": status, "why": str(error)}), flush=True)
