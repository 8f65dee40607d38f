"""Hub requests in, bodies for Responses upstreams out."""

import msgspec
import pytest
from responses_kit import UPSTREAM, fixture, parsed

from dragoman.hub.failure import Kind, Refused
from dragoman.hub.loss import How, Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import (
    Audio,
    Cache,
    Custom,
    Document,
    FileId,
    Format,
    Function,
    Grammar,
    Hosted,
    Image,
    Inline,
    Link,
    Part,
    Pick,
    Reasoning,
    Request,
    Role,
    Shape,
    Switch,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)

FULL = msgspec.json.decode(fixture("request.json"))
TARGET = Target("gpt-5.5", "openai")
HI = Turn(Role.USER, (Text("hi", "/messages/0/content"),), "/messages/0")
PDF = Inline("application/pdf", "JVBERi0x")
PNG = Inline("image/png", "iVBORw0KGgo=")


def built(request: Request, target: Target = TARGET, ledger: Ledger | None = None) -> dict[str, object]:
    body = UPSTREAM.build(request, target, Ledger() if ledger is None else ledger)
    return msgspec.json.decode(body, type=dict[str, object])


def request_of(*turns: Turn, protocol: str = "messages", **fields: object) -> Request:
    return Request(protocol=protocol, model="asked", turns=turns or (HI,), **fields)  # type: ignore[arg-type]


def told(request: Request, target: Target = TARGET) -> list[tuple[str, How]]:
    ledger = Ledger()
    built(request, target, ledger)
    return [(loss.path, loss.how) for loss in ledger]


def refused_at(request: Request) -> str | None:
    with pytest.raises(Refused) as caught:
        built(request)
    assert caught.value.failure.kind is Kind.BAD_REQUEST
    return caught.value.failure.at


def user(*parts: Part) -> Turn:
    return Turn(Role.USER, parts, "/messages/0")


def assistant(*parts: Part) -> Turn:
    return Turn(Role.ASSISTANT, parts, "/messages/1")


def items(request: Request, target: Target = TARGET) -> list[dict[str, object]]:
    value = built(request, target)["input"]
    assert isinstance(value, list)
    return value


def stripped(value: object) -> object:
    """A request without what a rebuilt one may leave out: items' ids, nulls and defaults."""
    if isinstance(value, dict):
        kept = {key: stripped(inner) for key, inner in value.items() if inner is not None}
        if kept.get("type") != "web_search_call":
            kept.pop("id", None)
            kept.pop("status", None)
        return kept
    return [stripped(inner) for inner in value] if isinstance(value, list) else value


def test_its_own_request_comes_back_without_a_loss():
    expected = stripped(FULL)
    assert isinstance(expected, dict)
    got = stripped(built(parsed(FULL)))
    assert isinstance(got, dict)
    assert told(parsed(FULL)) == []
    for item in expected["input"]:
        item.setdefault("type", "message")
    expected["input"][1]["content"][2]["detail"] = "auto"  # left out, it means this
    expected["input"][2]["summary"] = [{"type": "summary_text", "text": "one\n\ntwo"}]
    expected["input"][11]["content"] = [{"type": "input_text", "text": "Go on."}]
    expected["input"][3]["content"][0].pop("logprobs")
    assert got == {**expected, "model": "gpt-5.5"}


def test_nothing_is_stored_and_reasoning_is_asked_for_in_its_portable_form():
    body = built(request_of())
    assert (body["model"], body["store"], body["include"]) == ("gpt-5.5", False, ["reasoning.encrypted_content"])
    assert "include" not in built(request_of(), Target("local", "local"))
    assert "include" not in built(request_of(), Target("gpt-4o", "openai", Profile(efforts=())))


def test_leading_system_text_becomes_the_instructions():
    system = Turn(Role.SYSTEM, (Text("One.", "/system/0"), Text("Two.", "/system/1")), "/system")
    body = built(request_of(system, HI))
    assert body["instructions"] == "One.\n\nTwo."
    assert body["input"] == [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]


