"""Source and documents use the words of the field: no private word as a name, in a comment or in a message."""

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

FOLDERS = ("src", "tests", "bench", "tools")
EXAMPLES = (Path("tools/rules/words.py"), Path("tests/test_rules.py"))
DOCUMENTS = ("*.md", "docs/**/*.md", "src/dragoman/console/**/*.js")
# Parts of names (`_told_usage`, `ToldUsage`). Where there is a plain word for it, it stands behind the name.
NAME_PARTS = frozenset(
    {
        *("told", "tell"),  # message, line, event, report
        *("asked", "spoken", "wanted", "heard", "said"),  # request, protocol, requested_model, reply, text
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


def find_problems(root: Path) -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if path.relative_to(root) not in EXAMPLES:
                yield from find_private_words(path.read_text(), str(path.relative_to(root)))
                yield from find_participles(path.read_text(), str(path.relative_to(root)))
    for pattern in DOCUMENTS:
        for path in sorted(root.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield from (f"{path.relative_to(root)}:{number}: {phrase[0]}" for phrase in PHRASES.finditer(line))


def find_private_words(source: str, name: str) -> Iterator[str]:
    named = [(0, Path(name).stem), *defined_names(ast.parse(source))]
    found = {(line, word) for line, word in named if private_parts(word)}
    found |= {(line, phrase[0]) for line, text in texts(source) for phrase in PHRASES.finditer(text)}
    return (f"{name}:{line}: {word}" for line, word in sorted(found))


def private_parts(name: str) -> frozenset[str]:
    parts = set(_CAMEL.sub("_", name).lower().split("_"))
    # The name of a test is a sentence, which may have a relative clause.
    return NAME_PARTS & (parts - {"whose"} if name.startswith("test_") else parts)


def find_participles(source: str, name: str) -> Iterator[str]:
    """Yield the functions and methods that are named by a participle alone; properties and fixtures may be."""
    if not any(PARTICIPLES.fullmatch(function) for function in FUNCTION.findall(source)):
        return  # parsing every file would take seconds
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and PARTICIPLES.fullmatch(node.name)
            and not any("property" in ast.unparse(one) or "fixture" in ast.unparse(one) for one in node.decorator_list)
        ):
            yield f"{name}:{node.lineno}: {node.name}"
