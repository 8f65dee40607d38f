"""Problems of a configuration, each with file, line, key, cause and next step."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

Key = tuple[str | int, ...]


class Problem(Struct, frozen=True):
    """One problem. `file` is a path, or `environment` for a variable; `line` counts from 1."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigError(Exception):
    """The configuration is invalid. The message lists all its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def format_key(key: Key) -> str:
    """Return a key path in the usual notation: `models[0].name`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggest(word: str, choices: Sequence[str]) -> str:
    """Return `; did you mean "x"?` for the most similar choice, or nothing if none is similar."""
    import difflib

    by_folded = {_fold(choice): choice for choice in choices}
    near = difflib.get_close_matches(_fold(word), list(by_folded), n=1, cutoff=0.6)
    return f'; did you mean "{by_folded[near[0]]}"?' if near else ""


def list_known(names: Iterable[str]) -> str:
    """Return the known keys, for the message about an unknown one."""
    return f"; known keys: {', '.join(names)}"


def quote_choices(choices: Iterable[str]) -> str:
    return ", ".join(f'"{choice}"' for choice in choices)


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")
