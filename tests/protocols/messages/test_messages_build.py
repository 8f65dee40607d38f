"""Settings, tools and reasoning of other protocols' clients, written for one Claude model."""

import pytest
from messages_dialogue import build, chat, losses, parse

from dragoman.hub.failure import Refused
from dragoman.hub.loss import How, Ledger
from dragoman.hub.profile import Profile
from dragoman.hub.request import (
    Cache,
    Format,
    Function,
    Hosted,
    Pick,
    Reasoning,
    Request,
    Shape,
    Switch,
    ToolChoice,
)
from dragoman.providers.profiles import profile_of

OLD = profile_of("claude-sonnet-4-5")
OPUS_4_6 = profile_of("claude-opus-4-6")
OPUS_5 = profile_of("claude-opus-5")
OPUS_5_5 = profile_of("claude-opus-5-5")
SONNET_5_5 = profile_of("claude-sonnet-5-5")


def built(
    request: Request, profile: Profile | None = None, budgets: dict[str, int] | None = None
) -> tuple[dict[str, object], dict[str, How]]:
    """The body, and the losses without the invented cap."""
    ledger = Ledger()
    body = build(request, profile, ledger, budgets)
    told = losses(ledger)
    if request.max_tokens is None:
        assert told.pop("/max_tokens") is How.INVENTED
    return body, told


def refusal_at(request: Request, profile: Profile | None = None) -> str | None:
    with pytest.raises(Refused) as refused:
        build(request, profile)
    return refused.value.failure.at


def test_a_plain_request_is_plain() -> None:
    body, told = built(chat(max_tokens=9, stream=True))
    assert body == {
        "model": "claude-up",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }
    assert told == {}


@pytest.mark.parametrize(("profile", "cap"), [(Profile(), 32_000), (OLD, 64_000), (OPUS_5_5, 128_000)])
def test_a_missing_cap_is_the_models_own(profile: Profile, cap: int) -> None:
    assert built(chat(), profile)[0]["max_tokens"] == cap


def test_a_cap_beyond_the_model_is_lowered() -> None:
    body, told = built(chat(max_tokens=200_000), OLD)
    assert (body["max_tokens"], told) == (64_000, {"/max_tokens": How.APPROXIMATED})


@pytest.mark.parametrize(
    ("fields", "sent", "told"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}, {}),
        ({"temperature": 1.7}, {"temperature": 1}, {"/temperature": How.APPROXIMATED}),
        ({"top_p": 0.9, "top_k": 5}, {"top_p": 0.9, "top_k": 5}, {}),
    ],
)
def test_sampling_is_clamped(fields: dict[str, object], sent: dict[str, object], told: dict[str, How]) -> None:
    body, losses_told = built(chat(**fields))
    assert {key: body.get(key) for key in sent} == sent
    assert losses_told == told


def test_sampling_is_dropped_for_models_that_refuse_it() -> None:
    body, told = built(chat(temperature=0.5, top_p=1.0), OPUS_5)
    assert "temperature" not in body
    assert "top_p" not in body
    assert told == {"/temperature": How.DROPPED}


def test_a_model_that_thinks_with_a_budget_chooses_its_temperature() -> None:
    request = chat(temperature=0.5, reasoning=Reasoning("/reasoning_effort", "low"))
    body, told = built(request, OLD)
    assert "temperature" not in body
    assert told["/temperature"] is How.DROPPED


def test_temperature_and_top_p_exclude_each_other_where_the_model_says_so() -> None:
    body, told = built(chat(temperature=0.5, top_p=0.9), OLD)
    assert (body["temperature"], "top_p" in body, told) == (0.5, False, {"/top_p": How.DROPPED})


def test_settings_that_messages_lacks_are_dropped_with_a_loss() -> None:
    request = chat(
        frequency_penalty=0.5,
        presence_penalty=0.5,
        seed=7,
        logprobs=True,
        top_logprobs=3,
        verbosity="low",
        cache_key="k",
        metadata={"a": "b"},
        where={"cache_key": "/prompt_cache_key"},
    )
    _, told = built(request)
    assert told == dict.fromkeys(
        [
            "/frequency_penalty",
            "/presence_penalty",
            "/seed",
            "/logprobs",
            "/top_logprobs",
            "/verbosity",
            "/prompt_cache_key",
            "/metadata",
        ],
        How.DROPPED,
    )


