"""Settings, wishes about reasoning and tools of other protocols' clients, written for one Claude model."""

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import (
    Cache,
    Format,
    Function,
    Hosted,
    Pick,
    Reasoning,
    Role,
    Shape,
    Switch,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.profiles.model_table import find_profile
from tables import each_row
from translate.protocols.messages.messages_dialogue import (
    APPROXIMATED,
    DROPPED,
    UPSTREAM,
    build,
    build_body,
    chat,
    losses,
    parse,
    refusal_at,
)
from wire_json import JsonObject

PLAIN = Profile()
OLD, OPUS_4_6, OPUS_5 = (find_profile(f"claude-{name}") for name in ("sonnet-4-5", "opus-4-6", "opus-5"))
OPUS_5_5, SONNET_5_5 = find_profile("claude-opus-5-5"), find_profile("claude-sonnet-5-5")
OBJECT = {"type": "object", "properties": {}}
F = Function("f", "/tools/0", "Does f.", {"type": "object", "properties": {"a": {"type": "string"}}})
G = Function("g", "/tools/1", None, None)
SEARCH = Hosted("web_search", {"type": "web_search"}, "/tools/2")
AUTO, REQUIRED = ToolChoice(Pick.AUTO, "/tool_choice"), ToolChoice(Pick.REQUIRED, "/tool_choice")
Losses = dict[str, LossKind]


def effort(word: str) -> Reasoning:
    return Reasoning("/reasoning_effort", word)


def make_named_choice(name: str) -> ToolChoice:
    return ToolChoice(Pick.NAMED, "/tool_choice", name)


def make_server(raw: JsonObject) -> Hosted:
    return Hosted("mcp", raw, "/tools/0", server_url="https://mcp.example.com", server_name="s")


def assert_built(profile: Profile, fields: JsonObject, sent: JsonObject, lost: Losses) -> None:
    """Compare these fields of the body (None: the field is absent) and all losses."""
    body, recorded = build_body(chat(**fields), profile)
    assert {key: body.get(key) for key in sent} == sent
    assert recorded == lost


def test_a_plain_request_is_plain() -> None:
    body, recorded = build_body(chat(max_tokens=9, stream=True))
    assert body == {
        "model": "claude-up",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
    }
    assert recorded == {}


LACKING = {
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "seed": 7, "logprobs": True, "top_logprobs": 3,
    "verbosity": "low", "metadata": {"a": "b"},
}  # fmt: skip
DEFAULTS = {"frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": False, "n": 1, "verbosity": "medium"}


@each_row(
    ("profile", "fields", "sent", "lost"),
    [
        (PLAIN, {}, {"max_tokens": 32_000}, {}),
        (OLD, {}, {"max_tokens": 64_000}, {}),
        (OPUS_5_5, {}, {"max_tokens": 128_000}, {}),
        (OLD, {"max_tokens": 200_000}, {"max_tokens": 64_000}, {"/max_tokens": APPROXIMATED}),
        (PLAIN, {"temperature": 0.5}, {"temperature": 0.5}, {}),
        (PLAIN, {"temperature": 1.7}, {"temperature": 1}, {"/temperature": APPROXIMATED}),
        (PLAIN, {"top_p": 0.9, "top_k": 5}, {"top_p": 0.9, "top_k": 5}, {}),
        (OPUS_5, {"temperature": 0.5, "top_p": 1.0}, {"temperature": None, "top_p": None}, {"/temperature": DROPPED}),
        (OLD, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}, {}),
        (  # while it thinks with a budget
            OLD,
            {"temperature": 0.5, "reasoning": effort("low")},
            {"temperature": None},
            {"/temperature": DROPPED, "/reasoning_effort": APPROXIMATED},
        ),
        (PLAIN, {"stop": ("END", "\n")}, {"stop_sequences": ["END"]}, {"/stop": DROPPED}),
        (
            PLAIN,
            {"user": "u", "safety_identifier": "s"},
            {"metadata": {"user_id": "u"}},
            {"/user": APPROXIMATED, "/safety_identifier": DROPPED},
        ),
        (PLAIN, {"service_tier": "auto"}, {"service_tier": None}, {}),
        (PLAIN, {"service_tier": "default"}, {"service_tier": "standard_only"}, {"/service_tier": APPROXIMATED}),
        (PLAIN, {"service_tier": "flex"}, {"service_tier": None}, {"/service_tier": DROPPED}),
        (PLAIN, {"service_tier": "priority"}, {"service_tier": None}, {"/service_tier": DROPPED}),
        (PLAIN, {**DEFAULTS, "metadata": {}}, {}, {}),
        (PLAIN, {"tools": (F,), "max_tool_calls": 4}, {}, {"/max_tool_calls": DROPPED}),
    ],
)
def test_each_setting_is_sent_as_the_model_takes_it(
    profile: Profile, fields: JsonObject, sent: JsonObject, lost: Losses
) -> None:
    assert_built(profile, fields, sent, lost)


