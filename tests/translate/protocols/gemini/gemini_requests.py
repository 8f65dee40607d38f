"""Build the body of a Gemini request from what a client of another protocol sends."""

import msgspec

from dragoman.config.settings import Effort
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from narrowing import expect
from wire_json import JsonObject

NEW, OLD, GEMMA = "gemini-3.5-flash", "gemini-2.5-flash", "gemma-3-27b-it"
CITY: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: JsonObject = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
HELLO: list[JsonObject] = [{"role": "user", "content": "hi"}]


def build_from(
    client: str, body: JsonObject, model: str = NEW, quirks: frozenset[str] = frozenset()
) -> tuple[JsonObject, dict[str, str]]:
    """Return the body that is sent, and what is lost by its pointer."""
    side, upstream = PROTOCOLS[client].client, PROTOCOLS["gemini"].upstream
    assert side is not None
    assert upstream is not None
    ledger = Ledger()
    profile = find_profile(model)
    budgets = msgspec.structs.asdict(Effort()) | (profile.budget.by_effort if profile.budget else {})
    request, _ = adapt_tools(side.parse(msgspec.json.encode(body), ledger), upstream.tool_limits, ledger)
    sent = upstream.build(request, Target(model, "gemini", profile, budgets, quirks), ledger)
    return msgspec.json.decode(sent), {loss.path: loss.how.value for loss in ledger}


def from_chat(model: str = NEW, quirks: frozenset[str] = frozenset(), **fields: object) -> JsonObject:
    body: JsonObject = {"model": "m", "messages": HELLO, **fields}
    return build_from("chat", body, model, quirks)[0]


def losses_from_chat(model: str = NEW, **fields: object) -> dict[str, str]:
    body: JsonObject = {"model": "m", "messages": HELLO, **fields}
    return build_from("chat", body, model)[1]


def refusal_from_chat(**fields: object) -> tuple[str | None, str]:
    try:
        build_from("chat", {"model": "m", "messages": HELLO, **fields})
    except RequestError as refused:
        return refused.failure.at, refused.failure.message
    raise AssertionError("the request was not refused")


def settings(body: JsonObject) -> JsonObject:
    return expect(dict, body.get("generationConfig", {}))
