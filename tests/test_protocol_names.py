"""No protocol is named outside its folder, the providers that choose it, and the settings that name both."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.protocols import PROTOCOLS

SOURCES = Path(__file__).parents[1] / "src" / "dragoman"
OWNERS = ("protocols", "providers", "config", "responses")  # the last is the state that only one of them has
MODULES = sorted(path for path in SOURCES.rglob("*.py") if path.relative_to(SOURCES).parts[0] not in OWNERS)

# Where a name cannot be anything else; the other protocols are called like ordinary things.
NAMES = re.compile("chat|gemini|kiro", re.IGNORECASE)
PATHS = re.compile(
    r"/chat/completions|/messages\b|/responses\b|[gG]enerateContent|countTokens|generateAssistantResponse"
)

# What each of these is for. Names stand for clients and vendors there, or the module is one protocol's state.
CLIENTS = "what each client program is given, and the protocol that it uses"
STATE = "the state that only the Responses protocol has"
EXEMPT = {
    "admin/clients.py": CLIENTS,
    "admin/launching.py": CLIENTS,
    "admin/configuration.py": "a section of the configuration is called responses",
    "cli/main.py": "the commands chat and responses",
    "cli/responses.py": "the command responses",
    "cli/chat.py": "the command is itself a client, of Messages",
    "admin/sign_in.py": "vendors that one signs in to, Kiro among them",
    "cli/login.py": "vendors that one signs in to, Kiro among them",
    "admin/replay/runtime.py": STATE,
    "hub/ports.py": "OpenTelemetry's name for a request to a model is chat",
    "observers/metrics.py": "OpenTelemetry's names of vendors",
    "prices/__init__.py": "names of vendors and models",
    **dict.fromkeys((f"http/{name}.py" for name in ("background", "compaction", "responses", "websocket")), STATE),
}


def find_names(source: str) -> Iterator[str]:
    """Yield the protocols that a module names: in strings, in paths, in its own names, and in imports."""
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() | bytes() as value) if id(node) not in texts:
                text = value.decode("latin-1") if isinstance(value, bytes) else value
                if text.lower() in PROTOCOLS or PATHS.search(text):
                    yield f"{node.lineno}: {text!r}"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                if NAMES.search(name):
                    yield f"{node.lineno}: {name}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if NAMES.search(name):
                    yield f"{node.lineno}: {name}"
            case ast.ImportFrom(module=str(module)):
                parts = module.split(".")
                if parts[:2] == ["dragoman", "protocols"] and len(parts) > 2 and parts[2] in PROTOCOLS:
                    yield f"{node.lineno}: {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_module_names_no_protocol(path: Path) -> None:
    named = list(find_names(path.read_text()))
    if str(path.relative_to(SOURCES)) in EXEMPT:
        assert named, "it needs no exemption any more"
    else:
        assert named == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('if protocol.name == "messages":\n    pass', ["1: 'messages'"]),
        ('post("/v1/messages")', ["1: '/v1/messages'"]),
        ("model.chat_tools = False", ["1: chat_tools"]),
        ("def make_kiro(): ...", ["1: make_kiro"]),
        ("from dragoman.protocols.chat import PROTOCOL", ["1: dragoman.protocols.chat"]),
        ('"""Chat and Messages are protocols."""\nresponses = read("the messages")', []),
        ("from dragoman.protocols import PROTOCOLS", []),
    ],
)
def test_a_named_protocol_is_found(source: str, named: list[str]) -> None:
    assert list(find_names(source)) == named


def test_every_protocol_has_files_of_the_same_names() -> None:
    """A file is one step of the translation, or a part of one: `build.py`, `build_tools.py`."""
    steps = ("wire", "parse", "build", "decode", "encode", "errors", "state")
    for name in PROTOCOLS:
        files = {path.stem for path in (SOURCES / "protocols" / name).glob("*.py")} - {"__init__"}
        assert {file for file in files if file.split("_")[0] not in steps} == set()
        sides = PROTOCOLS[name]
        needed = {"wire", "errors"} | ({"parse", "encode"} if sides.client else set())
        assert needed | ({"build", "decode"} if sides.upstream else set()) <= files