def test_settings_that_messages_lacks_are_dropped_with_a_loss() -> None:
    lost = dict.fromkeys((f"/{key}" for key in LACKING), DROPPED)
    assert_built(PLAIN, LACKING, dict.fromkeys(LACKING), lost)


def test_a_cache_key_is_no_loss_where_it_only_names_the_session() -> None:
    assert_built(PLAIN, {"cache_key": "k"}, {"prompt_cache_key": None}, {})


def test_json_mode_is_requested_in_the_prompt() -> None:
    body, recorded = build_body(chat(format=Format(Shape.JSON, "/response_format")))
    assert "JSON" in str(body["system"])
    assert recorded == {"/response_format": APPROXIMATED}


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
    body, recorded = build_body(request)
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
    assert recorded == {"/response_format": APPROXIMATED}


@each_row(
    ("schema", "sent"),
    [
        (
            {"$ref": "#/$defs/A", "$defs": {"A": OBJECT}},
            {"$ref": "#/$defs/A", "$defs": {"A": {**OBJECT, "additionalProperties": False}}},
        ),
        (
            {"type": "string", "format": ["date", "time"]},
            {"type": "string", "description": '(format: ["date","time"])'},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {
                "type": "object",
                "additionalProperties": False,
                "description": '(additionalProperties: {"type":"string"})',
            },
        ),
    ],
)
def test_what_an_output_schema_may_not_hold_is_described_in_words(schema: JsonObject, sent: JsonObject) -> None:
    body, _ = build_body(chat(format=Format(Shape.SCHEMA, "/f", schema=schema)))
    assert body["output_config"]["format"]["schema"] == sent


def test_what_has_no_envelope_is_returned_to_any_upstream_of_its_own_protocol() -> None:
    location = {"type": "char_location", "cited_text": "c", "document_index": 0, "document_title": None}
    text = [
        {"type": "thinking", "thinking": "Hm.", "signature": "bmF0aXZl"},
        {"type": "redacted_thinking", "data": "bmF0aXZl"},
        {"type": "text", "text": "Yes.", "citations": [location]},
    ]
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": "Go."}]
    request = parse({"model": "m", "max_tokens": 9, "messages": turns})
    body = UPSTREAM.build(request, Target("claude-up", "elsewhere"), ledger := Ledger())
    assert msgspec.json.decode(body)["messages"] == turns
    assert not losses(ledger)


def test_a_conversation_of_a_gemini_client_that_opens_with_the_model_is_refused() -> None:
    turns = [Turn(role, (Text("x", "/contents/0"),), "/contents/0") for role in (Role.ASSISTANT, Role.USER)]
    assert refusal_at(chat(turns, protocol="gemini")) == "/contents/0"