def test_a_system_prompt_with_a_breakpoint_becomes_a_developer_item():
    cache = Cache("/system/0/cache_control", "1h")
    system = Turn(Role.SYSTEM, (Text("One.", "/system/0", cache=cache),), "/system")
    request = request_of(system, HI)
    assert "instructions" not in built(request)
    assert items(request)[0] == {
        "type": "message",
        "role": "developer",
        "content": [
            {
                "type": "input_text",
                "text": "One.",
                "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"},
            }
        ],
    }
    assert told(request) == [("/system/0/cache_control", How.APPROXIMATED)]


def test_a_later_system_message_stays_where_it_stands():
    later = Turn(Role.SYSTEM, (Text("Now rhyme.", "/messages/2"),), "/messages/2")
    assert [item["role"] for item in items(request_of(HI, later, protocol="chat"))] == ["user", "system"]


def test_a_prefill_is_sent_as_history_and_told_for_messages_only():
    prefill = assistant(Text("{", "/messages/1/content"))
    assert told(request_of(HI, prefill)) == [("/messages/1", How.APPROXIMATED)]
    assert told(request_of(HI, prefill, protocol="chat")) == []


def test_an_assistant_turn_becomes_items_in_its_own_order():
    request = request_of(
        HI,
        assistant(
            Text("Let me look.", "/a"),
            ToolCall("toolu_1", "look", '{"a":1}', "/b"),
            ToolCall("c2", "patch", "*** x", "/c", custom=True),
            Text("And more.", "/d"),
        ),
    )
    assert items(request)[1:] == [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "toolu_1", "name": "look", "arguments": '{"a":1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** x"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "And more.", "annotations": []}],
        },
    ]


def test_only_messages_have_a_role():
    for item in items(parsed(FULL)):
        assert ("role" in item) == (item["type"] == "message")


def test_tool_results_become_outputs_of_their_kind():
    request = request_of(
        user(
            ToolResult("a", (Text("fine", "/x"),), "/r0"),
            ToolResult("b", (), "/r1", custom=True),
            ToolResult("c", (Text("see", "/y"), Image(PNG, "/z")), "/r2"),
            Text("and?", "/t"),
        )
    )
    assert items(request) == [
        {"type": "function_call_output", "call_id": "a", "output": "fine"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": ""},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and?"}]},
    ]


def test_an_output_is_of_the_kind_of_its_call():
    call = ToolCall("a", "patch", "*** x", "/c", custom=True)
    request = request_of(HI, assistant(call), user(ToolResult("a", (Text("ok", "/x"),), "/r")), protocol="chat")
    assert items(request)[2]["type"] == "custom_tool_call_output"


def test_a_failed_tool_says_so_in_its_text_and_is_never_incomplete():
    request = request_of(user(ToolResult("a", (Text("no such file", "/x"),), "/r", is_error=True)))
    assert items(request) == [{"type": "function_call_output", "call_id": "a", "output": "[tool error] no such file"}]
    assert told(request) == [("/r/is_error", How.APPROXIMATED)]


def test_a_breakpoint_on_a_tool_result_stands_on_its_last_part():
    cache = Cache("/r/cache_control")
    request = request_of(user(ToolResult("a", (Text("fine", "/x"),), "/r", cache=cache)))
    assert items(request)[0]["output"] == [
        {"type": "input_text", "text": "fine", "prompt_cache_breakpoint": {"mode": "explicit"}}
    ]


def test_breakpoints_where_there_is_no_place_for_them_are_told():
    cache = Cache("/tools/0/cache_control")
    request = request_of(tools=(Function("f", "/tools/0", cache=cache), Function("g", "/tools/1")))
    assert told(request) == [("/tools/0/cache_control", How.DROPPED)]


def test_reasoning_returns_to_its_issuer_without_an_id():
    opaque = Opaque("openai", Form.ENCRYPTED, "gAAAA-x", "gpt-5.5")
    request = request_of(HI, assistant(Thinking("hm", "/t", opaque), Text("ok", "/u")), HI)
    assert items(request)[1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "gAAAA-x",
    }