def test_defaults_are_no_loss() -> None:
    request = chat(frequency_penalty=0, presence_penalty=0.0, logprobs=False, n=1, verbosity="medium", metadata={})
    assert built(request)[1] == {}


def test_several_answers_are_refused() -> None:
    assert refusal_at(chat(n=2)) == "/n"


def test_stops_of_white_space_are_dropped() -> None:
    body, told = built(chat(stop=("END", "\n")))
    assert (body["stop_sequences"], told) == (["END"], {"/stop": How.DROPPED})


def test_the_end_user_is_named_in_the_metadata() -> None:
    body, told = built(chat(user="u", safety_identifier="s"))
    assert body["metadata"] == {"user_id": "u"}
    assert told == {"/user": How.APPROXIMATED, "/safety_identifier": How.DROPPED}


@pytest.mark.parametrize(
    ("tier", "sent", "told"),
    [
        ("auto", None, {}),
        ("default", "standard_only", {"/service_tier": How.APPROXIMATED}),
        ("flex", None, {"/service_tier": How.DROPPED}),
        ("priority", None, {"/service_tier": How.DROPPED}),
    ],
)
def test_service_tiers_follow_the_table(tier: str, sent: str | None, told: dict[str, How]) -> None:
    body, losses_told = built(chat(service_tier=tier))
    assert (body.get("service_tier"), losses_told) == (sent, told)


def test_json_mode_is_asked_for_in_words() -> None:
    body, told = built(chat(format=Format(Shape.JSON, "/response_format")))
    assert "JSON" in str(body["system"])
    assert told == {"/response_format": How.APPROXIMATED}


def test_an_output_schema_is_cleaned_but_its_names_are_data() -> None:
    schema = {
        "type": "object",
        "properties": {
            "minimum": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."},
            "when": {"type": "string", "format": "date-time", "pattern": "^2"},
            "odd": {"type": "string", "format": "color"},
            "either": {"oneOf": [{"type": "string", "minLength": 2}, {"$ref": "#/$defs/pattern", "title": "P"}]},
            "list": {"type": "array", "items": {"type": "object", "properties": {}}, "minItems": 1, "maxItems": 4},
        },
        "$defs": {"pattern": {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": True}},
    }
    request = chat(format=Format(Shape.SCHEMA, "/response_format", "n", "d", schema, True))
    body, told = built(request)
    assert body["output_config"] == {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "minimum": {"type": "integer", "description": "How many.\n(minimum: 1; maximum: 9)"},
                    "when": {"type": "string", "format": "date-time", "description": '(pattern: "^2")'},
                    "odd": {"type": "string", "description": '(format: "color")'},
                    "either": {
                        "anyOf": [{"type": "string", "description": "(minLength: 2)"}, {"$ref": "#/$defs/pattern"}]
                    },
                    "list": {
                        "type": "array",
                        "items": {"type": "object", "properties": {}, "additionalProperties": False},
                        "minItems": 1,
                        "description": "(maxItems: 4)",
                    },
                },
                "$defs": {
                    "pattern": {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}
                },
                "additionalProperties": False,
            },
        }
    }
    assert told == {"/response_format": How.APPROXIMATED}


def test_a_reference_at_the_root_keeps_what_it_refers_to() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {}}}}
    body, _ = built(chat(format=Format(Shape.SCHEMA, "/f", schema=schema)))
    assert body["output_config"]["format"]["schema"] == {  # type: ignore[index]
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "object", "properties": {}, "additionalProperties": False}},
    }


# Tools

F = Function("f", "/tools/0", "Does f.", {"type": "object", "properties": {"a": {"type": "string"}}})
G = Function("g", "/tools/1", None, None)
SEARCH = Hosted("web_search", {"type": "web_search"}, "/tools/2")


def test_functions_are_custom_tools_with_an_object_at_the_root() -> None:
    body, told = built(chat(tools=(F, G, Function("h", "/tools/2", parameters={"properties": {}}, strict=True))))
    assert body["tools"] == [
        {"name": "f", "description": "Does f.", "input_schema": F.parameters},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
        {"name": "h", "input_schema": {"type": "object", "properties": {}}, "strict": True},
    ]
    assert "tool_choice" not in body
    assert told == {}


