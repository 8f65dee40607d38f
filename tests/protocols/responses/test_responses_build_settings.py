"""Settings of a hub request in, those of a Responses body out."""

import pytest

from dragoman.hub.loss import LossKind
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import Format, Reasoning, Shape, Switch
from protocols.responses.responses_bodies import build_body, expect_refusal_at, find_losses, request_of


def test_what_responses_does_not_have_is_dropped_and_recorded() -> None:
    request = request_of(
        protocol="chat",
        top_k=5,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        seed=1,
        stop=("x",),
        where={"stop": "/stop_sequences"},
    )
    assert find_losses(request) == [
        ("/top_k", LossKind.DROPPED),
        ("/frequency_penalty", LossKind.DROPPED),
        ("/presence_penalty", LossKind.DROPPED),
        ("/seed", LossKind.DROPPED),
        ("/stop_sequences", LossKind.DROPPED),
    ]


def test_several_answers_are_refused_and_one_is_fine() -> None:
    assert expect_refusal_at(request_of(protocol="chat", n=2)) == "/n"
    assert find_losses(request_of(protocol="chat", n=1)) == []


def test_a_model_that_takes_no_sampling_gets_none() -> None:
    request = request_of(temperature=0.5, top_p=0.9)
    assert build_body(request)["temperature"] == 0.5
    fixed = Target("o9", "openai", Profile(sampling=False))
    assert "temperature" not in build_body(request, fixed)
    assert find_losses(request, fixed) == [("/temperature", LossKind.DROPPED), ("/top_p", LossKind.DROPPED)]


@pytest.mark.parametrize(("requested", "sent"), [(1, 16), (16, 16), (500, 500)])
def test_the_smallest_cap_is_sixteen(requested: int, sent: int) -> None:
    request = request_of(max_tokens=requested)
    assert build_body(request)["max_output_tokens"] == sent
    assert find_losses(request) == ([("/max_tokens", LossKind.APPROXIMATED)] if requested != sent else [])


def test_no_tokens_at_all_warm_the_cache() -> None:
    body = build_body(request_of(max_tokens=0))
    assert body["prompt_cache_options"] == {"prewarm": True}
    assert "max_output_tokens" not in body


@pytest.mark.parametrize(
    ("budget", "effort"), [(1024, "low"), (1025, "medium"), (8192, "medium"), (24576, "high"), (31999, "xhigh")]
)
def test_a_budget_for_thinking_becomes_an_effort(budget: int, effort: str) -> None:
    reasoning = Reasoning("/thinking", budget=budget, budget_at="/thinking/budget_tokens")
    request = request_of(reasoning=reasoning)
    assert build_body(request)["reasoning"] == {"effort": effort}
    assert find_losses(request) == [("/thinking/budget_tokens", LossKind.APPROXIMATED)]


def test_thinking_switched_off_is_no_effort_where_the_model_allows_it() -> None:
    reasoning = Reasoning("/thinking", switch=Switch.DISABLED, switch_at="/thinking/type")
    assert build_body(request_of(reasoning=reasoning))["reasoning"] == {"effort": "none"}
    stubborn = Target("gpt-6-astra", "openai", Profile(efforts=("low", "medium", "high")))
    assert build_body(request_of(reasoning=reasoning), stubborn)["reasoning"] == {"effort": "low"}
    assert find_losses(request_of(reasoning=reasoning), stubborn) == [("/thinking/type", LossKind.APPROXIMATED)]
    thoughtless = Target("gpt-4o", "openai", Profile(efforts=()))
    assert "reasoning" not in build_body(request_of(reasoning=reasoning), thoughtless)
    assert find_losses(request_of(reasoning=reasoning), thoughtless) == []


@pytest.mark.parametrize(
    ("effort", "efforts", "sent"),
    [
        ("max", ("low", "high"), "high"),
        ("minimal", ("low", "high"), "low"),
        ("minimal", ("none", "low", "high"), "low"),
        ("medium", ("low", "high"), "low"),
        ("high", ("low", "high"), "high"),
    ],
)
def test_an_effort_that_the_model_lacks_becomes_its_neighbour(effort: str, efforts: tuple[str, ...], sent: str) -> None:
    request = request_of(protocol="chat", reasoning=Reasoning("/reasoning_effort", effort))
    target = Target("m", "openai", Profile(efforts=efforts))
    assert build_body(request, target)["reasoning"] == {"effort": sent}
    assert find_losses(request, target) == ([("/reasoning_effort", LossKind.APPROXIMATED)] if effort != sent else [])


def test_a_model_without_efforts_gets_none() -> None:
    request = request_of(protocol="chat", reasoning=Reasoning("/reasoning_effort", "high"))
    assert find_losses(request, Target("gpt-4o", "openai", Profile(efforts=()))) == [
        ("/reasoning_effort", LossKind.DROPPED)
    ]


def test_a_request_to_show_reasoning_becomes_a_summary() -> None:
    reasoning = Reasoning("/output_config/effort", "high", show="summarized", show_at="/thinking/display")
    request = request_of(reasoning=reasoning)
    assert build_body(request)["reasoning"] == {"effort": "high", "summary": "auto"}
    assert ("/thinking/display", LossKind.APPROXIMATED) in find_losses(request)


def test_a_schema_is_flat_and_gets_a_name_where_it_has_none() -> None:
    schema = {"type": "object"}
    named = Format(Shape.SCHEMA, "/response_format", "answer", schema=schema, strict=True)
    assert build_body(request_of(format=named))["text"] == {
        "format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    }
    nameless = request_of(format=Format(Shape.SCHEMA, "/output_config/format", schema=schema))
    assert build_body(nameless)["text"]["format"]["name"] == "response"
    assert find_losses(nameless) == [("/output_config/format", LossKind.INVENTED)]
    assert build_body(request_of(format=Format(Shape.JSON, "/f")))["text"] == {"format": {"type": "json_object"}}


def test_logprobs_are_requested_by_inclusion() -> None:
    body = build_body(request_of(protocol="chat", logprobs=True, top_logprobs=3))
    assert body["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert body["top_logprobs"] == 3


def test_identity_and_tier_are_carried() -> None:
    request = request_of(
        protocol="chat",
        user="u",
        safety_identifier="s",
        cache_key="k",
        metadata={"a": "b"},
        service_tier="flex",
        verbosity="low",
        stream=True,
    )
    body = build_body(request)
    assert (body["user"], body["safety_identifier"], body["prompt_cache_key"]) == ("u", "s", "k")
    assert (body["metadata"], body["service_tier"], body["text"]) == ({"a": "b"}, "flex", {"verbosity": "low"})
    assert body["stream"] is True
    assert find_losses(request) == []


def test_a_user_id_too_long_for_openai_is_hashed_and_recorded() -> None:
    request = request_of(user="x" * 129, where={"user": "/metadata/user_id"})
    identifier = build_body(request)["safety_identifier"]
    assert len(identifier) == 64
    assert identifier != build_body(request_of(user="y" * 129))["safety_identifier"]
    assert find_losses(request) == [("/metadata/user_id", LossKind.APPROXIMATED)]


def test_the_user_of_a_messages_client_becomes_the_safety_identifier() -> None:
    request = request_of(user="u-1", where={"user": "/metadata/user_id"})
    assert build_body(request)["safety_identifier"] == "u-1"
    assert find_losses(request) == [("/metadata/user_id", LossKind.APPROXIMATED)]


def test_fields_of_another_protocol_are_recorded() -> None:
    assert find_losses(request_of(ext={"container": "c"})) == [("/container", LossKind.DROPPED)]
