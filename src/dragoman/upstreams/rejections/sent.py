"""The request that was sent, and the fields in it that a complaint may be about.

A path is found only where the protocol has a field: never in text, arguments, results, free maps such as `metadata`, or
the names of a client's schema. What may never be left out is not found at all.
"""

import re
from collections.abc import Iterator
from functools import cached_property

import msgspec

from dragoman.net.headers import Header
from dragoman.translate.framing.jsonedit import EVERY, Path, Step
from dragoman.translate.framing.jsonread import JSON_ERRORS, read_json
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.hub.request import escape_key
from dragoman.translate.passes.adapt_tools import LISTED, NAMED, SINGLE

# Never left out, wherever they stand: what is said, what bounds the reply, what it costs. Spelled as by `_fold`.
_STRUCTURE = frozenset(
    (
        "role", "content", "parts", "text", "type", "id", "name", "source", "data", "url", "image", "file",
        "budgettokens", "thinkingbudget", "n", "input", "output", "response", "parameters", "function", "schema",
        "conversation", "prompt", "description", "modalities", "responsemodalities", "container", "mimetype",
        "mediatype", "mode",
    )
)  # fmt: skip
# Nor is an object that holds one of these.
_ESSENTIAL = frozenset(
    (
        "model", "messages", "contents", "cachedcontent", "system", "instructions", "systeminstruction", "imageurl",
        "inputimage", "imagefile", "video", "videourl", "document", "fileid", "fileurl", "fileuri", "filedata",
        "inputfile", "inlinedata", "inputaudio", "audio", "audiourl", "tools", "toolchoice", "toolconfig",
        "functioncallingconfig", "allowedfunctionnames", "toolcalls", "toolcallid",
        "tooluseid", "callid", "mcpservers", "websearchoptions", "functions", "functioncall", "functionresponse",
        "functiondeclarations", "arguments", "args", "inputschema", "parametersjsonschema", "jsonschema", "iserror",
        "maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens", "numpredict", "maxtoolcalls", "maxuses",
        "stop", "stopsequences", "stoptokenids", "responseformat", "outputformat", "format", "responseschema",
        "responsejsonschema", "responsemimetype", "structuredoutputs", "guidedjson", "guidedregex", "guidedchoice",
        "guidedgrammar", "candidatecount", "stream", "previousresponseid",
    )
)  # fmt: skip
NEVER = _STRUCTURE | _ESSENTIAL
CHEAPER = {  # values that leaving the field out would make more expensive
    "servicetier": ("flex", "batch", "standard_only"),
    "detail": ("low",),
    "mediaresolution": ("MEDIA_RESOLUTION_LOW",),
}
_FREE = frozenset(
    (
        "metadata", "input", "arguments", "args", "response", "inputschema", "parameters", "parametersjsonschema",
        "schema", "responseschema", "responsejsonschema", "logitbias", "labels", "extrabody", "headers",
    )
)  # fmt: skip
_SCHEMAS: dict[str, tuple[Path, ...]] = {  # where the schemas of functions and of replies stand
    "chat": (("tools", EVERY, "function", "parameters"), ("response_format", "json_schema", "schema")),
    "messages": (("tools", EVERY, "input_schema"), ("output_config", "format", "schema")),
    "responses": (
        ("tools", EVERY, "parameters"),
        ("tools", EVERY, "tools", EVERY, "parameters"),
        ("text", "format", "schema"),
    ),
    "gemini": tuple(
        ("tools", EVERY, declarations, EVERY, schema)
        for declarations in ("functionDeclarations", "function_declarations")
        for schema in ("parameters", "parametersJsonSchema")
    )
    + tuple(
        (config, schema)
        for config in ("generationConfig", "generation_config")
        for schema in ("responseSchema", "response_schema", "responseJsonSchema")
    ),
}
_UNTYPED = ("custom", "message")  # what vendors call a tool or an item of input whose type is not written
# xAI uses Chat's name in its errors about Responses as well: CLIProxyAPI PR3968, pi#8381.
_NAMES_OF_CHAT = {("responses", "reasoning_effort"): ["reasoning", "effort"]}
_CLASS = re.compile(r"(?:[A-Z][a-z]+){2,}")  # a model of Pydantic, in errors of FastAPI
_STEPS = re.compile(r"[\w-]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])[A-Z]")
_any = msgspec.json.Decoder()
MESSAGES = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}


