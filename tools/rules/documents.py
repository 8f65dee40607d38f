"""Links of the documents lead somewhere, and files that they name exist."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

GUIDES = ("CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
ANCHOR = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED_FILE = re.compile(r"`((?:src|tests|docs|bench|tools|contrib)/[\w./*-]+|[\w-]+\.(?:md|toml))`")
BELOW_PACKAGE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|\.toml|/))`")
PLACEHOLDER = re.compile(r"NAME|/X\b")
USERS_FILES = {"dragoman.toml"}
OUTSIDE_PACKAGE = ("src/", "tests/", "tools/", "bench/", "contrib/")
IN_EVERY_PROTOCOL = {"wire.py", "parse.py", "build.py", "decode.py", "encode.py"}  # named without their folder
DRY_RUN = "## The next capabilities"


def find_problems(root: Path) -> Iterator[str]:
    for document in sorted(chain(root.glob("*.md"), root.glob("docs/**/*.md"), (root / "tests/README.md",))):
        text = document.read_text()
        missing = [*find_missing_links(document, text), *find_missing_anchors(document, text)]
        yield from (f"{document.relative_to(root)}: {link} leads nowhere" for link in missing)
    for name in GUIDES:
        missing = find_missing_files(root, NAMED_FILE.findall((root / name).read_text()))
        yield from (f"{name}: {file} does not exist" for file in missing)
    for name in ("docs/architecture.md", "docs/where-to-change.md"):
        yield from (f"{name}: {file} does not exist" for file in find_missing_modules(root, (root / name).read_text()))
    yield from find_unlisted_decisions(root / "docs" / "adr")


def find_missing_modules(root: Path, page: str) -> list[str]:
    """Return modules that do not exist; in the dry run, the column of new files names those still to be written."""
    page, _, dry_run = page.partition(DRY_RUN)
    planned = [line.split(" | ") for line in dry_run.splitlines() if line.startswith("| ")]
    modules = BELOW_PACKAGE.findall("\n".join([page, *(cells[2] + cells[3] for cells in planned)]))
    package = root / "src" / "dragoman"
    # `tools/` is a folder of the package and one of the repository.
    outside = {name for name in modules if name.startswith(OUTSIDE_PACKAGE) and not (package / name).exists()}
    missing = find_missing_files(package, [name for name in modules if name not in outside | IN_EVERY_PROTOCOL])
    return missing + find_missing_files(root, sorted(outside))


def find_unlisted_decisions(folder: Path) -> Iterator[str]:
    index = (folder / "README.md").read_text()
    for page in sorted(folder.glob("0*.md")):
        number, title = re.findall(r"# (\d+)\. (.*)", page.read_text())[0]
        if f"| {number} | [{title}]({page.name}) |" not in index:
            yield f"docs/adr/README.md: no line for {page.name}: | {number} | [{title}]({page.name}) |"


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
