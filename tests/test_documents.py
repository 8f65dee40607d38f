"""Links of the documents lead somewhere, and files that they name exist."""

import os
import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(chain(ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), (ROOT / "tests/README.md",)))
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
ANCHOR = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED_FILE = re.compile(r"`((?:src|tests|docs|bench|tools|contrib)/[\w./*-]+|[\w-]+\.(?:md|toml))`")
BELOW_PACKAGE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|\.toml|/))`")
PLACEHOLDER = re.compile(r"NAME|/X\b")
USERS_FILES = {"dragoman.toml"}
OUTSIDE_PACKAGE = ("tests/", "tools/", "bench/", "contrib/")
IN_EVERY_PROTOCOL = {"wire.py", "parse.py", "build.py", "decode.py", "encode.py"}  # named without their folder
DRY_RUN = "## The next capabilities"


def find_missing_links(document: Path, text: str) -> list[str]:
    return [link for link in LINK.findall(text) if not (document.parent / link).exists()]


def find_missing_anchors(document: Path, text: str) -> list[str]:
    return [
        f"{link}#{anchor}"
        for link, anchor in ANCHOR.findall(text)
        if anchor not in map(_anchor_of, HEADING.findall((document.parent / link if link else document).read_text()))
    ]


def _anchor_of(heading: str) -> str:
    """Return the anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def find_missing_files(base: Path, names: list[str]) -> list[str]:
    checked = (name for name in names if not PLACEHOLDER.search(name) and name not in USERS_FILES)
    return [name for name in checked if not any(base.glob(name.rstrip("/")))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document: Path) -> None:
    assert not find_missing_links(document, document.read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_anchor_leads_to_a_heading(document: Path) -> None:
    assert not find_missing_anchors(document, document.read_text())


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_file_that_a_guide_names_exists(name: str) -> None:
    assert not find_missing_files(ROOT, NAMED_FILE.findall((ROOT / name).read_text()))


def test_every_module_in_the_tables_of_changes_exists() -> None:
    """In the dry run, the column of new files names those that are still to be written."""
    table, _, dry_run = (ROOT / "docs" / "where-to-change.md").read_text().partition(DRY_RUN)
    planned = [line.split(" | ") for line in dry_run.splitlines() if line.startswith("| ")]
    assert [len(cells) for cells in planned] == [4] * len(planned)
    assert len(planned) > 5
    rows = [line for line in table.splitlines() if line.startswith("|")]
    modules = BELOW_PACKAGE.findall("\n".join([*rows, *(cells[2] + cells[3] for cells in planned)]))
    assert len(modules) > 80
    missing = find_missing_files(ROOT / "src" / "dragoman", [name for name in modules if not _is_outside(name)])
    assert not [name for name in missing if name not in IN_EVERY_PROTOCOL]
    assert not find_missing_files(ROOT, [name for name in modules if _is_outside(name)])


def test_a_translated_stream_is_followed_through_at_most_twelve_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page.partition("## One translated stream")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. .*?`([a-z_]+/[a-z_]+\.py)`", walk, re.MULTILINE)
    assert 8 <= len(set(steps)) == len(steps) <= 12
    modules = [name for name in BELOW_PACKAGE.findall(page) if not _is_outside(name)]
    missing = find_missing_files(ROOT / "src" / "dragoman", modules)
    assert not [name for name in missing if name not in IN_EVERY_PROTOCOL]


def test_the_index_lists_every_decision() -> None:
    """With DRAGOMAN_WRITE_PAGES set, the index is written."""
    index = ROOT / "docs" / "adr" / "README.md"
    titles = {page.name: page.read_text().partition("\n")[0] for page in sorted(index.parent.glob("0*.md"))}
    rows = [re.sub(r"# (\d+)\. (.*)", rf"| \1 | [\2]({name}) |", title) for name, title in titles.items()]
    head, line, _ = index.read_text().partition("|---|---|\n")
    written = head + line + "\n".join(rows) + "\n"
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        index.write_text(written)
    assert index.read_text() == written, "docs/adr/README.md is stale: run this test with DRAGOMAN_WRITE_PAGES=1"


def _is_outside(name: str) -> bool:
    """`tools/` is a folder of the package and one of the repository."""
    return name.startswith(OUTSIDE_PACKAGE) and not (ROOT / "src" / "dragoman" / name).exists()


def test_a_dead_link_and_a_missing_file_are_found(tmp_path: Path) -> None:
    text = "[gone](docs/gone.md#part) [here](here.md) [web](https://example.com) `tests/gone.py` `tests/NAME.py`"
    (tmp_path / "here.md").touch()
    assert find_missing_links(tmp_path / "page.md", text) == ["docs/gone.md"]
    (tmp_path / "here.md").write_text("## Part one\n")
    assert find_missing_anchors(tmp_path / "page.md", "[a](here.md#part-one) [b](here.md#part)") == ["here.md#part"]
    assert find_missing_files(tmp_path, NAMED_FILE.findall(text)) == ["tests/gone.py"]
