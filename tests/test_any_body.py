"""Any body is parsed and built, or rejected with a reason: no other exception, no loss of a field that is absent.

Bodies are real ones with something wrong, missing, doubled or huge in them.
"""

import copy
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from wire_json import Json

Path_ = tuple[str | int, ...]

CLIENTS = ("chat", "responses", "messages")
UPSTREAMS = (*CLIENTS, "gemini")
FIXTURES = Path(__file__).parent / "fixtures"
BODIES: list[tuple[str, Json]] = [
    (name, msgspec.json.decode(file.read_bytes()))
    for name in (*CLIENTS, "gemini")
    for file in (FIXTURES / name / "request.json", *sorted((FIXTURES / "deletion").glob(f"{name}-*.json")))
]
MODELS = (
    *("vendor-model", "claude-sonnet-4-5", "claude-sonnet-5-5", "claude-3-opus", "gpt-5", "gpt-4o", "gpt-5.6"),
    *("gemini-2.5-flash", "gemini-3.5-flash", "gemma-3-27b-it"),
)
JUNK: list[Json] = [
    *(None, True, 0, -1, 1.5, 10**20, "", "x", "none", "a/b~c", "\u2028", "dgm1.AAAA", "data:,x"),
    *("data:image/png;base64,", [], {}, [None], [[]], [{}], ["x"], {"type": None}, {"type": "x"}, {"a": {"b": [1]}}),
]


def places(value: Json, at: Path_ = ()) -> Iterator[Path_]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*at, key)
        yield from places(inner, (*at, key))


def put(body: Json, at: Path_, value: Json) -> None:
    holder = holder_of(body, at)
    holder[at[-1]] = copy.deepcopy(value)


def remove(body: Json, at: Path_) -> None:
    del holder_of(body, at)[at[-1]]


def double(body: Json, at: Path_) -> None:
    holder = holder_of(body, at)
    if isinstance(holder, list):
        holder.insert(int(at[-1]), copy.deepcopy(holder[int(at[-1])]))


def holder_of(body: Json, at: Path_) -> Json:
    for key in at[:-1]:
        body = body[key]
    return body


@st.composite
def mutate(draw: st.DrawFn) -> tuple[str, Json]:
    """A real body with one to three things wrong with it."""
    client, body = draw(st.sampled_from(BODIES))
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(body))
        if not found:
            break
        at = draw(st.sampled_from(found))
        change = draw(st.sampled_from(("put", "remove", "double")))
        if change == "put":
            put(body, at, draw(st.sampled_from(JUNK)))
        elif change == "remove":
            remove(body, at)
        else:
            double(body, at)
    return client, body


def build(client: str, raw: bytes, upstream: str, model: str) -> tuple[bytes, Ledger] | Failure:
    reads, writes = PROTOCOLS[client].client, PROTOCOLS[upstream].upstream
    assert reads
    assert writes
    ledger = Ledger()
    try:
        request, _ = adapt_tools(reads.parse(raw, ledger), writes.tool_limits, ledger)
        return writes.build(request, Target(model, "up", find_profile(model)), ledger), ledger
    except RequestError as refused:
        return refused.failure


def found_at(body: Json, pointer: str) -> bool:
    """Whether a JSON pointer leads anywhere."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        try:
            body = body[int(key)] if isinstance(body, list) else body[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    return True


@pytest.mark.parametrize("upstream", UPSTREAMS)
@settings(max_examples=100)
@given(broken=mutate(), model=st.sampled_from(MODELS))
def test_a_body_is_built_or_rejected_and_only_its_fields_are_reported(
    upstream: str, broken: tuple[str, Json], model: str
) -> None:
    client, body = broken
    match build(client, msgspec.json.encode(body), upstream, model):
        case Failure(kind=kind, at=at, message=message):
            assert kind is Kind.BAD_REQUEST
            assert at is not None
            assert message
        case built, ledger:
            assert isinstance(msgspec.json.decode(built), dict)
            for loss in ledger:
                assert loss.how is LossKind.INVENTED or found_at(body, loss.path), (loss.path, loss.why)


def nest_value(depth: int) -> bytes:
    return b'{"type":"object","properties":{"a":' * depth + b'{"type":"string"}' + b"}}" * depth


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("depth", [50, 400, 5000])
def test_a_deep_schema_is_built_or_refused(upstream: str, depth: int) -> None:
    raw = b'{"model":"m","input":"a","text":{"format":{"type":"json_schema","name":"n","schema":%b}}}' % nest_value(
        depth
    )
    match build("responses", raw, upstream, "vendor-model"):
        case Failure(message=message):
            assert "deeply" in message
            assert depth > 50
        case built, _:
            assert built.count(b'"properties"') == depth


def same_ids(count: int) -> Json:
    call = {"id": "same", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    step = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "same", "content": "ok"}]
    return {"messages": [{"role": "user", "content": "a"}, *step * (count // 2)]}


def instructions(count: int) -> Json:
    return {"messages": [{"role": "user", "content": "a"}, *[{"role": "system", "content": "b"}] * count]}


def allowed_tools(count: int) -> Json:
    functions = [{"type": "function", "function": {"name": f"tool.{n}"}} for n in range(count)]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": functions}}
    return {"messages": [{"role": "user", "content": "a"}], "tools": functions, "tool_choice": choice}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("many", [same_ids, instructions, allowed_tools])
@pytest.mark.rest
def test_ten_times_as_much_does_not_take_a_hundred_times_as_long(upstream: str, many: Callable[[int], Json]) -> None:
    def seconds(count: int) -> float:
        raw = msgspec.json.encode({"model": "m", **many(count)})
        gc.disable()  # what else is alive in this process must not count
        try:
            began = time.process_time()
            build("chat", raw, upstream, "vendor-model")
            return time.process_time() - began
        finally:
            gc.enable()

    small = min(seconds(600) for _ in range(3))
    assert min(seconds(6000) for _ in range(3)) < 50 * small