@each_row(
    ("profile", "word", "thinking", "sent"),
    [
        (OPUS_4_6, "high", None, "high"),
        (OPUS_4_6, "minimal", None, "low"),
        (OPUS_4_6, "xhigh", None, "max"),
        (OPUS_5, "xhigh", None, "xhigh"),
        (OPUS_5, "none", {"type": "disabled"}, None),
        (SONNET_5_5, "none", {"type": "between_tools"}, None),
        (OPUS_5_5, "none", None, "low"),
        (find_profile("claude-opus-4-5"), "max", None, "high"),
        (OLD, "none", {"type": "disabled"}, None),
        (OLD, "minimal", {"type": "enabled", "budget_tokens": 1024}, None),
        (OLD, "medium", {"type": "enabled", "budget_tokens": 8192}, None),
        (OLD, "max", {"type": "enabled", "budget_tokens": 32768}, None),
        (find_profile("claude-3-5-sonnet"), "none", None, None),
    ],
)
def test_an_effort_is_sent_in_the_models_own_terms(
    profile: Profile, word: str, thinking: object, sent: str | None
) -> None:
    body, losses = build_body(chat(reasoning=effort(word)), profile)
    assert body.get("thinking") == thinking
    assert body.get("output_config") == (None if sent is None else {"effort": sent})
    assert losses == {"/reasoning_effort": APPROXIMATED}


def make_budget(tokens: int) -> JsonObject:
    return {"type": "enabled", "budget_tokens": tokens}


def test_an_effort_for_a_model_that_cannot_think_is_dropped() -> None:
    body, lost = build_body(chat(reasoning=effort("high")), find_profile("claude-3-5-sonnet"))
    assert "thinking" not in body
    assert "/reasoning_effort" in lost


def test_a_budget_is_what_the_configuration_sets_for_an_effort_or_the_usual_one() -> None:
    assert build_body(chat(reasoning=effort("low")), OLD, {"low": 4000})[0]["thinking"] == make_budget(4000)
    assert build_body(chat(reasoning=effort("ultra")), OLD)[0]["thinking"] == make_budget(16_384)


@pytest.mark.parametrize(("cap", "budget"), [(1100, 1024), (2000, 1500), (9000, 7976), (20_000, 16_384)])
def test_a_budget_stays_below_the_cap_and_leaves_room_for_an_answer(cap: int, budget: int) -> None:
    body, losses = build_body(chat(reasoning=effort("high"), max_tokens=cap), OLD)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert losses == {"/reasoning_effort": APPROXIMATED}


def test_thinking_without_room_is_dropped() -> None:
    ledger = Ledger()
    body = build(chat(reasoning=effort("high"), max_tokens=1024), OLD, ledger)
    assert "thinking" not in body
    assert [loss.how for loss in ledger] == [DROPPED]


SUMMARISED = Reasoning("/reasoning/effort", "high", show="auto", show_at="/reasoning/summary")


def test_a_request_to_show_reasoning_asks_for_a_summary() -> None:
    sent = {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}}
    lost = {"/reasoning/effort": APPROXIMATED, "/reasoning/summary": APPROXIMATED}
    assert_built(OPUS_5, {"reasoning": SUMMARISED}, sent, lost)


HIDDEN = {**make_budget(5000), "display": "omitted"}
OFF = {"type": "disabled"}


@each_row(
    ("profile", "thinking", "effort", "sent", "sent_effort", "lost"),
    [
        (OLD, {"type": "adaptive"}, "low", make_budget(2048), None, {"/thinking": APPROXIMATED}),
        (OPUS_5, make_budget(8192), None, {"type": "adaptive"}, "medium", {"/thinking/budget_tokens": APPROXIMATED}),
        (OPUS_5, OFF, "max", OFF, "high", {"/output_config/effort": APPROXIMATED}),
        (OPUS_5_5, OFF, None, None, "low", {"/thinking": APPROXIMATED}),  # which cannot be switched off
        (OPUS_4_6, HIDDEN, "max", HIDDEN, "max", {}),
    ],
)
def test_thinking_of_a_client_of_messages_is_sent_in_the_terms_of_another_model(
    profile: Profile, thinking: object, effort: str | None, sent: object, sent_effort: str | None, lost: Losses
) -> None:
    body = {"model": "m", "max_tokens": 20_000, "messages": [{"role": "user", "content": "hi"}], "thinking": thinking}
    out, recorded = build_body(parse({**body, "output_config": {"effort": effort}} if effort else body), profile)
    assert (out.get("thinking"), recorded) == (sent, lost)
    assert out.get("output_config") == ({"effort": sent_effort} if sent_effort else None)


