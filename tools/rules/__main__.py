"""Print what violates a rule, one line each, and exit with 1 if anything does."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.rules import class_names, documents, exceptions, protocol_names, purity, sizes, threats, words

RULES: tuple[Callable[[Path], Iterator[str]], ...] = (
    sizes.find_problems,
    words.find_problems,
    class_names.find_problems,
    purity.find_problems,
    protocol_names.find_problems,
    documents.find_problems,
    exceptions.find_problems,
    threats.find_problems,
)


def main() -> int:
    root = Path(__file__).parents[2]
    problems = [problem for find_problems in RULES for problem in find_problems(root)]
    print("\n".join(problems) or "All rules are kept.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