class Sent:
    """A request to an upstream: its protocol, its body, and the headers that are not the gateway's own."""

    def __init__(self, protocol: str, body: bytes, headers: tuple[Header, ...] = ()) -> None:
        self.protocol = protocol
        self.body = body
        self.headers = headers

    @cached_property
    def tree(self) -> dict[str, object]:
        """The decoded body; empty if it cannot be decoded."""
        try:
            tree = read_json(_any, self.body)
        except JSON_ERRORS:
            return {}
        return tree if isinstance(tree, dict) else {}

    @property
    def turns(self) -> list[dict[str, object]]:
        """The messages, or what the protocol has in their place."""
        turns = self.tree.get(MESSAGES.get(self.protocol, ""))
        found = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
        return found if isinstance(turns, list) and len(found) == len(turns) else []

    def find_field(self, text: str) -> Path | None:
        """Return the field that a vendor's path names, with EVERY for each index; None if there is none to leave out.

        A step that names a variant, such as `custom`, and is no key of more fields there is skipped.
        """
        words = _STEPS.findall(text)
        if len(words) == 1 and find_key(self.tree, words[0]) is None:
            words = _NAMES_OF_CHAT.get((self.protocol, to_snake(words[0])), words)
        found = self._follow(words, enters_free=False)
        return found[0] if found is not None and self._may_leave_out(*found, words[-1]) else None

    def find_keyword(self, text: str) -> str | None:
        """Return the keyword of a schema that a vendor's path names; None if it names a property, or nothing."""
        words = _STEPS.findall(text)
        found = self._follow(words, enters_free=True)
        if found is None or found[0][-1] != words[-1]:
            return None
        holder = found[0][:-1]
        is_schema = any(name_every(at) == holder for at, _ in self.find_schemas())
        return words[-1] if is_schema else None

    def _follow(self, words: list[str], *, enters_free: bool) -> tuple[Path, object] | None:
        """Return the path that these steps lead to, and the value there."""
        path: list[Step] = []
        holder: object = self.tree
        for number, word in enumerate(words, 1):
            if path and not enters_free and _is_free(path[-1], holder):
                return None
            if isinstance(holder, list):
                index = parse_number(word)
                if index is None or index >= len(holder):
                    return None
                path.append(EVERY)
                holder = holder[index]
                continue
            if not isinstance(holder, dict):
                return None
            key = find_key(holder, word)
            if key is not None and (number == len(words) or isinstance(holder[key], dict | list)):
                path.append(key)
                holder = holder[key]
            elif not path or not _is_variant(word, holder):
                return None
        return (tuple(path), holder) if path else None

    def _may_leave_out(self, path: Path, value: object, word: str) -> bool:
        key = path[-1]
        if not isinstance(key, str) or not _is_same(key, word):  # the named field is not there
            return False
        if _is_free(key, value) and len(path) > 1:
            return False
        return may_leave_out(key, value)

    def find_schemas(self) -> Iterator[tuple[Path, dict[str, object]]]:
        """Return every schema of functions and replies, and every schema within one, with its place."""
        for pattern in _SCHEMAS.get(self.protocol, ()):
            for path in expand(pattern, self.tree):
                yield from _inner_schemas(path, get_value(self.tree, path))


def _is_variant(word: str, holder: dict[str, object]) -> bool:
    """Whether a step only says which kind of object this is."""
    kind, role = holder.get("type"), holder.get("role")
    if _CLASS.fullmatch(word):
        return not isinstance(role, str) or role in word.lower()
    return word in (kind, role) or (kind is None and word in _UNTYPED)