def test_a_switch_counts_over_an_effort() -> None:
    requested = Reasoning("/e", "high", switch=Switch.DISABLED, switch_at="/t")
    assert build_body(chat(reasoning=requested), OPUS_4_6)[0]["thinking"] == {"type": "disabled"}


def loop(*thoughts: Thinking) -> list[Turn]:
    """A conversation in which a tool has just answered."""
    return [
        Turn(Role.USER, (Text("hi"),)),
        Turn(Role.ASSISTANT, (*thoughts, ToolCall("c", "f", "{}"))),
        Turn(Role.USER, (ToolResult("c", (Text("done"),)),)),
    ]


@pytest.mark.parametrize("thoughts", [(), (Thinking("mine", opaque=Opaque("openai", OpaqueForm.ENCRYPTED, "x", "m")),)])
def test_a_budget_is_not_requested_where_the_reasoning_before_the_last_calls_is_gone(
    thoughts: tuple[Thinking, ...],
) -> None:
    body, losses = build_body(chat(loop(*thoughts), reasoning=effort("high"), temperature=0.5), OLD)
    assert "thinking" not in body
    assert body["temperature"] == 0.5
    assert losses["/reasoning_effort"] is DROPPED


def test_reasoning_of_an_earlier_turn_does_not_stand_for_that_of_the_last_calls() -> None:
    body, _ = build_body(chat([*loop(RETURNED), *OVER, *NEXT_CALL], reasoning=effort("high")), OLD)
    assert "thinking" not in body


OVER = Turn(Role.ASSISTANT, (Text("so"),)), Turn(Role.USER, (Text("and?"),))
RETURNED = Thinking("", opaque=Opaque("anthropic", OpaqueForm.REDACTED, "x", "m"))
NEXT_CALL = Turn(Role.ASSISTANT, (ToolCall("d", "f", "{}"),)), Turn(Role.USER, (ToolResult("d", (Text("done"),)),))


@each_row(
    ("turns", "profile", "reasoning", "thinking"),
    [
        (loop(RETURNED), OLD, effort("low"), make_budget(2048)),
        ([*loop(), *OVER], OLD, effort("low"), make_budget(2048)),
        ([*loop(RETURNED), *NEXT_CALL, *NEXT_CALL], OLD, effort("low"), make_budget(2048)),  # it thinks once a turn
        (loop(), OPUS_4_6, SUMMARISED, {"type": "adaptive", "display": "summarized"}),  # it needs no reasoning back
    ],
)
def test_thinking_is_requested_where_the_reasoning_came_back_or_is_not_needed(
    turns: list[Turn], profile: Profile, reasoning: Reasoning, thinking: object
) -> None:
    assert build_body(chat(turns, reasoning=reasoning), profile)[0]["thinking"] == thinking


def test_functions_are_custom_tools_with_an_object_at_the_root() -> None:
    body, losses = build_body(chat(tools=(F, G, Function("h", "/tools/2", parameters={"properties": {}}, strict=True))))
    assert body["tools"] == [
        {"name": "f", "description": "Does f.", "input_schema": F.parameters},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
        {"name": "h", "input_schema": {"type": "object", "properties": {}}, "strict": True},
    ]
    assert "tool_choice" not in body
    assert losses == {}