def test_reasoning_that_showed_nothing_returns_with_an_empty_summary():
    opaque = Opaque("openai", Form.ENCRYPTED, "gAAAA-x")
    request = request_of(HI, assistant(Thinking("", "/t", opaque), Text("ok", "/u")), HI)
    assert items(request)[1] == {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA-x"}


@pytest.mark.parametrize(
    "opaque",
    [
        None,
        Opaque("anthropic", Form.SIGNATURE, "c2ln"),
        Opaque("someone-else", Form.ENCRYPTED, "gAAAA-x"),
        Opaque("openai", Form.ENCRYPTED, "dgm1.broken"),
    ],
)
def test_reasoning_that_this_upstream_cannot_read_is_dropped_and_told(opaque: Opaque | None):
    request = request_of(HI, assistant(Thinking("hm", "/t", opaque), Text("ok", "/u")), HI)
    assert all(item["type"] == "message" for item in items(request))
    assert told(request) == [("/t", How.DROPPED)]


def test_media_go_out_as_data_or_as_addresses():
    request = request_of(
        user(
            Image(PNG, "/0", detail="low"),
            Image(Link("https://p.example/x.png"), "/1"),
            Document(PDF, "/2", title="a.pdf"),
            Document(Link("https://p.example/x.pdf"), "/3"),
        )
    )
    assert items(request)[0]["content"] == [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
        {"type": "input_image", "image_url": "https://p.example/x.png", "detail": "auto"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0x", "filename": "a.pdf"},
        {"type": "input_file", "file_url": "https://p.example/x.pdf"},
    ]
    assert told(request) == []


def test_a_nameless_pdf_gets_a_name_and_plain_text_documents_become_text():
    request = request_of(user(Document(PDF, "/0"), Document("words", "/1", title="Notes")))
    assert told(request) == [("/0", How.INVENTED), ("/1", How.APPROXIMATED)]
    assert items(request)[0]["content"][1] == {"type": "input_text", "text": "Notes\n\nwords"}  # type: ignore[index]


def test_another_vendors_file_and_audio_are_refused_but_chats_files_are_the_same_vendors():
    assert refused_at(request_of(user(Image(FileId("file_1"), "/messages/0/content/0")))) == "/messages/0/content/0"
    assert refused_at(request_of(user(Audio(Inline("audio/wav", "aa"), "/a")), protocol="chat")) == "/a"
    assert items(request_of(user(Document(FileId("file-1"), "/f")), protocol="chat"))[0]["content"] == [
        {"type": "input_file", "file_id": "file-1"}
    ]


def test_tools_are_flat_and_strictness_is_explicit():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    request = request_of(
        protocol="chat",
        tools=(
            Function("f", "/tools/0", description="F.", parameters=schema),
            Function("g", "/tools/1", strict=True),
            Custom("p", "/tools/2", grammar=Grammar("lark", "start: x")),
            Custom("q", "/tools/3"),
        ),
    )
    assert built(request)["tools"] == [
        {"type": "function", "name": "f", "description": "F.", "parameters": schema, "strict": False},
        {"type": "function", "name": "g", "parameters": {"type": "object", "properties": {}}, "strict": True},
        {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "custom", "name": "q"},
    ]
    assert told(request) == []


def test_defer_loading_is_kept_only_where_tools_can_be_searched():
    late = Function("f", "/tools/0", deferred=True)
    alone = request_of(tools=(late, Function("g", "/tools/1")))
    assert "defer_loading" not in built(alone)["tools"][0]  # type: ignore[index]
    assert told(alone) == [("/tools/0/defer_loading", How.APPROXIMATED)]
    searched = request_of(tools=(late, Hosted("tool_search", {}, "/tools/1")))
    assert built(searched)["tools"][0]["defer_loading"] is True  # type: ignore[index]


def test_another_vendors_web_search_becomes_ours_with_its_domains_and_place():
    search = Hosted(
        "web_search",
        {},
        "/tools/0",
        allowed_domains=("a.example",),
        blocked_domains=("b.example",),
        max_uses=3,
        location={"type": "approximate", "country": "DE"},
    )
    request = request_of(tools=(search,))
    assert built(request)["tools"] == [
        {
            "type": "web_search",
            "filters": {"allowed_domains": ["a.example"]},
            "user_location": {"type": "approximate", "country": "DE"},
        }
    ]
    assert told(request) == [
        ("/tools/0/blocked_domains", How.DROPPED),
        ("/tools/0/max_uses", How.DROPPED),
        ("/tools/0", How.APPROXIMATED),
    ]


def test_code_execution_and_mcp_become_their_likes():
    request = request_of(
        tools=(
            Hosted("code_execution", {}, "/tools/0"),
            Hosted("mcp", {}, "/mcp_servers/0", server_url="https://m.example", server_name="m", authorization="t"),
        )
    )
    assert built(request)["tools"] == [
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {
            "type": "mcp",
            "server_label": "m",
            "server_url": "https://m.example",
            "authorization": "t",
            "require_approval": "never",
        },
    ]


def test_a_hosted_tool_without_a_like_is_dropped_beside_others_and_refused_alone_or_forced():
    memory = Hosted("memory", {"type": "memory"}, "/tools/0")
    beside = (memory, Function("f", "/tools/1"))
    assert told(request_of(tools=beside)) == [("/tools/0", How.DROPPED)]
    assert refused_at(request_of(tools=(memory,))) == "/tools/0"
    forced = ToolChoice(Pick.NAMED, "/tool_choice", hosted="memory")
    assert refused_at(request_of(tools=beside, tool_choice=forced)) == "/tools/0"


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        (ToolChoice(Pick.AUTO, "/c"), "auto"),
        (ToolChoice(Pick.NONE, "/c"), "none"),
        (ToolChoice(Pick.REQUIRED, "/c"), "required"),
        (ToolChoice(Pick.NAMED, "/c", "f"), {"type": "function", "name": "f"}),
        (ToolChoice(Pick.NAMED, "/c", "p", custom=True), {"type": "custom", "name": "p"}),
        (ToolChoice(Pick.NAMED, "/c", hosted="web_search"), {"type": "web_search"}),
        (
            ToolChoice(Pick.REQUIRED, "/c", allowed=("f", "p")),
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "p"}],
            },
        ),
    ],
)
def test_tool_choice_is_written_in_every_form(choice: ToolChoice, wire: object):
    tools = (Function("f", "/tools/0"), Custom("p", "/tools/1"), Hosted("web_search", {}, "/tools/2"))
    assert built(request_of(tools=tools, tool_choice=choice))["tool_choice"] == wire