def name_every(path: Path) -> Path:
    """Return the path with EVERY for each index."""
    return tuple(EVERY if isinstance(step, int) else step for step in path)


def find_key(holder: object, word: str) -> str | None:
    """Return the key of an object that a vendor spells so; vendors write some in another case."""
    if not isinstance(holder, dict):
        return None
    return (
        word if word in holder else next((key for key in holder if isinstance(key, str) and _is_same(key, word)), None)
    )


def _is_same(key: str, word: str) -> bool:
    return key == word or to_snake(key) == to_snake(word)


def may_leave_out(key: Step, value: object) -> bool:
    """Whether this field with this value is none of what must stay, and holds nothing of it."""
    if (
        not isinstance(key, str)
        or _fold(key) in NEVER
        or (isinstance(value, str) and value in CHEAPER.get(_fold(key), ()))
    ):
        return False
    return _is_free(key, value) or not _holds_essential(value)


def _fold(key: str) -> str:
    return key.replace("_", "").lower()


def _holds_essential(value: object) -> bool:
    """Whether something that must stay would be left out with this value."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            if any(isinstance(key, str) and _fold(key) in _ESSENTIAL for key in each):
                return True
            todo += each.values()
        elif isinstance(each, list):
            todo += each
    return False


def to_snake(word: str) -> str:
    return _CAMEL.sub(lambda found: f"_{found[0]}", word).lower()


def _is_free(step: Step, value: object) -> bool:
    """Whether what stands under this key is the client's own map, whose names mean nothing to the protocol."""
    return isinstance(step, str) and _fold(step) in _FREE and isinstance(value, dict)


def _inner_schemas(path: Path, value: object) -> Iterator[tuple[Path, dict[str, object]]]:
    todo: list[tuple[Path, object]] = [(path, value)]
    while todo:
        at, schema = todo.pop()
        if not isinstance(schema, dict):
            continue
        yield at, schema
        for key, inner in schema.items():
            if key in NAMED and isinstance(inner, dict):
                todo += [((*at, key, name), each) for name, each in inner.items()]
            elif isinstance(inner, list) and (key in LISTED or key == "items"):
                todo += [((*at, key, index), each) for index, each in enumerate(inner)]
            elif key in SINGLE:
                todo.append(((*at, key), inner))


def expand(pattern: Path, tree: object) -> list[Path]:
    """Return the places that a path with EVERY stands for, as far as they exist."""
    places: list[tuple[Path, object]] = [((), tree)]
    for step in pattern:
        found: list[tuple[Path, object]] = []
        for at, value in places:
            if isinstance(value, list) and (step is EVERY or isinstance(step, int)):
                steps = range(len(value)) if step is EVERY else [step]
                found += [
                    ((*at, index), value[index]) for index in steps if isinstance(index, int) and index < len(value)
                ]
            elif isinstance(value, dict) and isinstance(step, str) and step in value:
                found.append(((*at, step), value[step]))
        places = found
    return [at for at, _ in places]


def get_value(tree: object, path: Path) -> object:
    """Return the value at a path without EVERY; None if there is none."""
    for step in path:
        if isinstance(tree, dict) and isinstance(step, str):
            tree = tree.get(step)
        elif isinstance(tree, list) and isinstance(step, int):
            tree = tree[step] if step < len(tree) else None
        else:
            return None
    return tree


def format_path(path: Path) -> str:
    """Return a path as a JSON pointer, with `*` for every element."""
    return "".join(f"/{'*' if step is EVERY else escape_key(str(step))}" for step in path)


def parse_path(pointer: str) -> Path:
    """Return the path that `format_path` wrote. A number is an index, for keys of objects are never numbers here."""
    steps = pointer.split("/")[1:]
    return tuple(_parse_step(step.replace("~1", "/").replace("~0", "~")) for step in steps)


def _parse_step(step: str) -> Step:
    if step == "*":
        return EVERY
    index = parse_number(step)
    return step if index is None else index
