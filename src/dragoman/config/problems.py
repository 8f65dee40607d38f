"""Problems of a configuration, each with file, line, key, cause and next step."""

import re
from collections.abc import Iterable

from msgspec import Struct

Key = tuple[str | int, ...]
MOST_SUGGESTIONS = 3
SHORTEST = 3  # letters of a word that may be misspelt, or a part of another
LONGEST = 60  # letters of a word that is compared at all: comparing takes time by length


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


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the choices that the word may stand for, or nothing if there is none."""
    similar = find_similar(word, choices)
    if not similar:
        return ""
    *others, last = quote_each(similar)
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"


def find_similar(word: str, choices: Iterable[str]) -> tuple[str, ...]:
    """Return up to three choices that the word may stand for: first misspelt, else cut short or extended.

    Case, hyphens, underscores and dots do not count. One letter in four may be wrong, and one in a word of three.
    """
    if len(word) > LONGEST:
        return ()
    folded = _fold(word)
    by_folded = {_fold(choice): choice for choice in choices}
    distances = {choice: _count_edits(folded, choice) for choice in by_folded}
    least = min(distances.values(), default=0)
    if least <= (max(1, len(folded) // 4) if len(folded) >= SHORTEST else 0):
        found = [choice for choice in by_folded if distances[choice] == least]
    else:
        found = _find_parts(folded, list(by_folded))
    return tuple(by_folded[choice] for choice in found[:MOST_SUGGESTIONS])


def _find_parts(word: str, choices: list[str]) -> list[str]:
    """Return the choices that begin with the word, else the longest that it begins with, else those that contain it."""
    if len(word) < SHORTEST:
        return []
    begun = [choice for choice in choices if len(choice) >= SHORTEST and word.startswith(choice)]
    return (
        [choice for choice in choices if choice.startswith(word)]
        or sorted(begun, key=len)[-1:]
        or [choice for choice in choices if word in choice]
    )


def _count_edits(one: str, other: str) -> int:
    """Return how many letters to add, remove, replace or swap with their neighbour turn one word into the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, above, row = row, before, [i]
        for j, target in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != target))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == target:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]


def list_known(names: Iterable[str], what: str = "keys") -> str:
    """Return the known names, for the message about an unknown one."""
    return f"; known {what}: {', '.join(names)}"


def quote_choices(choices: Iterable[str]) -> str:
    return ", ".join(quote_each(choices))


def quote_each(words: Iterable[str]) -> list[str]:
    return [f'"{word}"' for word in words]


def _fold(word: str) -> str:
    return re.sub(r"[-_. ]", "", word.lower())
