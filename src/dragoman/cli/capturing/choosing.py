"""What a person calls a capture comes in, `last`, an id, a part of one, or a file; the capture goes out."""

from pathlib import Path

from dragoman.cli.faults import Trouble
from dragoman.cli.settings import read_settings
from dragoman.flow.capture.directory import Captures, Unknown, captures_of, load
from dragoman.flow.capture.file_format import Unreadable
from dragoman.flow.capture.format import Capture


def kept_captures(config_file: str | None) -> Captures:
    debug = read_settings(config_file).debug
    if debug.directory.exists() and not debug.directory.is_dir():
        raise Trouble(f"debug.directory must name a folder, and {debug.directory} is a file.")
    return captures_of(debug)


def chosen(which: str, config_file: str | None) -> Capture:
    file = Path(which)
    try:
        return load(file if file.is_file() else kept_captures(config_file).find(which))
    except Unknown as unknown:
        raise Trouble(str(unknown)) from None
    except Unreadable as unreadable:
        raise Trouble(f"{which}: {unreadable}") from None
