"""Links of the documents lead somewhere, and files that they name exist."""

import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(chain(ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), (ROOT / "tests/README.md",)))
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
NAMED_FILE = re.compile(r"`((?:src|tests|docs|bench|tools|contrib)/[\w./*-]+|[\w-]+\.(?:md|toml))`")
BELOW_PACKAGE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|\.toml|/))`")
PLACEHOLDER = re.compile(r"NAME|/X\b")
USERS_FILES = {"dragoman.toml"}
OUTSIDE_PACKAGE = ("tests/", "tools/", "bench/", "contrib/")
IN_EVERY_PROTOCOL = {"wire.py", "encode.py"}  # the table names them without their folder


def find_missing_links(document: Path, text: str) -> list[str]:
    return [link for link in LINK.findall(text) if not (document.parent / link).exists()]


def find_missing_files(base: Path, names: list[str]) -> list[str]:
    wanted = (name for name in names if not PLACEHOLDER.search(name) and name not in USERS_FILES)
    return [name for name in wanted if not any(base.glob(name.rstrip("/")))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document: Path) -> None:
    assert not find_missing_links(document, document.read_text())


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_file_that_a_guide_names_exists(name: str) -> None:
    assert not find_missing_files(ROOT, NAMED_FILE.findall((ROOT / name).read_text()))


def test_every_module_in_the_table_of_changes_exists() -> None:
    """Sections after the table may name files that are still to be written."""
    table = (ROOT / "docs" / "where-to-change.md").read_text().partition("\n## ")[0]
    rows = "\n".join(line for line in table.splitlines() if line.startswith("|"))
    modules = [name for name in BELOW_PACKAGE.findall(rows) if not name.startswith(OUTSIDE_PACKAGE)]
    assert len(modules) > 50
    missing = find_missing_files(ROOT / "src" / "dragoman", modules)
    assert not [name for name in missing if name not in IN_EVERY_PROTOCOL]


def test_a_dead_link_and_a_missing_file_are_found(tmp_path: Path) -> None:
    text = "[gone](docs/gone.md#part) [here](here.md) [web](https://example.com) `tests/gone.py` `tests/NAME.py`"
    (tmp_path / "here.md").touch()
    assert find_missing_links(tmp_path / "page.md", text) == ["docs/gone.md"]
    assert find_missing_files(tmp_path, NAMED_FILE.findall(text)) == ["tests/gone.py"]
