"""No protocol is named outside its folder, the providers that choose it, and the settings that name both."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from dragoman.translate.protocols import PROTOCOLS

OWNERS = ("translate/protocols", "upstreams", "config", "state")  # the last is what only one of them has
STEPS = ("wire", "parse", "build", "decode", "encode", "errors", "state")  # of a translation

# Where a name cannot be anything else; the other protocols are called like ordinary things.
NAMES = re.compile("chat|gemini|kiro", re.IGNORECASE)
PATHS = re.compile(
    r"/chat/completions|/messages\b|/responses\b|[gG]enerateContent|countTokens|generateAssistantResponse"
)

STRINGS = PROTOCOLS.keys() - {"echo"}  # which is a kind of provider, too

# What each of these is for. Names stand for clients and vendors there, or the module is one protocol's state.
CLIENTS = "what each client program is given, and the protocol that it uses"
GATEWAYS = "names of vendors and other gateways, and what their files call them"
STATE = "the state that only the Responses protocol has"
EXEMPT = {
    "operate/clients/client_settings.py": CLIENTS,
    "operate/clients/connecting.py": CLIENTS,
    "operate/clients/launching.py": CLIENTS,
    "operate/configuration/effective.py": "a section of the configuration is called responses",
    "server/api/openapi.py": "OpenAPI's name for the replies of an operation is responses",
    "cli/main.py": "the commands chat and responses",
    "cli/responses.py": "the command responses",
    "cli/chat.py": "the command is itself a client, of Messages",
    "operate/sign_in.py": "vendors that one signs in to, Kiro among them",
    "cli/login.py": "vendors that one signs in to, Kiro among them",
    "translate/hub/ports.py": "OpenTelemetry's name for a request to a model is chat",
    "translate/caching/outlook.py": "where a prompt differs may be its messages",
    "translate/profiles/token_count.py": "how vendors count the tokens of an image",
    "operate/metrics/readings.py": "OpenTelemetry's names of vendors",
    "operate/prices/__init__.py": "names of vendors and models",
    **dict.fromkeys(
        (f"operate/importing/{name}.py" for name in ("cli_proxy_api", "kiro_gateway", "plan", "vendors")),
        GATEWAYS,
    ),
    **dict.fromkeys((f"server/{name}.py" for name in ("background", "responses")), STATE),
    **dict.fromkeys((f"proxy/steps/{name}.py" for name in ("accept_background", "compact", "restore_state")), STATE),
}


def find_problems(root: Path) -> Iterator[str]:
    sources = root / "src" / "dragoman"
    for path in sorted(sources.rglob("*.py")):
        name = str(path.relative_to(sources))
        if name.startswith(OWNERS):
            continue
        named = list(find_names(path.read_text()))
        if name not in EXEMPT:
            yield from (f"{path.relative_to(root)}:{found} names a protocol" for found in named)
        elif not named:
            yield f"{path.relative_to(root)}: needs no exemption from the rule on protocol names any more"
    yield from find_odd_files(sources / "translate" / "protocols")


def find_odd_files(protocols: Path) -> Iterator[str]:
    """Yield files of protocols that are no step of the translation nor a part of one (`build.py`, `build_tools.py`)."""
    for name, sides in PROTOCOLS.items():
        files = {path.stem for path in (protocols / name).glob("*.py")} - {"__init__"}
        yield from (f"protocols/{name}/{file}.py is no step" for file in files if file.split("_")[0] not in STEPS)
        needed = {"wire", "errors"} | ({"parse", "encode"} if sides.client else set())
        needed |= {"build", "decode"} if sides.upstream else set()
        yield from (f"protocols/{name}/{file}.py is missing" for file in needed - files)


def find_names(source: str) -> Iterator[str]:
    """Yield the protocols that a module names: in strings, in paths, in its own names, and in imports."""
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() | bytes() as value) if id(node) not in texts:
                text = value.decode("latin-1") if isinstance(value, bytes) else value
                if text.lower() in STRINGS or PATHS.search(text):
                    yield f"{node.lineno}: {text!r}"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                if NAMES.search(name):
                    yield f"{node.lineno}: {name}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if NAMES.search(name):
                    yield f"{node.lineno}: {name}"
            case ast.ImportFrom(module=str(module)):
                parts = module.split(".")
                if parts[:3] == ["dragoman", "translate", "protocols"] and len(parts) > 3 and parts[3] in PROTOCOLS:
                    yield f"{node.lineno}: {module}"
