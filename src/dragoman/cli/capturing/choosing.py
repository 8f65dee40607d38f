"""What a person calls a capture comes in, `last`, an id, a part of one, or a file; the capture goes out."""

from pathlib import Path

from dragoman.cli.faults import Trouble
from dragoman.cli.settings import read_settings
from dragoman.observers.capture import Capture, Unreadable
from dragoman.store.captures import Bounds, Captures, Unknown, load


def kept_captures(config_file: str | None) -> Captures:
    debug = read_settings(config_file).debug
    return Captures(debug.directory, Bounds(debug.keep, debug.max_bytes, debug.max_age_s))


def chosen(which: str, config_file: str | None) -> Capture:
    file = Path(which)
    try:
        return load(file if file.is_file() else kept_captures(config_file).find(which))
    except Unknown as unknown:
        raise Trouble(str(unknown)) from None
    except Unreadable as unreadable:
        raise Trouble(f"{which}: {unreadable}") from None