def test_a_demanded_call_without_tools_is_refused():
    assert refused_at(request_of(tool_choice=ToolChoice(Pick.REQUIRED, "/tool_choice"))) == "/tool_choice"


def test_no_parallel_calls_is_carried():
    assert built(request_of(parallel=False))["parallel_tool_calls"] is False


def test_what_responses_cannot_say_is_dropped_and_told():
    request = request_of(
        protocol="chat",
        top_k=5,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        seed=1,
        stop=("x",),
        where={"stop": "/stop_sequences"},
    )
    assert told(request) == [
        ("/top_k", How.DROPPED),
        ("/frequency_penalty", How.DROPPED),
        ("/presence_penalty", How.DROPPED),
        ("/seed", How.DROPPED),
        ("/stop_sequences", How.DROPPED),
    ]


def test_several_answers_are_refused_and_one_is_fine():
    assert refused_at(request_of(protocol="chat", n=2)) == "/n"
    assert told(request_of(protocol="chat", n=1)) == []


def test_a_model_that_takes_no_sampling_gets_none():
    request = request_of(temperature=0.5, top_p=0.9)
    assert built(request)["temperature"] == 0.5
    fixed = Target("o9", "openai", Profile(sampling=False))
    assert "temperature" not in built(request, fixed)
    assert told(request, fixed) == [("/temperature", How.DROPPED), ("/top_p", How.DROPPED)]


@pytest.mark.parametrize(("asked", "sent"), [(1, 16), (16, 16), (500, 500)])
def test_the_smallest_cap_is_sixteen(asked: int, sent: int):
    request = request_of(max_tokens=asked)
    assert built(request)["max_output_tokens"] == sent
    assert told(request) == ([("/max_tokens", How.APPROXIMATED)] if asked != sent else [])


def test_no_tokens_at_all_warm_the_cache():
    body = built(request_of(max_tokens=0))
    assert body["prompt_cache_options"] == {"prewarm": True}
    assert "max_output_tokens" not in body