def test_alternatives_at_the_root_of_a_tools_schema_are_told_in_words() -> None:
    tool = Function("f", "/tools/0", parameters={"anyOf": [{"type": "object"}]})
    body, told = built(chat(tools=(tool,)))
    assert body["tools"][0]["input_schema"] == {"type": "object", "description": '(anyOf: [{"type":"object"}])'}  # type: ignore[index]
    assert told == {"/tools/0/parameters": How.APPROXIMATED}


def test_a_breakpoint_on_a_tool_is_kept() -> None:
    tool = Function("f", "/tools/0", parameters={"type": "object"}, cache=Cache("/tools/0/cache", "5m"))
    assert built(chat(tools=(tool,)))[0]["tools"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}  # type: ignore[index]


def named(name: str) -> ToolChoice:
    return ToolChoice(Pick.NAMED, "/tool_choice", name)


REQUIRED = ToolChoice(Pick.REQUIRED, "/tool_choice")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(Pick.AUTO, "/tool_choice"), {"type": "auto"}),
        (ToolChoice(Pick.NONE, "/tool_choice"), {"type": "none"}),
        (REQUIRED, {"type": "any"}),
        (named("g"), {"type": "tool", "name": "g"}),
    ],
)
def test_every_choice_has_its_word(choice: ToolChoice, sent: dict[str, object]) -> None:
    body, told = built(chat(tools=(F, G), tool_choice=choice))
    assert (body["tool_choice"], told) == (sent, {})


def test_one_call_at_a_time_needs_a_choice() -> None:
    assert built(chat(tools=(F,), parallel=False))[0]["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }
    assert built(chat(tools=(F,), parallel=False, tool_choice=REQUIRED))[0]["tool_choice"] == {
        "type": "any",
        "disable_parallel_tool_use": True,
    }
    assert "tool_choice" not in built(chat(parallel=False))[0]


def test_a_model_that_cannot_be_forced_is_offered_only_the_named_tool() -> None:
    body, told = built(chat(tools=(F, G), tool_choice=named("g")), OPUS_5_5)
    assert [tool["name"] for tool in body["tools"]] == ["g"]  # type: ignore[attr-defined]
    assert (body["tool_choice"], told) == ({"type": "auto"}, {"/tool_choice": How.APPROXIMATED})


def test_a_thinking_model_of_the_older_kind_cannot_be_forced() -> None:
    request = chat(tools=(F,), tool_choice=REQUIRED, reasoning=Reasoning("/reasoning_effort", "low"))
    assert built(request, OLD)[0]["tool_choice"] == {"type": "auto"}
    assert built(request, OPUS_4_6)[0]["tool_choice"] == {"type": "any"}


def test_only_allowed_tools_are_offered() -> None:
    choice = ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("g",))
    body, told = built(chat(tools=(F, G), tool_choice=choice))
    assert [tool["name"] for tool in body["tools"]] == ["g"]  # type: ignore[attr-defined]
    assert (body["tool_choice"], told) == ({"type": "any"}, {"/tool_choice": How.APPROXIMATED})


def test_a_forced_call_of_nothing_is_refused() -> None:
    assert refusal_at(chat(tool_choice=REQUIRED)) == "/tool_choice"
    assert refusal_at(chat(tools=(F,), tool_choice=named("ghost"))) == "/tool_choice"


def test_a_search_is_anthropics_own() -> None:
    location = {"type": "approximate", "country": "CH"}
    search = Hosted("web_search", {}, "/tools/0", ("example.com",), max_uses=2, location=location)
    body, told = built(chat(tools=(search,), tool_choice=ToolChoice(Pick.NAMED, "/tc", hosted="web_search")))
    assert body["tools"] == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "allowed_domains": ["example.com"],
            "max_uses": 2,
            "user_location": location,
        }
    ]
    assert body["tool_choice"] == {"type": "tool", "name": "web_search"}
    assert told == {"/tools/0": How.APPROXIMATED}


