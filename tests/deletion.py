"""Law 7 as functions: find the leaves of a request that vanish without a loss in the ledger."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from dragoman.config.settings import Effort
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger, Loss
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.protocols import PROTOCOLS
from narrowing import expect

Json = dict[str, object]
Path = tuple[str | int, ...]

BUDGETS = msgspec.structs.asdict(Effort())
ISSUERS = {
    "chat": "a-compatible-server",
    "responses": "openai",
    "messages": "anthropic",
    "gemini": "gemini",
    "kiro": "kiro",
}


@dataclass(frozen=True)
class Built:
    body: bytes
    path: str  # some protocols have the mode there
    ledger: tuple[Loss, ...]

    @property
    def losses(self) -> frozenset[str]:
        return frozenset(loss.path for loss in self.ledger if loss.path)


@dataclass(frozen=True)
class Turned:
    at: str | None
    message: str


@dataclass(frozen=True)
class Vanished:
    pointer: str
    value: object


def outcome(client: str, target: str, body: Json) -> Built | Turned:
    """The result of building a request: its body and its losses, or an error."""
    speaker, upstream = PROTOCOLS[client].client, PROTOCOLS[target].upstream
    assert speaker is not None
    assert upstream is not None
    ledger = Ledger()
    try:
        request = speaker.parse(msgspec.json.encode(body), ledger)
        request, _ = adapt_tools(request, upstream.tool_limits, ledger)
        sent = upstream.build(request, Target("vendor-model", ISSUERS[target], budgets=BUDGETS), ledger)
        location = upstream.locate("vendor-model", request.stream)
    except RequestError as refused:
        return Turned(refused.failure.at, refused.failure.message)
    return Built(sent, location.path, tuple(ledger))


def find_vanishing(client: str, target: str, body: Json, at_most: int | None = None) -> Iterator[Vanished]:
    """Return the leaves whose removal changes nothing and that are not in the ledger.

    `at_most` bounds how many leaves of one shape are tried: long conversations repeat themselves.
    """
    body, before = without_refused(client, target, body)
    losses = before.losses
    tried: Counter[str] = Counter()
    for path, value in leaves(body):
        where = pointer(path)
        shape = re.sub(r"/\d+", "/*", where)
        tried[shape] += 1
        if value is None or (at_most is not None and tried[shape] > at_most):
            continue
        if any(is_kin(loss, where) for loss in losses):
            continue
        after = outcome(client, target, remove_value(body, path))
        if isinstance(after, Built) and (after.body, after.path) == (before.body, before.path):
            yield Vanished(where, value)


def without_refused(client: str, target: str, body: Json) -> tuple[Json, Built]:
    """The request less what this target refuses; every refusal names what is to blame."""
    while True:
        found = outcome(client, target, body)
        if isinstance(found, Built):
            return body, found
        assert found.at, f"a refusal that names nothing: {found.message}"
        body = remove_value(body, find_blamed(body, found.at))


def find_blamed(body: Json, at: str) -> Path:
    """The element of a list that a pointer leads into, else the field at its top."""
    path: list[str | int] = []
    value: object = body
    for token in at.split("/")[1:]:
        if isinstance(value, list) and token.isdigit() and int(token) < len(value):
            path.append(int(token))
            value = value[int(token)]
        elif isinstance(value, dict) and token in value:
            path.append(token)
            value = value[token]
        else:
            break
    assert path, f"{at} has no target"
    elements = [end for end, key in enumerate(path, 1) if isinstance(key, int)]
    return tuple(path[: elements[-1]]) if elements else (path[0],)


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every value that holds no other: scalars, and empty lists and objects."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    else:
        yield path, value


def remove_value(body: Json, path: Path) -> Json:
    """The body without one value; what is not on the way there is shared."""
    return expect(dict, _without(body, path))


def _without(value: object, path: Path) -> object:
    key, *rest = path
    if isinstance(value, list):
        assert isinstance(key, int)
        inner = [_without(value[key], tuple(rest))] if rest else []
        return [*value[:key], *inner, *value[key + 1 :]]
    assert isinstance(value, dict)
    if not rest:
        return {name: kept for name, kept in value.items() if name != key}
    return {name: _without(kept, tuple(rest)) if name == key else kept for name, kept in value.items()}


def pointer(path: Path) -> str:
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)


def is_kin(one: str, other: str) -> bool:
    """Whether one pointer leads to the other's value, into it, or to what holds it."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")
