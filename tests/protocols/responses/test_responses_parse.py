"""Requests of Responses clients in, hub requests out."""

import copy
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace
from responses_kit import CLIENT, fixture, parsed

from dragoman.hub.failure import Kind, Refused
from dragoman.hub.loss import How, Ledger
from dragoman.hub.opaque import Form, Opaque, seal
from dragoman.hub.request import (
    Cache,
    Custom,
    Document,
    FileId,
    Foreign,
    Format,
    Function,
    Grammar,
    Hosted,
    Image,
    Inline,
    Link,
    Pick,
    Reasoning,
    Refusal,
    Request,
    Role,
    Shape,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)

FULL = msgspec.json.decode(fixture("request.json"))


def refused(body: object) -> Refused:
    with pytest.raises(Refused) as caught:
        parsed(body)
    assert caught.value.failure.kind is Kind.BAD_REQUEST
    return caught.value


def of(*items: object, **fields: object) -> Request:
    return parsed({"model": "m", "input": list(items), **fields})


def test_a_string_is_one_user_turn():
    assert parsed({"model": "m", "input": "hi"}).turns == (Turn(Role.USER, (Text("hi", "/input"),), "/input"),)


def test_instructions_lead_as_a_system_turn():
    turns = parsed({"model": "m", "input": "hi", "instructions": "Be brief."}).turns
    assert turns[0] == Turn(Role.SYSTEM, (Text("Be brief.", "/instructions"),), "/instructions")


def test_every_kind_of_turn_is_read_in_order():
    turns = parsed(FULL).turns
    assert [turn.role for turn in turns] == [
        Role.SYSTEM,
        Role.DEVELOPER,
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
        Role.USER,
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
    ]
    assert [type(part) for part in turns[3].parts] == [Thinking, Text, ToolCall, ToolCall, ToolCall]


def test_images_and_files_are_read_from_data_and_from_addresses():
    parts = parsed(FULL).turns[2].parts
    at = "/input/1/content"
    assert parts == (
        Text("What is this?", f"{at}/0"),
        Image(Inline("image/png", "iVBORw0KGgo="), f"{at}/1", detail="high"),
        Image(Link("https://pictures.example/1.png"), f"{at}/2"),
        Document(Inline("application/pdf", "JVBERi0x"), f"{at}/3", title="a.pdf"),
        Document(Link("https://files.example/a.pdf"), f"{at}/4"),
    )


def test_file_ids_and_bare_base64_are_read():
    parts = (
        of(
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "file_id": "file-1"},
                    {"type": "input_file", "file_id": "file-2"},
                    {"type": "input_file", "file_data": "aGk=", "filename": "note.txt"},
                ],
            }
        )
        .turns[0]
        .parts
    )
    assert [part.source for part in parts if isinstance(part, Image | Document)] == [
        FileId("file-1"),
        FileId("file-2"),
        Inline("text/plain", "aGk="),
    ]


def test_a_cache_breakpoint_is_read_with_its_time_to_live():
    text = parsed(FULL).turns[1].parts[0]
    assert isinstance(text, Text)
    assert text.cache == Cache("/input/0/content/0/prompt_cache_breakpoint", "12h")


def test_reasoning_is_read_with_its_vendors_own_opaque_value():
    thought = parsed(FULL).turns[3].parts[0]
    assert thought == Thinking("one\n\ntwo", "/input/2", Opaque("openai", Form.ENCRYPTED, "gAAAA-native"))


def test_an_envelope_of_ours_is_opened_and_its_words_win_over_the_summary():
    opaque = Opaque("anthropic", Form.SIGNATURE, "c2ln", "claude-x")
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "tidied"}],
        "encrypted_content": seal(opaque, "the very words"),
    }
    thought = of(item, {"role": "assistant", "content": "x"}).turns[0].parts[0]
    assert isinstance(thought, Thinking)
    assert (thought.text, thought.opaque) == ("the very words", replace(opaque, text="the very words"))


def test_raw_reasoning_content_is_read_as_raw():
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert of(item).turns[0].parts == (Thinking("hm", "/input/0", raw=True),)


def test_calls_keep_id_name_namespace_and_kind():
    calls = [part for part in parsed(FULL).turns[3].parts if isinstance(part, ToolCall)]
    assert [(call.id, call.name, call.arguments, call.custom, call.namespace) for call in calls] == [
        ("call_1", "look", '{"where":"here"}', False, None),
        ("call_2", "apply_patch", "*** Begin Patch", True, None),
        ("call_3", "wait", '{"ids":[1]}', False, "agents"),
    ]


def test_object_valued_and_empty_arguments_are_accepted():
    calls = (
        of(
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": {"x": 1}},
            {"type": "function_call", "call_id": "b", "name": "f", "arguments": ""},
        )
        .turns[0]
        .parts
    )
    assert [call.arguments for call in calls if isinstance(call, ToolCall)] == ['{"x":1}', "{}"]