def test_a_limit_of_tool_calls_is_a_limit_of_searches() -> None:
    body, told = built(chat(tools=(SEARCH,), max_tool_calls=4))
    assert body["tools"][0]["max_uses"] == 4  # type: ignore[index]
    assert told["/max_tool_calls"] is How.APPROXIMATED
    assert built(chat(tools=(F,), max_tool_calls=4))[1] == {"/max_tool_calls": How.DROPPED}


def test_a_hosted_tool_without_an_equal_is_dropped_beside_others_and_refused_alone_or_forced() -> None:
    image = Hosted("image_generation", {}, "/tools/1")
    body, told = built(chat(tools=(F, image)))
    assert [tool["name"] for tool in body["tools"]] == ["f"]  # type: ignore[attr-defined]
    assert told == {"/tools/1": How.DROPPED}
    assert refusal_at(chat(tools=(image,))) == "/tools/1"
    forced = ToolChoice(Pick.NAMED, "/tool_choice", hosted="image_generation")
    assert refusal_at(chat(tools=(F, image), tool_choice=forced)) == "/tools/1"


def test_code_is_run_by_anthropic_unless_a_container_is_named() -> None:
    code = Hosted("code_execution", {"container": {"type": "auto"}}, "/tools/0")
    assert built(chat(tools=(code,)))[0]["tools"] == [{"type": "code_execution_20250825", "name": "code_execution"}]
    kept = Hosted("code_execution", {"container": "cntr_1"}, "/tools/0")
    assert refusal_at(chat(tools=(kept,))) == "/tools/0/container"


def test_an_mcp_server_is_listed_with_its_tools() -> None:
    raw = {"require_approval": "never", "allowed_tools": ["a"], "headers": {"x": "y"}}
    server = Hosted("mcp", raw, "/tools/0", server_url="https://mcp.example.com", server_name="s", authorization="fake")
    body, told = built(chat(tools=(server,)))
    assert body["mcp_servers"] == [
        {"type": "url", "url": "https://mcp.example.com", "name": "s", "authorization_token": "fake"}
    ]
    assert body["tools"] == [
        {
            "type": "mcp_toolset",
            "mcp_server_name": "s",
            "default_config": {"enabled": False},
            "configs": {"a": {"enabled": True}},
        }
    ]
    assert told == {"/tools/0": How.APPROXIMATED, "/tools/0/headers": How.DROPPED}


@pytest.mark.parametrize("raw", [{}, {"require_approval": "always"}])
def test_an_mcp_server_that_asks_for_approval_is_refused(raw: dict[str, object]) -> None:
    server = Hosted("mcp", raw, "/tools/0", server_url="https://mcp.example.com", server_name="s")
    assert refusal_at(chat(tools=(server,))) == "/tools/0/require_approval"


def test_deferred_tools_wait_for_a_search_where_there_is_one() -> None:
    deferred = Function("f", "/tools/0", parameters={"type": "object"}, deferred=True)
    body, told = built(chat(tools=(deferred,)))
    assert "defer_loading" not in body["tools"][0]  # type: ignore[index]
    assert told == {"/tools/0/defer_loading": How.APPROXIMATED}
    found, _ = built(chat(tools=(deferred, Hosted("tool_search", {}, "/tools/1"))))
    assert found["tools"][0]["defer_loading"] is True  # type: ignore[index]
    assert found["tools"][1] == {  # type: ignore[index]
        "type": "tool_search_tool_regex_20251119",
        "name": "tool_search_tool_regex",
    }


# Reasoning


def effort(word: str) -> Reasoning:
    return Reasoning("/reasoning_effort", word)