def test_alternatives_at_the_root_of_a_tools_schema_are_described_in_words() -> None:
    tool = Function("f", "/tools/0", parameters={"anyOf": [{"type": "object"}]}, fields_at="/tools/0/function")
    body, losses = build_body(chat(tools=(tool,)))
    assert body["tools"][0]["input_schema"] == {"type": "object", "description": '(anyOf: [{"type":"object"}])'}
    assert losses == {"/tools/0/function/parameters": APPROXIMATED}


def test_a_breakpoint_on_a_tool_is_kept() -> None:
    tool = Function("f", "/tools/0", parameters={"type": "object"}, cache=Cache("/tools/0/cache", "5m"))
    assert build_body(chat(tools=(tool,)))[0]["tools"][0]["cache_control"] == {"type": "ephemeral"}


SINGLE = {"disable_parallel_tool_use": True}
THINKING = {"tool_choice": REQUIRED, "reasoning": effort("low")}


@each_row(
    ("profile", "fields", "sent"),
    [
        (PLAIN, {"tool_choice": AUTO}, {"type": "auto"}),
        (PLAIN, {"tool_choice": ToolChoice(Pick.NONE, "/tool_choice")}, {"type": "none"}),
        (PLAIN, {"tool_choice": REQUIRED}, {"type": "any"}),
        (PLAIN, {"tool_choice": make_named_choice("g")}, {"type": "tool", "name": "g"}),
        (PLAIN, {"parallel": False}, {"type": "auto", **SINGLE}),
        (PLAIN, {"parallel": False, "tool_choice": REQUIRED}, {"type": "any", **SINGLE}),
        (PLAIN, {"parallel": False, "tools": ()}, None),
        (OLD, THINKING, {"type": "auto"}),  # which cannot be forced while it thinks
        (OPUS_4_6, THINKING, {"type": "any"}),
    ],
)
def test_every_choice_has_its_value(profile: Profile, fields: JsonObject, sent: JsonObject | None) -> None:
    body, lost = build_body(chat(**{"tools": (F, G), **fields}), profile)
    assert body.get("tool_choice") == sent
    if "reasoning" not in fields:
        assert lost == {}