def test_outputs_hold_text_images_or_nothing():
    results = [part for turn in parsed(FULL).turns for part in turn.parts if isinstance(part, ToolResult)]
    assert [(result.call_id, result.custom, [type(part) for part in result.content]) for result in results] == [
        ("call_1", False, [Text, Image]),
        ("call_2", True, [Text]),
        ("call_3", False, [Text]),
    ]
    nothing = of({"type": "function_call_output", "call_id": "a", "output": ""}).turns[0].parts[0]
    assert isinstance(nothing, ToolResult)
    assert nothing.content == ()


def test_of_two_outputs_of_one_call_the_last_counts_in_the_place_of_the_first():
    ledger = Ledger()
    body = {
        "model": "m",
        "input": [
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "old"},
            {"role": "user", "content": "go on"},
            {"type": "function_call_output", "call_id": "a", "output": "new"},
        ],
    }
    turns = parsed(body, ledger).turns
    assert [turn.role for turn in turns] == [Role.ASSISTANT, Role.USER, Role.USER]
    result = turns[1].parts[0]
    assert isinstance(result, ToolResult)
    assert result.content == (Text("new", "/input/3/output"),)
    assert [(loss.path, loss.how) for loss in ledger] == [("/input/1", How.DROPPED)]


def test_hosted_activity_in_history_is_kept_for_its_own_protocol():
    part = parsed(FULL).turns[7].parts[0]
    assert part == Foreign("web_search_call", FULL["input"][10], "/input/10")


def test_unknown_parts_and_items_are_kept_and_cost_no_400():
    smell = {"type": "input_smell", "smell": "rose"}
    turns = of({"role": "user", "content": [smell]}, {"type": "hologram", "x": 1}).turns
    assert turns[0].parts == (Foreign("input_smell", smell, "/input/0/content/0"),)
    assert turns[1].parts == (Foreign("hologram", {"type": "hologram", "x": 1}, "/input/1"),)


def test_a_refusal_and_plain_string_content_of_the_assistant_are_read():
    turns = of(
        {"role": "assistant", "content": "Hello."},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ).turns
    assert turns == (
        Turn(
            Role.ASSISTANT,
            (Text("Hello.", "/input/0/content"), Refusal("No.", "/input/1/content/0")),
            "/input/0",
        ),
    )


def test_tools_of_every_kind_are_read_and_namespaces_opened():
    tools = parsed(FULL).tools
    assert [type(tool) for tool in tools] == [Function, Function, Custom, Function, Hosted, Hosted]
    look, later, patch, wait, search, finder = tools
    assert isinstance(look, Function)
    assert isinstance(later, Function)
    assert isinstance(patch, Custom)
    assert isinstance(wait, Function)
    assert isinstance(search, Hosted)
    assert isinstance(finder, Hosted)
    assert (look.strict, look.deferred, later.deferred) == (True, False, True)
    assert patch.grammar == Grammar("lark", 'start: "x"')
    assert (wait.name, wait.namespace, wait.at) == ("wait", "agents", "/tools/3/tools/0")
    assert (search.kind, search.allowed_domains, search.location) == (
        "web_search",
        ("docs.example",),
        {"type": "approximate", "country": "DE"},
    )
    assert finder.kind == "tool_search"


def test_tools_among_the_items_are_offered_with_their_own_pointers():
    tools = of(
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [
                {
                    "type": "namespace",
                    "name": "functions",
                    "description": "",
                    "tools": [{"type": "custom", "name": "exec"}],
                }
            ],
        },
        {"role": "user", "content": "hi"},
        tools=[{"type": "function", "name": "f", "parameters": None}],
    ).tools
    assert [(tool.name, tool.at) for tool in tools if not isinstance(tool, Hosted)] == [
        ("f", "/tools/0"),
        ("exec", "/input/0/tools/0/tools/0"),
    ]


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("web_search_preview", "web_search"),
        ("code_interpreter", "code_execution"),
        ("mcp", "mcp"),
        ("image_generation", "image_generation"),
        ("something_new", "something_new"),
    ],
)
def test_hosted_tools_have_the_hubs_name_or_their_own(type_: str, kind: str):
    tool = of(tools=[{"type": type_}]).tools[0]
    assert isinstance(tool, Hosted)
    assert tool.kind == kind


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("auto", None),
        ("none", ToolChoice(Pick.NONE, "/tool_choice")),
        ("required", ToolChoice(Pick.REQUIRED, "/tool_choice")),
        ({"type": "function", "name": "f"}, ToolChoice(Pick.NAMED, "/tool_choice", "f")),
        ({"type": "custom", "name": "c"}, ToolChoice(Pick.NAMED, "/tool_choice", "c", custom=True)),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice(Pick.AUTO, "/tool_choice", allowed=("f",)),
        ),
        ({"type": "web_search_preview"}, ToolChoice(Pick.NAMED, "/tool_choice", hosted="web_search")),
    ],
)
def test_tool_choice_is_read_in_every_form(choice: object, read: ToolChoice | None):
    assert of(tool_choice=choice).tool_choice == read


