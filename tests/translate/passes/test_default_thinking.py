"""Thinking is asked for where the client asks for nothing; whoever says anything of it keeps what it says."""

import msgspec

from asking import CLIENTS, make_body
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import Request, Switch
from dragoman.translate.passes.default_thinking import add_default_thinking
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from narrowing import present
from tables import each_row
from wire_json import JsonObject

PLACES = {
    "chat": "/reasoning_effort",
    "responses": "/reasoning",
    "messages": "/thinking",
    "gemini": "/generationConfig/thinkingConfig",
}
BUDGETS = {"low": 2048, "medium": 8192, "high": 16384}
TOOL = {"name": "clock", "input_schema": {"type": "object"}}


def parse(client: str, fields: JsonObject) -> Request:
    body = make_body(client, "m") | fields
    return present(PROTOCOLS[client].client).parse(msgspec.json.encode(body), Ledger())


def add(request: Request, default: str | int = "medium", profile: Profile | None = None) -> tuple[Request, Ledger]:
    ledger = Ledger()
    return add_default_thinking(request, default, profile or Profile(), ledger), ledger


def describe(ledger: Ledger) -> list[tuple[str, str]]:
    return [(loss.path, loss.how.value) for loss in ledger]


def build(upstream: str, request: Request, model: str, default: str | int) -> tuple[JsonObject, list[tuple[str, str]]]:
    """Return the body for an upstream, and the losses that the default alone has added."""
    built = present(PROTOCOLS[upstream].upstream).build
    target = Target(model, "vendor", find_profile(model), find_profile_budgets(model))
    plain, ledger = Ledger(), Ledger()
    built(request, target, plain)
    thinking = add_default_thinking(request, default, target.profile, ledger)
    body: JsonObject = msgspec.json.decode(built(thinking, target, ledger))
    return body, [loss for loss in describe(ledger) if loss not in describe(plain)]


def find_profile_budgets(model: str) -> dict[str, int]:
    scale = find_profile(model).budget
    return BUDGETS if scale is None else scale.by_effort


def test_a_request_that_asks_for_nothing_gets_the_default_as_one_invented_value() -> None:
    for client in CLIENTS:
        request, ledger = add(parse(client, {}))
        assert present(request.reasoning).effort == "medium", client
        assert describe(ledger) == [(PLACES[client], "invented")], client
        request, _ = add(parse(client, {}), 4000)
        assert (present(request.reasoning).budget, present(request.reasoning).switch) == (4000, Switch.ENABLED), client
    request, ledger = add(parse("gemini", {"generationConfig": {"thinkingConfig": {}}}))
    assert present(request.reasoning).effort == "medium"


@each_row(
    ("client", "fields"),
    [
        ("chat", {"reasoning_effort": "none"}),
        ("chat", {"reasoning_effort": "low"}),
        ("chat", {"thinking": {"type": "disabled"}}),
        ("chat", {"reasoning": {"enabled": False}}),
        ("chat", {"enable_thinking": False}),
        ("chat", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("responses", {"reasoning": {"effort": "none"}}),
        ("responses", {"reasoning": {"effort": "high", "summary": "auto"}}),
        ("messages", {"thinking": {"type": "disabled"}}),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("messages", {"thinking": {"type": "of_next_year"}}),
        ("messages", {"output_config": {"effort": "low"}}),
        ("messages", {"output_config": {"effort": "of_next_year"}}),
        ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}),
        ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW"}}}),
    ],
)
def test_a_client_that_says_anything_of_thinking_keeps_it(client: str, fields: JsonObject) -> None:
    request = parse(client, fields)
    same, ledger = add(request)
    assert same is request
    assert describe(ledger) == []


def test_models_that_do_not_think_and_calls_that_thinking_would_prevent_are_left_alone() -> None:
    plain, forced = parse("messages", {}), parse("messages", {"tools": [TOOL], "tool_choice": {"type": "any"}})
    for model in ("gpt-4o", "gpt-5-chat-latest", "claude-3-5-haiku-20241022", "gemini-2.0-flash"):
        assert add(plain, profile=find_profile(model))[0] is plain, model
    assert add(forced, profile=find_profile("claude-sonnet-4-5"))[0] is forced
    assert add(forced, profile=find_profile("claude-opus-4-6"))[0] is not forced


@each_row(
    ("upstream", "model", "default", "sent"),
    [
        ("chat", "gpt-5.2", "medium", {"reasoning_effort": "medium"}),
        ("chat", "gpt-5.2", 20_000, {"reasoning_effort": "high"}),
        ("chat", "qwen-3", "high", {"reasoning_effort": "high"}),
        ("responses", "gpt-5.2", "low", {"reasoning": {"effort": "low"}}),
        ("messages", "claude-opus-4-6", "medium", {"thinking": {"type": "adaptive"}}),
        ("messages", "claude-sonnet-4-5", "medium", {"thinking": {"type": "enabled", "budget_tokens": 8192}}),
        ("messages", "claude-sonnet-4-5", 3000, {"thinking": {"type": "enabled", "budget_tokens": 3000}}),
        ("gemini", "gemini-3-flash", "medium", {"generationConfig": {"thinkingConfig": {"thinkingLevel": "MEDIUM"}}}),
        ("gemini", "gemini-2.5-flash", 900, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 900}}}),
    ],
)
def test_each_upstream_gets_it_in_its_own_words(
    upstream: str, model: str, default: str | int, sent: JsonObject
) -> None:
    client = "responses" if upstream != "responses" else "chat"  # it shows no thoughts unless it is asked to
    body, losses = build(upstream, parse(client, {}), model, default)
    assert {name: body.get(name) for name in sent} == sent
    assert losses == [(PLACES[client], "invented")]


def test_what_the_vendor_does_not_allow_is_not_sent_and_is_no_loss() -> None:
    short = parse("chat", {"max_completion_tokens": 500})
    for model in ("claude-sonnet-4-5", "claude-opus-4-5"):
        body, losses = build("messages", short, model, "medium")
        assert "thinking" not in body, model
        assert "output_config" not in body, model
        assert losses == [], model
    small = parse("chat", {"max_completion_tokens": 3000})
    body, losses = build("messages", small, "claude-sonnet-4-5", "high")
    assert 1024 <= body["thinking"]["budget_tokens"] < 3000
    body, losses = build("chat", parse("messages", {}), "claude-sonnet-4-5", "medium")  # no effort to set there
    assert ("reasoning_effort" in body, losses) == (False, [])