@pytest.mark.parametrize(
    ("budget", "effort"), [(1024, "low"), (1025, "medium"), (8192, "medium"), (24576, "high"), (31999, "xhigh")]
)
def test_a_budget_of_thought_becomes_an_effort(budget: int, effort: str):
    reasoning = Reasoning("/thinking", budget=budget, budget_at="/thinking/budget_tokens")
    request = request_of(reasoning=reasoning)
    assert built(request)["reasoning"] == {"effort": effort}
    assert told(request) == [("/thinking/budget_tokens", How.APPROXIMATED)]


def test_thinking_switched_off_is_no_effort_where_the_model_allows_it():
    reasoning = Reasoning("/thinking", switch=Switch.DISABLED, switch_at="/thinking/type")
    assert built(request_of(reasoning=reasoning))["reasoning"] == {"effort": "none"}
    stubborn = Target("gpt-6-astra", "openai", Profile(efforts=("low", "medium", "high")))
    assert "reasoning" not in built(request_of(reasoning=reasoning), stubborn)
    assert told(request_of(reasoning=reasoning), stubborn) == [("/thinking/type", How.DROPPED)]


@pytest.mark.parametrize(
    ("effort", "efforts", "sent"),
    [
        ("max", ("low", "high"), "high"),
        ("minimal", ("low", "high"), "low"),
        ("medium", ("low", "high"), "low"),
        ("high", ("low", "high"), "high"),
    ],
)
def test_an_effort_that_the_model_lacks_becomes_its_neighbour(effort: str, efforts: tuple[str, ...], sent: str):
    request = request_of(protocol="chat", reasoning=Reasoning("/reasoning_effort", effort))
    target = Target("m", "openai", Profile(efforts=efforts))
    assert built(request, target)["reasoning"] == {"effort": sent}
    assert told(request, target) == ([("/reasoning_effort", How.APPROXIMATED)] if effort != sent else [])


def test_a_model_without_efforts_gets_none():
    request = request_of(protocol="chat", reasoning=Reasoning("/reasoning_effort", "high"))
    assert told(request, Target("gpt-4o", "openai", Profile(efforts=()))) == [("/reasoning_effort", How.DROPPED)]


def test_a_wish_to_see_thoughts_becomes_a_summary():
    reasoning = Reasoning("/output_config/effort", "high", show="summarized", show_at="/thinking/display")
    request = request_of(reasoning=reasoning)
    assert built(request)["reasoning"] == {"effort": "high", "summary": "auto"}
    assert ("/thinking/display", How.APPROXIMATED) in told(request)


def test_a_schema_is_flat_and_gets_a_name_where_it_has_none():
    schema = {"type": "object"}
    named = Format(Shape.SCHEMA, "/response_format", "answer", schema=schema, strict=True)
    assert built(request_of(format=named))["text"] == {
        "format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    }
    nameless = request_of(format=Format(Shape.SCHEMA, "/output_config/format", schema=schema))
    assert built(nameless)["text"]["format"]["name"] == "response"  # type: ignore[index]
    assert told(nameless) == [("/output_config/format", How.INVENTED)]
    assert built(request_of(format=Format(Shape.JSON, "/f")))["text"] == {"format": {"type": "json_object"}}


def test_logprobs_are_asked_for_by_inclusion():
    body = built(request_of(protocol="chat", logprobs=True, top_logprobs=3))
    assert body["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert body["top_logprobs"] == 3


def test_identity_and_tier_are_carried():
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
    body = built(request)
    assert (body["user"], body["safety_identifier"], body["prompt_cache_key"]) == ("u", "s", "k")
    assert (body["metadata"], body["service_tier"], body["text"]) == ({"a": "b"}, "flex", {"verbosity": "low"})
    assert body["stream"] is True
    assert told(request) == []


def test_a_user_id_too_long_for_openai_is_dropped_and_told():
    request = request_of(user="x" * 65, where={"user": "/metadata/user_id"})
    assert "user" not in built(request)
    assert told(request) == [("/metadata/user_id", How.DROPPED)]


def test_fields_of_another_protocol_are_told():
    assert told(request_of(ext={"container": "c"})) == [("/container", How.DROPPED)]