@each_row(
    ("profile", "choice", "sent"),
    [
        (OPUS_5_5, make_named_choice("g"), "auto"),  # which cannot be forced
        (PLAIN, ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("g",)), "any"),
    ],
)
def test_only_tools_that_may_be_called_are_offered(profile: Profile, choice: ToolChoice, sent: str) -> None:
    body, lost = build_body(chat(tools=(F, G), tool_choice=choice), profile)
    assert [tool["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == {"type": sent}
    assert lost == {"/tools/0": DROPPED, "/tool_choice": APPROXIMATED}


IMAGES = Hosted("image_generation", {}, "/tools/1")
DEFERRED = Function("f", "/tools/0", parameters={"type": "object"}, deferred=True)
FOUND = Hosted("tool_search", {}, "/tools/1")
FOUND_BY_CLIENT = Hosted("tool_search", {"execution": "client"}, "/tools/1")


def test_a_limit_of_tool_calls_is_a_limit_of_searches() -> None:
    body, lost = build_body(chat(tools=(SEARCH,), max_tool_calls=4))
    assert body["tools"][0]["max_uses"] == 4
    assert lost["/max_tool_calls"] is APPROXIMATED


@each_row(
    ("tools", "lost"),
    [
        ((F, IMAGES), {"/tools/1": DROPPED}),
        ((F, FOUND), {"/tools/1": DROPPED}),  # no tool is deferred
        ((DEFERRED, FOUND_BY_CLIENT), {"/tools/1": DROPPED, "/tools/0/defer_loading": APPROXIMATED}),
        ((DEFERRED,), {"/tools/0/defer_loading": APPROXIMATED}),
    ],
)
def test_a_hosted_tool_without_an_equal_is_dropped_beside_others(tools: tuple[Tool, ...], lost: Losses) -> None:
    body, recorded = build_body(chat(tools=tools))
    assert [tool["name"] for tool in body["tools"]] == ["f"]
    assert "defer_loading" not in body["tools"][0]
    assert recorded == lost


@each_row(
    ("fields", "at"),
    [
        ({"tools": (IMAGES,)}, "/tools/1"),
        ({"tools": (F, IMAGES), "tool_choice": ToolChoice(Pick.NAMED, "/tc", hosted="image_generation")}, "/tools/1"),
        ({"tool_choice": REQUIRED}, "/tool_choice"),
        ({"tools": (F,), "tool_choice": make_named_choice("ghost")}, "/tool_choice"),
        ({"tools": (Hosted("code_execution", {"container": "cntr_1"}, "/tools/0"),)}, "/tools/0/container"),
        ({"tools": (make_server({}),), "protocol": "responses"}, "/tools/0/require_approval"),
        (
            {"tools": (make_server({"require_approval": "always"}),), "protocol": "responses"},
            "/tools/0/require_approval",
        ),
        ({"n": 2}, "/n"),
    ],
)
def test_what_a_model_cannot_be_given_is_refused_by_name(fields: JsonObject, at: str) -> None:
    assert refusal_at(chat(**fields)) == at


def test_a_server_is_allowed_by_its_label() -> None:
    choice = ToolChoice(Pick.AUTO, "/tool_choice", allowed=("s",))
    body, _ = build_body(chat(tools=(F, make_server({"require_approval": "never"})), tool_choice=choice))
    assert body["tools"] == [{"type": "mcp_toolset", "mcp_server_name": "s"}]


def test_a_server_of_a_protocol_without_approvals_is_called() -> None:
    body, _ = build_body(chat(tools=(make_server({}),), protocol="gemini"))
    assert body["mcp_servers"] == [{"type": "url", "url": "https://mcp.example.com", "name": "s"}]


def test_a_search_is_anthropics_own() -> None:
    location = {"type": "approximate", "country": "CH"}
    search = Hosted("web_search", {}, "/tools/0", ("example.com",), max_uses=2, location=location)
    body, losses = build_body(chat(tools=(search,), tool_choice=ToolChoice(Pick.NAMED, "/tc", hosted="web_search")))
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
    assert losses == {"/tools/0": APPROXIMATED}


def test_code_is_run_by_anthropic_unless_a_container_is_named() -> None:
    code = Hosted("code_execution", {"container": {"type": "auto"}}, "/tools/0")
    sent = [{"type": "code_execution_20250825", "name": "code_execution"}]
    assert build_body(chat(tools=(code,)))[0]["tools"] == sent


def test_an_mcp_server_is_listed_with_its_tools() -> None:
    plain = make_server({"require_approval": "never"})
    server = replace(plain, authorization="fake", allowed_tools=("a",), ext={"headers": {"x": "y"}})
    body, lost = build_body(chat(tools=(server,)))
    assert body["mcp_servers"] == [
        {"type": "url", "url": "https://mcp.example.com", "name": "s", "authorization_token": "fake"}
    ]
    only = {"default_config": {"enabled": False}, "configs": {"a": {"enabled": True}}}
    assert body["tools"] == [{"type": "mcp_toolset", "mcp_server_name": "s", **only}]
    assert lost == {"/tools/0": APPROXIMATED, "/tools/0/headers": DROPPED}


def test_deferred_tools_wait_for_a_search_where_there_is_one() -> None:
    found, _ = build_body(chat(tools=(DEFERRED, FOUND)))
    assert found["tools"][0]["defer_loading"] is True
    assert found["tools"][1] == {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}


def test_a_client_of_messages_may_name_a_tool_of_a_server() -> None:
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}],
        "mcp_servers": [{"type": "url", "name": "s", "url": "https://mcp.example.com"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}],
        "tool_choice": {"type": "tool", "name": "remote"},
    }
    assert build_body(parse(body))[0] == {**body, "model": "claude-up"}
