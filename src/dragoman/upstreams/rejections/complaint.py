"""Read what an upstream's error says about the request, without the text of users that it may quote."""

import re
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from dragoman.translate.framing.error_text import find_error_object

HOLE = "\0"  # in place of quoted text that is not a bare path
PATH = r"[\w.\[\]-]{1,256}"
MAX_TEXT = 20_000
MAX_SENTENCES = 100  # of a list: each is compared with every rule
_QUOTED = re.compile(r"""("[^"]*+"|`[^`]*+`|(?<!\w)'[^']*+'(?!\w))""")
_BARE = re.compile(PATH)
# llama.cpp's: where a chat template has raised an exception, with a line of the template.
_TEMPLATE_ERROR = re.compile(
    r"(?:Unable to generate parser for this template\. Automatic parser generation failed: \n)?-+\n"
    r"While executing [^\n]*\n[^\n]*\n *\^\nError: Jinja Exception: ([^\n]*)"
)
_WORDS = ("message", "Message", "detail")
_FRAMES = ("error", "message", "detail")
_MOST_FRAMES = 3
_RELAYED = "Provider returned error"
# What gateways write before the words of the vendor behind them: opencode#23193, 9router#1442, litellm#13609.
_PREFIX = re.compile(r"(?:Error from provider|The model returned the following errors): ")
_BODY = "body"  # FastAPI's name of the place of a field in the request


class Complaint(Struct, frozen=True):
    """An error as its upstream wrote it."""

    status: int
    message: str = ""  # with holes
    code: str = ""
    param: str = ""  # the path of a field, where the vendor names it apart from the message
    extras: tuple[str, ...] = ()  # paths of fields that a FastAPI server forbids
    literals: tuple[str, ...] = ()  # its sentences about values of single fields, after their paths, with holes
    violations: tuple[str, ...] = ()  # Google's sentences about single fields, with holes
    in_detail: bool = False  # the message is all there is, as `detail`


def read_complaint(status: int, body: bytes) -> Complaint:
    """Return what an error response complains about, in any vendor's shape."""
    found = find_error_object(body)
    if found is None:
        return Complaint(status)
    error = _find_error(found)
    relayed = _find_relayed(error)
    if relayed:
        return read_complaint(status, relayed)
    texts = [error.get(name) for name in (*_WORDS, "error")] + [found.get("error"), found.get("detail")]
    problems = error.get("detail") or found.get("detail")
    code, param = error.get("code") or error.get("type"), error.get("param")
    return Complaint(
        status,
        make_holes(next((text for text in texts if isinstance(text, str)), "")),
        str(code) if isinstance(code, str | int) else "",
        param if isinstance(param, str) and _BARE.fullmatch(param) else "",
        tuple(islice(_find_extras(problems), MAX_SENTENCES)),
        tuple(map(make_holes, islice(_find_literals(problems), MAX_SENTENCES))),
        tuple(map(make_holes, islice(_find_violations(error.get("details")), MAX_SENTENCES))),
        isinstance(found.get("detail"), str) and not {"error", "message"} & found.keys(),
    )


def _find_error(found: dict[str, object]) -> dict[str, object]:
    """Return the object with the words: some servers frame an error twice, or have a list of one."""
    inner = found.get("error")
    for _ in range(_MOST_FRAMES):
        if isinstance(inner, dict):
            found = inner
        if any(isinstance(found.get(name), str) for name in _WORDS):
            break
        errors = found.get("errors")
        framed = [found.get(name) for name in _FRAMES] + (errors[:1] if isinstance(errors, list) else [])
        inner = next((each for each in framed if isinstance(each, dict)), None)
    return found


def _find_relayed(error: dict[str, object]) -> bytes:
    """Return the error of the vendor behind OpenRouter, which has it as text: OmniRoute#3044, go-openrouter PR21."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) and error.get("message") == _RELAYED else None
    return raw.encode(errors="replace") if isinstance(raw, str) and raw.startswith("{") else b""


def make_holes(text: str) -> str:
    """Return a message with quoted text replaced by holes, unless it is a bare path or name."""
    text = _unwrap(text[:MAX_TEXT]).replace(HOLE, "").strip()
    return _QUOTED.sub(lambda found: found[0] if _BARE.fullmatch(found[0][1:-1]) else HOLE, text)


def _unwrap(text: str) -> str:
    """Return the sentence inside the frames that some servers put around it: an event, a JSON error, a traceback."""
    text = text.strip().removeprefix("event:error\ndata:")
    inner = find_error_object(text.encode()) if text[:1] == "{" else None
    error = None if inner is None else inner.get("error") or inner
    message = error.get("message") if isinstance(error, dict) else None
    if isinstance(message, str):
        text = message.strip()
    raised = _TEMPLATE_ERROR.fullmatch(text)
    text = text if raised is None else raised[1]
    prefix = _PREFIX.match(text)
    return text if prefix is None else text[prefix.end() :]


def _find_violations(details: object) -> Iterator[str]:
    for detail in details if isinstance(details, list) else ():
        violations = detail.get("fieldViolations") if isinstance(detail, dict) else None
        for violation in violations if isinstance(violations, list) else ():
            match violation:
                case {"field": str(), "description": str(text)}:
                    yield text


def _find_extras(detail: object) -> Iterator[str]:
    for problem in detail if isinstance(detail, list) else ():
        match problem:
            case {"type": "extra_forbidden", "loc": [*steps]}:
                yield _join_steps(steps)


def _find_literals(detail: object) -> Iterator[str]:
    for problem in detail if isinstance(detail, list) else ():
        match problem:
            case {"type": "literal_error", "loc": [*steps], "msg": str(text)}:
                yield f"{_join_steps(steps)}: {text}"


def _join_steps(steps: list[object]) -> str:
    return ".".join(map(str, steps[1:] if steps[:1] == [_BODY] else steps))
