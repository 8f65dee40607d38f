"""The form `<function_calls><invoke name="f"><parameter name="p">…`: what follows its head comes in, its calls go out.

Values are raw text, which escapes nothing: one ends where the next tag of the form follows its closing tag. A last
closing tag may be missing, since models are often stopped before it; a call may not be cut.
"""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from dragoman.hub.request import Json, split_pointer
from dragoman.stages.call_syntax import Call, CallSyntax, Tools, prefix_pattern

_CLOSING = "</parameter>"
_GAP = r"\s{0,32}"
_NAME = r'([^"<>]{1,128})'
_CALLS = (*"<function_calls>",)
_INVOKE = (*'<invoke name="', _NAME, *'">')
_PARAMETER = (*'<parameter name="', _NAME, *'">')
_INVOKE_END = (*"</invoke>",)
_CALLS_END = (*"</function_calls>",)


def _either(*ways: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(_GAP + "(?:" + "|".join("".join(way) for way in ways) + ")")


def _either_begun(*ways: tuple[str, ...], after: tuple[str, ...] = ()) -> re.Pattern[str]:
    return re.compile("|".join(prefix_pattern(*after, _GAP, *way) for way in ways))


_NEXT_CALL = _either(_INVOKE, _CALLS_END)
_NEXT_CALL_BEGUN = _either_begun(_INVOKE, _CALLS_END)
_NEXT_PARAMETER = _either(_PARAMETER, _INVOKE_END)
_NEXT_PARAMETER_BEGUN = _either_begun(_PARAMETER, _INVOKE_END)
_VALUE_END = re.compile(f'{_CLOSING}(?={_GAP}(?:<parameter name="|</invoke>))')
_VALUE_END_BEGUN = _either_begun((*'<parameter name="',), _INVOKE_END, after=(*_CLOSING,))


class _Invokes:
    __slots__ = ("_calls", "_done", "_held", "_key", "_name", "_taken", "_tools", "_value", "_values")

    def __init__(self, head: re.Match[str], tools: Tools) -> None:
        self._tools = tools
        self._taken = [head[0]]
        self._held = ""  # too little to tell what it is
        self._calls: list[Call] | None = []
        self._done = False
        self._name: str | None = head[1]  # None: between two calls
        self._values: dict[str, str] = {}
        self._key: str | None = None  # None: between two parameters
        self._value: list[str] = []

    def feed(self, text: str) -> str | None:
        text, self._held = self._held + text, ""
        at = 0
        while (reached := self._advance(text, at)) is not None:
            at = reached
            if self._done:
                break
        self._taken.append(text[:at])
        if self._done:
            return text[at:]
        self._held = text[at:]
        return None

    def finish(self) -> None:
        rest, self._held = self._held, ""
        self._taken.append(rest)
        if self._name is not None or not "</function_calls>".startswith(rest.strip()):
            self._calls = None

    def calls(self) -> Sequence[Call] | None:
        return self._calls

    def taken(self) -> str:
        return "".join((*self._taken, self._held))

    def _advance(self, text: str, at: int) -> int | None:
        """The place after the next token; None where more of it must come."""
        if self._key is not None:
            return self._read_value(self._key, text, at)
        within = self._name is not None
        token = (_NEXT_PARAMETER if within else _NEXT_CALL).match(text, at)
        if token is None:
            if (_NEXT_PARAMETER_BEGUN if within else _NEXT_CALL_BEGUN).fullmatch(text, at):
                return None
            return self._give_up(at)
        if self._name is None:
            return self._begin(token, at)
        if token[1] is not None:
            self._key = token[1]
        else:
            self._end_call(self._name)
        return token.end()

    def _begin(self, token: re.Match[str], at: int) -> int:
        """The next call, or the end of all."""
        name = token[1]
        if name is None:
            self._done = True
        elif name not in self._tools:
            return self._give_up(at)
        self._name = name
        return token.end()

    def _end_call(self, name: str) -> None:
        assert self._calls is not None
        self._calls.append((name, convert_arguments(self._values, self._tools[name])))
        self._name, self._values = None, {}

    def _read_value(self, key: str, text: str, at: int) -> int | None:
        end = text.find(_CLOSING, at)
        if end < 0:
            end = _before_tail(text, at)
        if end > at:
            self._value.append(text[at:end])
            return end
        if _VALUE_END.match(text, at):
            self._values[key] = "".join(self._value)
            self._key, self._value = None, []
            return at + len(_CLOSING)
        if at == len(text) or _VALUE_END_BEGUN.fullmatch(text, at):
            return None
        self._value.append(text[at])
        return at + 1

    def _give_up(self, at: int) -> int:
        self._calls, self._done = None, True
        return at


def _before_tail(text: str, at: int) -> int:
    """Where the text ends, but for what may begin a closing tag."""
    tail = text.rfind("<", max(at, len(text) - len(_CLOSING) + 1))
    return tail if tail >= 0 and _CLOSING.startswith(text[tail:]) else len(text)


TAGS = CallSyntax(
    head=re.compile("".join((*_CALLS, _GAP, *_INVOKE))),
    prefix=re.compile(prefix_pattern(*_CALLS, _GAP, *_INVOKE)),
    read=_Invokes,
)


_MAX_HOPS = 8
_KINDS: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def convert_arguments(values: dict[str, str], schema: Json) -> str:
    """A value is the JSON that it spells where the schema wants that type and no text; else it is text."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known = properties if isinstance(properties, dict) else {}
    typed = {key: _typed(text, _kinds(known.get(key), schema)) for key, text in values.items()}
    return msgspec.json.encode(typed).decode()


def _typed(text: str, kinds: frozenset[str]) -> str | Raw:
    if not kinds or "string" in kinds:
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return Raw(text.strip().encode()) if _KINDS.get(type(value), frozenset()) & kinds else text


def _kinds(schema: Json, root: Json, hops: int = 0) -> frozenset[str]:
    """The types that a schema names, by itself, by reference or by choice."""
    if not isinstance(schema, dict) or hops > _MAX_HOPS:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    if isinstance(reference := schema.get("$ref"), str):
        return _kinds(_referred(reference, root), root, hops + 1)
    choices = schema.get("anyOf") or schema.get("oneOf")
    found = [_kinds(choice, root, hops + 1) for choice in choices] if isinstance(choices, list) else []
    return frozenset().union(*found) if all(found) else frozenset()


def _referred(reference: str, root: Json) -> Json:
    found = root
    for key in split_pointer(reference.removeprefix("#")):
        found = found.get(key) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None
