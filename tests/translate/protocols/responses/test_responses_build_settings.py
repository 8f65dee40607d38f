"""Settings of a hub request in, those of a Responses body out."""

from dragoman.translate.hub.loss import LossKind
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import Format, Reasoning, Shape, Switch
from tables import each_row
from translate.protocols.responses.responses_bodies import (
    TARGET,
    build_body,
    expect_refusal_at,
    find_losses,
    request_of,
)
from wire_json import JsonObject

DROPPED, APPROXIMATED, INVENTED = LossKind.DROPPED, LossKind.APPROXIMATED, LossKind.INVENTED
FIXED = Target("o9", "openai", Profile(sampling=False))
THOUGHTLESS = Target("gpt-4o", "openai", Profile(efforts=()))
EXTREMES = Target("m", "openai", Profile(efforts=("low", "high")))
WITH_NONE = Target("m", "openai", Profile(efforts=("none", "low", "high")))
SCHEMA: JsonObject = {"type": "object"}
OFF = Reasoning("/thinking", switch=Switch.DISABLED, switch_at="/thinking/type")
LACKING = {"top_k": 5, "frequency_penalty": 0.1, "presence_penalty": 0.2, "seed": 1, "stop": ("x",)}
BUDGETS = [(1024, "low"), (1025, "medium"), (8192, "medium"), (24576, "high"), (31999, "xhigh")]
IDENTITY = {"user": "u", "safety_identifier": "s", "metadata": {"a": "b"}, "service_tier": "flex", "stream": True}


def think(effort: str) -> JsonObject:
    return {"protocol": "chat", "reasoning": Reasoning("/reasoning_effort", effort)}


def spend(budget: int) -> JsonObject:
    return {"reasoning": Reasoning("/thinking", budget=budget, budget_at="/thinking/budget_tokens")}


@each_row(
    ("fields", "target", "sent", "lost"),
    [
        ({"protocol": "chat", **LACKING}, TARGET, {}, [(f"/{name}", DROPPED) for name in LACKING]),
        ({"stop": ("x",), "where": {"stop": "/stop_sequences"}}, TARGET, {}, [("/stop_sequences", DROPPED)]),
        ({"protocol": "chat", "n": 1}, TARGET, {}, []),
        ({"temperature": 0.5, "top_p": 0.9}, TARGET, {"temperature": 0.5, "top_p": 0.9}, []),
        (
            {"temperature": 0.5, "top_p": 0.9},
            FIXED,
            {"temperature": None, "top_p": None},
            [("/temperature", DROPPED), ("/top_p", DROPPED)],
        ),
        ({"max_tokens": 1}, TARGET, {"max_output_tokens": 16}, [("/max_tokens", APPROXIMATED)]),
        *(({"max_tokens": cap}, TARGET, {"max_output_tokens": cap}, []) for cap in (16, 500)),
        ({"max_tokens": 0}, TARGET, {"prompt_cache_options": {"prewarm": True}, "max_output_tokens": None}, []),
        *(
            (spend(budget), TARGET, {"reasoning": {"effort": effort}}, [("/thinking/budget_tokens", APPROXIMATED)])
            for budget, effort in BUDGETS
        ),
        ({"reasoning": OFF}, TARGET, {"reasoning": {"effort": "none"}}, [("/thinking/type", APPROXIMATED)]),
        ({"reasoning": OFF}, EXTREMES, {"reasoning": {"effort": "low"}}, [("/thinking/type", APPROXIMATED)]),
        ({"reasoning": OFF}, THOUGHTLESS, {"reasoning": None}, []),
        (think("max"), EXTREMES, {"reasoning": {"effort": "high"}}, [("/reasoning_effort", APPROXIMATED)]),
        (think("minimal"), EXTREMES, {"reasoning": {"effort": "low"}}, [("/reasoning_effort", APPROXIMATED)]),
        (think("minimal"), WITH_NONE, {"reasoning": {"effort": "low"}}, [("/reasoning_effort", APPROXIMATED)]),
        (think("medium"), EXTREMES, {"reasoning": {"effort": "low"}}, [("/reasoning_effort", APPROXIMATED)]),
        (think("high"), EXTREMES, {"reasoning": {"effort": "high"}}, []),
        (think("high"), THOUGHTLESS, {"reasoning": None}, [("/reasoning_effort", DROPPED)]),
        (
            {"reasoning": Reasoning("/e", "high", show="summarized", show_at="/thinking/display")},
            TARGET,
            {"reasoning": {"effort": "high", "summary": "auto"}},
            [("/e", APPROXIMATED), ("/thinking/display", APPROXIMATED)],
        ),
        (
            {"format": Format(Shape.SCHEMA, "/f", "answer", schema=SCHEMA, strict=True)},
            TARGET,
            {"text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}},
            [],
        ),
        (
            {"format": Format(Shape.SCHEMA, "/f", schema=SCHEMA)},
            TARGET,
            {"text": {"format": {"type": "json_schema", "name": "response", "schema": SCHEMA}}},
            [("/f", INVENTED)],
        ),
        ({"format": Format(Shape.JSON, "/f")}, TARGET, {"text": {"format": {"type": "json_object"}}}, []),
        (
            {"protocol": "chat", "logprobs": True, "top_logprobs": 3},
            TARGET,
            {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "top_logprobs": 3},
            [],
        ),
        ({"protocol": "chat", **IDENTITY}, TARGET, IDENTITY, []),
        ({"cache_key": "k", "verbosity": "low"}, TARGET, {"prompt_cache_key": "k", "text": {"verbosity": "low"}}, []),
        (
            {"user": "u-1", "where": {"user": "/metadata/user_id"}},
            TARGET,
            {"safety_identifier": "u-1"},
            [("/metadata/user_id", APPROXIMATED)],
        ),
        ({"ext": {"container": "c"}}, TARGET, {}, [("/container", DROPPED)]),
    ],
)
def test_a_setting_is_carried_as_far_as_the_model_and_the_protocol_have_it(
    fields: JsonObject, target: Target, sent: JsonObject, lost: list[tuple[str, LossKind]]
) -> None:
    request = request_of(**fields)
    body = build_body(request, target)
    assert {name: body.get(name) for name in sent} == sent
    assert find_losses(request, target) == lost


def test_several_answers_are_refused() -> None:
    assert expect_refusal_at(request_of(protocol="chat", n=2)) == "/n"


def test_a_user_id_too_long_for_openai_is_hashed_and_recorded() -> None:
    request = request_of(user="x" * 129, where={"user": "/metadata/user_id"})
    identifier = build_body(request)["safety_identifier"]
    assert len(identifier) == 64
    assert identifier != build_body(request_of(user="y" * 129))["safety_identifier"]
    assert find_losses(request) == [("/metadata/user_id", APPROXIMATED)]