def test_every_request_level_field_has_its_value_and_its_pointer():
    request = parsed(FULL)
    assert request.tool_choice == ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("look", "apply_patch"))
    assert (request.parallel, request.max_tokens, request.max_tool_calls) == (False, 2000, 5)
    assert (request.temperature, request.top_p, request.logprobs, request.top_logprobs) == (0.5, 0.9, True, 3)
    assert request.reasoning == Reasoning("/reasoning/effort", "high", show="auto", show_at="/reasoning/summary")
    assert request.encrypted_reasoning is True
    assert request.format == Format(
        Shape.SCHEMA, "/text/format", "answer", "An answer.", FULL["text"]["format"]["schema"], True
    )
    assert (request.verbosity, request.metadata, request.user) == ("low", {"team": "blue"}, "u-1")
    assert (request.safety_identifier, request.cache_key, request.service_tier) == ("s-1", "k-1", "flex")
    assert request.stream is True
    assert request.pointer("max_tokens") == "/max_output_tokens"
    assert request.pointer("cache_key") == "/prompt_cache_key"


def test_what_only_this_protocol_knows_is_kept_by_pointer():
    assert set(parsed(FULL).ext) == {
        "include/2",
        "tools/3/description",
        "tools/4/search_context_size",
        "input/3/phase",
        "reasoning/context",
        "prompt_cache_options/mode",
        "prompt_cache_options/ttl",
        "truncation",
        "client_metadata",
        "context_management",
    }


def test_encrypted_reasoning_is_wanted_only_where_it_was_asked_for():
    assert of().encrypted_reasoning is False
    assert of(include=["reasoning.encrypted_content"]).encrypted_reasoning is True


def test_values_that_say_nothing_are_no_loss():
    request = of(
        truncation="disabled",
        background=False,
        parallel_tool_calls=True,
        service_tier="auto",
        store=True,
        metadata={},
        top_logprobs=0,
        tool_choice="auto",
        text={"format": {"type": "text"}, "verbosity": "medium"},
        stream_options={"include_obfuscation": True},
        reasoning={"effort": None, "summary": None, "mode": "standard"},
        previous_response_id=None,
        include=[],
    )
    assert replace(request, raw={}) == replace(of(), raw={})


def test_warming_the_cache_is_asking_for_no_tokens():
    request = of(prompt_cache_options={"prewarm": True})
    assert (request.max_tokens, request.pointer("max_tokens")) == (0, "/prompt_cache_options/prewarm")


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"previous_response_id": "resp_1"}, "/previous_response_id"),
        ({"conversation": "conv_1"}, "/conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "/prompt"),
        ({"background": True}, "/background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "/input/0"),
        ({"input": [{"id": "x"}]}, "/input/0"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "/input/0"),
        ({"input": [{"role": "critic", "content": "x"}]}, "/input/0/role"),
        ({"input": 5}, "/input"),
        ({"input": None}, "/input"),
        ({"input": ["x"]}, "/input/0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "/input/0/content/0"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "/input/0/call_id"),
        ({"model": None}, "/model"),
        ({"temperature": "hot"}, "/temperature"),
        ({"tools": [{"name": "f"}]}, "/tools/0/type"),
        ({"tool_choice": "sometimes"}, "/tool_choice"),
        ({"text": {"format": {"type": "poem"}}}, "/text/format/type"),
        ({"include": [5]}, "/include/0"),
    ],
)
def test_what_cannot_be_had_here_is_refused_and_named(fields: dict[str, object], at: str):
    assert refused({"model": "m", "input": "hi", **fields}).failure.at == at


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"x"', b"\xff", b'{"model":', b"[" * 200_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes):
    with pytest.raises(Refused) as caught:
        CLIENT.parse(body, Ledger())
    assert caught.value.failure.kind is Kind.BAD_REQUEST


def test_half_a_surrogate_pair_in_a_request_is_mended():
    request = CLIENT.parse(b'{"model":"m","input":"a\\ud83db"}', Ledger())
    assert request.turns[0].parts == (Text("a\ufffdb", "/input"),)


def leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    elif value is not None:
        yield path


def without(body: object, path: tuple[object, ...]) -> object:
    body = copy.deepcopy(body)
    holder = body
    for step in path[:-1]:
        holder = holder[step]  # type: ignore[index]
    del holder[path[-1]]  # type: ignore[attr-defined]
    return body


BOOKKEEPING = {"id", "status", "store"}
INFERRED = {  # what is left out here is understood all the same
    ("input", 1, "type"),
    ("input", 3, "type"),
    ("input", 0, "type"),
    ("input", 0, "content", 0, "prompt_cache_breakpoint", "mode"),
    ("input", 2, "summary", 0, "type"),
    ("input", 2, "summary", 1, "type"),
    ("tools", 3, "tools", 0, "type"),
    ("tool_choice", "tools", 0, "type"),
    ("tool_choice", "tools", 1, "type"),
}
LEAVES = [path for path in leaves(FULL) if path not in INFERRED and path[-1] not in BOOKKEEPING]


@pytest.mark.parametrize("path", LEAVES, ids=str)
def test_removing_any_leaf_changes_what_is_read_or_is_refused(path: tuple[object, ...]):
    try:
        less = parsed(without(FULL, path))
    except Refused:
        return
    assert replace(less, raw={}) != replace(parsed(FULL), raw={})
