"""Source, tests and benchmark use the words of the field: no private word as a name, in a comment or in a message."""

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "dragoman"
PACKAGES = tuple(sorted(path.name for path in SOURCES.iterdir() if path.is_dir() and path.name != "__pycache__"))

# Parts of names (`_told_usage`, `ToldUsage`). Where there is a plain word for it, it stands behind the name.
NAME_PARTS = frozenset(
    {
        *("told", "tell"),  # message, line, event, report
        *("asked", "asking", "spoken", "wanted", "heard", "said"),  # request, protocol, requested_model, reply, text
        *("heed", "heir", "hush", "muse", "aim", "seat"),  # interpret, continuation, request_options, index
        *("mend", "mended", "righted", "amend", "amended"),  # repair, fix, adjust
        *(
            "shelf",
            "crew",
            "outlet",
            "discretion",
            "trail",
            "audience",
        ),  # model_cache, worker_pool, redaction, observers
        *("detour", "detours", "stanza", "stanzas", "veil"),  # proxy, section, redactor
        *("whom", "whose", "nobody", "somebody", "hearsay"),
    }
)
# In comments, docstrings and messages, of which a message has at least two words.
PHRASES = re.compile(
    r"\b(?:told|heed(?:s|ed)?|righted|mend(?:s|ed|ing)?|shelf|crew|outlet|discretion|detours?|stanzas?|whom|hearsay|nobody"
    r"|somebody|everybody|anybody|fell silent|falls silent|comes? in;|goes out\b|go out\b)",
    re.IGNORECASE,
)
# What people read besides the code.
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(SOURCES / "console").rglob("*.js")])
FUNCTION = re.compile(r"\bdef +(\w+)")
# Participles that alone are no name for a function: it is called for what it does, not for what its result is.
PARTICIPLES = re.compile(
    r"_*(?:answered|asked|begun|broken|built|called|captured|changed|checked|chosen|closed|completed|continued|counted|"
    r"decoded|described|done|encoded|ended|estimated|expected|failed|fed|fetched|filled|fixed|folded|found|framed|given|"
    r"guarded|held|joined|kept|known|listed|loaded|lost|made|moved|named|noted|offered|opened|parsed|prepared|ran|"
    r"raised|received|recorded|refused|relayed|released|removed|renamed|rendered|renewed|said|seen|sent|served|"
    r"settled|shown|signed|spent|spoken|stored|streamed|taken|told|translated|used|watched|wrapped|written)_*"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what the module itself names, not what it only uses: the standard library has names of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, docstrings and messages."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string.strip()):
            yield token.start[0], token.string


def private_words(path: Path) -> list[str]:
    source = path.read_text()
    named = [(0, path.stem), *defined_names(ast.parse(source))]
    found = {(line, name) for line, name in named if private_parts(name)}
    found |= {(line, phrase[0]) for line, text in texts(source) for phrase in PHRASES.finditer(text)}
    return [f"{path.name}:{line}: {word}" for line, word in sorted(found)]


def private_parts(name: str) -> frozenset[str]:
    parts = set(_CAMEL.sub("_", name).lower().split("_"))
    # The name of a test is a sentence, which may have a relative clause.
    return NAME_PARTS & (parts - {"whose"} if name.startswith("test_") else parts)


def participle_functions(path: Path) -> list[str]:
    """Return the functions and methods that are named by a participle alone; properties and fixtures may be."""
    text = path.read_text()
    if not any(PARTICIPLES.fullmatch(name) for name in FUNCTION.findall(text)):
        return []  # parsing every file would take seconds
    return [
        f"{path.name}:{node.lineno}: {node.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and PARTICIPLES.fullmatch(node.name)
        and not any("property" in ast.unparse(one) or "fixture" in ast.unparse(one) for one in node.decorator_list)
    ]


def test_a_function_is_not_named_by_a_participle_alone() -> None:
    roots = (SOURCES, ROOT / "tests", ROOT / "bench", ROOT / "tools")
    assert [name for root in roots for path in sorted(root.rglob("*.py")) for name in participle_functions(path)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_no_private_words(path: Path) -> None:
    found = [
        (number, phrase[0])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for phrase in PHRASES.finditer(line)
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_no_private_words(package: str) -> None:
    paths = sorted((SOURCES / package).rglob("*.py"))
    assert [word for path in paths for word in private_words(path)] == []


def test_the_modules_beside_the_packages_have_no_private_words() -> None:
    assert [word for path in sorted(SOURCES.glob("*.py")) for word in private_words(path)] == []


@pytest.mark.parametrize("directory", ["tests", "bench", "tools"])
def test_tests_benchmark_and_scripts_have_no_private_words(directory: str) -> None:
    paths = sorted(path for path in (ROOT / directory).rglob("*.py") if path != Path(__file__))
    assert [word for path in paths for word in private_words(path)] == []


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def told_usage(): ...", "told_usage"),
        ("class ToldUsage: ...", "ToldUsage"),
        ("def f(asked): ...", "asked"),
        ("for said in (): ...", "said"),
        ("x = 1  # as nobody knows", "nobody"),
        ('"""Bytes come in; frames go out."""', "come in;"),
        ('raise ValueError("the server fell silent")', "fell silent"),
    ],
)
def test_a_private_word_is_found(tmp_path: Path, source: str, word: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert any(found.endswith(f": {word}") for found in private_words(module))


def test_a_participle_is_found_as_the_name_of_a_function_and_not_of_a_property(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "def _shown(): ...\n\nclass A:\n    @property\n    def sent(self): ...\n\n    def show_sent(self): ...\n"
        "    def held(self): ...\n"
    )
    assert participle_functions(module) == ["module.py:1: _shown", "module.py:8: held"]


def test_names_that_a_module_only_uses_do_not_count(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("size = file.tell()\n")
    assert private_words(module) == []
