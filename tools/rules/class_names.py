"""One name, one meaning: no public class has the name of another, except in the folders of protocols and vendors."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

OWN_WORDS = ("translate/protocols/", *(f"upstreams/{name}/" for name in ("codex", "copilot", "echo", "gemini", "kiro")))


def find_problems(root: Path) -> Iterator[str]:
    sources = root / "src" / "dragoman"
    modules = {path.relative_to(sources).as_posix(): path.read_text() for path in sorted(sources.rglob("*.py"))}
    yield from find_repeated({name: text for name, text in modules.items() if not name.startswith(OWN_WORDS)})


def find_repeated(modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the classes that stand in several modules, with those modules."""
    places = defaultdict(list)
    for name, text in modules.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    yield from (f"class {name} stands in {', '.join(found)}" for name, found in places.items() if len(found) > 1)