@pytest.mark.parametrize(
    ("profile", "word", "thinking", "sent"),
    [
        (OPUS_4_6, "high", None, "high"),
        (OPUS_4_6, "minimal", None, "low"),
        (OPUS_4_6, "xhigh", None, "max"),
        (OPUS_5, "xhigh", None, "xhigh"),
        (OPUS_5, "none", {"type": "disabled"}, None),
        (SONNET_5_5, "none", {"type": "between_tools"}, None),
        (OPUS_5_5, "none", None, "low"),
        (profile_of("claude-opus-4-5"), "max", None, "high"),
        (OLD, "none", {"type": "disabled"}, None),
        (OLD, "minimal", {"type": "enabled", "budget_tokens": 1024}, None),
        (OLD, "medium", {"type": "enabled", "budget_tokens": 8192}, None),
        (OLD, "max", {"type": "enabled", "budget_tokens": 32768}, None),
        (profile_of("claude-3-5-sonnet"), "none", None, None),
    ],
)
def test_an_effort_is_told_in_the_models_own_terms(
    profile: Profile, word: str, thinking: object, sent: str | None
) -> None:
    body, told = built(chat(reasoning=effort(word)), profile)
    assert body.get("thinking") == thinking
    assert body.get("output_config") == (None if sent is None else {"effort": sent})
    assert told == {"/reasoning_effort": How.APPROXIMATED}


def test_an_effort_for_a_model_that_cannot_think_is_dropped() -> None:
    body, told = built(chat(reasoning=effort("high")), profile_of("claude-3-5-sonnet"))
    assert "thinking" not in body
    assert "/reasoning_effort" in told


def test_configured_budgets_win_over_the_table() -> None:
    body, _ = built(chat(reasoning=effort("low")), OLD, {"low": 4000})
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4000}


def test_a_budget_stays_below_the_cap() -> None:
    body, told = built(chat(reasoning=effort("high"), max_tokens=2000), OLD)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1999}
    assert told == {"/reasoning_effort": How.APPROXIMATED}


def test_thinking_without_room_is_dropped() -> None:
    ledger = Ledger()
    body = build(chat(reasoning=effort("high"), max_tokens=1024), OLD, ledger)
    assert "thinking" not in body
    assert [loss.how for loss in ledger] == [How.APPROXIMATED, How.DROPPED]


def test_a_wish_to_see_thoughts_asks_for_a_summary() -> None:
    wish = Reasoning("/reasoning/effort", "high", show="auto", show_at="/reasoning/summary")
    body, told = built(chat(reasoning=wish), OPUS_5)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "high"}
    assert told == {"/reasoning/effort": How.APPROXIMATED, "/reasoning/summary": How.APPROXIMATED}


def thought(profile: Profile, **fields: object) -> tuple[object, object, dict[str, How]]:
    """What a client of Messages itself gets for its thinking on another model."""
    body = {"model": "m", "max_tokens": 20_000, "messages": [{"role": "user", "content": "hi"}], **fields}
    out, told = built(parse(body), profile)
    return out.get("thinking"), out.get("output_config"), told


def test_adaptive_thinking_becomes_a_budget_on_older_models() -> None:
    assert thought(OLD, thinking={"type": "adaptive"}, output_config={"effort": "low"}) == (
        {"type": "enabled", "budget_tokens": 2048},
        None,
        {"/thinking": How.APPROXIMATED},
    )


def test_a_budget_becomes_an_effort_on_newer_models() -> None:
    assert thought(OPUS_5, thinking={"type": "enabled", "budget_tokens": 8192}) == (
        {"type": "adaptive"},
        {"effort": "medium"},
        {"/thinking/budget_tokens": How.APPROXIMATED},
    )


def test_an_effort_is_capped_while_thinking_is_off() -> None:
    assert thought(OPUS_5, thinking={"type": "disabled"}, output_config={"effort": "max"}) == (
        {"type": "disabled"},
        {"effort": "high"},
        {"/output_config/effort": How.APPROXIMATED},
    )


def test_thinking_that_cannot_be_switched_off_is_told_so() -> None:
    assert thought(OPUS_5_5, thinking={"type": "disabled"}) == (
        None,
        {"effort": "low"},
        {"/thinking": How.APPROXIMATED},
    )


def test_thinking_on_a_model_of_its_own_kind_is_exact() -> None:
    given = {"type": "enabled", "budget_tokens": 5000, "display": "omitted"}
    assert thought(OPUS_4_6, thinking=given, output_config={"effort": "max"}) == (given, {"effort": "max"}, {})


def test_a_switch_counts_over_an_effort() -> None:
    wish = Reasoning("/e", "high", switch=Switch.DISABLED, switch_at="/t")
    assert built(chat(reasoning=wish), OPUS_4_6)[0]["thinking"] == {"type": "disabled"}
