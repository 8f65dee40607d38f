"""The rules of rejections: which words mean what about which request, and what is changed."""

import msgspec
import pytest

from dragoman.translate.framing.jsonedit import EVERY
from dragoman.translate.hub.loss import Ledger
from dragoman.upstreams.rejections.changes import apply
from dragoman.upstreams.rejections.complaint import HOLE, MAX_SENTENCES, MAX_TEXT, Complaint, make_holes, read_complaint
from dragoman.upstreams.rejections.repairs import apply_rules
from dragoman.upstreams.rejections.rules import BY_ID, RULES, Found, RuleScope, find_rules, make_edits
from dragoman.upstreams.rejections.sent import Sent, format_path, parse_path
from laws import assert_linear_function
from wire_json import JsonObject

TOOL: JsonObject = {"name": "f", "input_schema": {"type": "object", "properties": {"temperature": {"type": "string"}}}}


def make_sent(protocol: str = "chat", **fields: object) -> Sent:
    return Sent(protocol, msgspec.json.encode({"model": "m", **fields}))


def change(found: Found, request: Sent) -> tuple[JsonObject, list[str]]:
    ledger = Ledger()
    changed = apply(request, make_edits([found], request), "why", ledger)
    return msgspec.json.decode(changed.body, type=JsonObject), [loss.path for loss in ledger]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unknown name \"a.b[0]\" at 'c': no", "Unknown name \"a.b[0]\" at 'c': no"),
        ("it said 'two words' and `x y`", f"it said {HOLE} and {HOLE}"),
        ("doesn't fit 'a b' isn't", f"doesn't fit {HOLE} isn't"),
        ("'" + "a" * 257 + "'", HOLE),
        ('{"error":{"message":"inner"}}', "inner"),
        ("a\0b", "ab"),
    ],
)
def test_quoted_text_that_is_no_path_becomes_a_hole(text: str, expected: str) -> None:
    assert make_holes(text) == expected


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"error":{"message":"m","code":"c","param":"p"}}', Complaint(400, "m", "c", "p")),
        (b'{"error":"m"}', Complaint(400, "m")),
        (b'{"detail":"m"}', Complaint(400, "m", in_detail=True)),
        (b'[{"error":{"message":"m","code":400}}]', Complaint(400, "m", "400")),
        (b'{"detail":{"error":{"message":"m","type":"t"}}}', Complaint(400, "m", "t")),
        (b'{"detail":{"message":"m","input":{"message":"x"}}}', Complaint(400, "m")),
        (b'{"detail":{"error":"m"}}', Complaint(400, "m")),
        (b'{"success":false,"errors":[{"code":5,"message":"m"}],"messages":[]}', Complaint(400, "m", "5")),
        (b'{"message":"m","detail":{"message":"x"},"errors":[{"message":"x"}]}', Complaint(400, "m")),
        (
            b'{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":'
            b'"{\\"error\\":{\\"message\\":\\"m\\",\\"param\\":\\"p\\"}}","provider_name":"P"}}}',
            Complaint(400, "m", param="p"),
        ),
        (b'{"error":{"message":"m","metadata":{"raw":"{\\"message\\":\\"x\\"}"}}}', Complaint(400, "m")),
        (b'{"message":"The model returned the following errors: a: Extra"}', Complaint(400, "a: Extra")),
        (b'{"errors":["x"],"detail":{"input":{"message":"x"}}}', Complaint(400)),
        (b'{"object":"error","message":"m","type":"t"}', Complaint(400, "m", "t")),
        (
            b'{"message":{"detail":[{"type":"extra_forbidden","loc":["body","a",0,"b"],"input":"Extra"}]}}',
            Complaint(400, extras=("a.0.b",)),
        ),
        (b'{"detail":[{"type":"missing","loc":["body","a"]}]}', Complaint(400)),
        (b'{"error":{"message":"m","param":"two words"}}', Complaint(400, "m")),
        (b"<html>", Complaint(400)),
    ],
)
def test_an_error_is_read_in_every_vendors_shape(body: bytes, complaint: Complaint) -> None:
    assert read_complaint(400, body) == complaint


def test_of_an_error_about_very_many_fields_the_first_ones_are_read() -> None:
    """Each is compared with every rule, on the event loop where the request is small."""
    names = [f"f{number}" for number in range(10_000)]
    extras = [{"type": "extra_forbidden", "loc": ["body", name]} for name in names]
    complaint = read_complaint(400, msgspec.json.encode({"detail": extras}))
    assert complaint.extras == tuple(names[:MAX_SENTENCES])
    lines = [f'Invalid JSON payload received. Unknown name "{name}" : Cannot find field.' for name in names]
    listed = read_complaint(400, msgspec.json.encode({"error": {"message": "\n".join(lines)[:MAX_TEXT]}}))
    request = make_sent("gemini", **dict.fromkeys(names, 1))
    assert len(find_rules(listed, request)) <= MAX_SENTENCES


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("temperature", ("temperature",)),
        ("top_p", None),
        ("tools.0.custom.cache_control.ephemeral.scope", ("tools", EVERY, "cache_control", "scope")),
        ("tools[0].cache_control.scope", ("tools", EVERY, "cache_control", "scope")),
        ("tools.0.other.cache_control", None),
        ("tools.0.custom.description", None),
        ("tools.7.cache_control", None),
        ("tools.0", None),
        ("tools.0.input_schema.properties.temperature", None),
        ("messages.0.content.0.citations", ("messages", EVERY, "content", EVERY, "citations")),
        ("messages.0.content.0.text", None),
        ("messages.0.content.0.text.citations", ("messages", EVERY, "content", EVERY, "citations")),
        ("messages.0.user.content.0.text.citations", ("messages", EVERY, "content", EVERY, "citations")),
        ("messages.0.assistant.content.0.citations", None),
        ("messages.0.UserMessage.content.0.TextBlock.citations", ("messages", EVERY, "content", EVERY, "citations")),
        ("messages.0.AssistantMessage.content.0.citations", None),
        ("messages.0.content", None),
        ("messages.0.content.1.input.citations", None),
        ("metadata", ("metadata",)),
        ("metadata.user_id", None),
        ("maxOutputTokens", None),
        ("topK", ("top_k",)),
        ("service_tier", None),
        ("f", None),
        ("", None),
    ],
)
def test_only_a_field_of_the_protocol_is_found_and_never_what_must_stay(
    path: str, found: tuple[object, ...] | None
) -> None:
    blocks = [{"type": "text", "text": "x", "citations": []}, {"type": "tool_use", "input": {"citations": 1}}]
    request = make_sent(
        "messages",
        temperature=1,
        top_k=3,
        max_output_tokens=3,
        service_tier="flex",
        metadata={"user_id": "u"},
        tools=[{**TOOL, "description": "Looks.", "cache_control": {"type": "ephemeral", "scope": "x"}}],
        messages=[{"role": "user", "content": blocks}],
    )
    assert request.find_field(path) == found
    if request.find_field(path) is not None:
        assert parse_path(format_path(request.find_field(path) or ())) == found


@pytest.mark.parametrize(
    ("protocol", "path", "fields"),
    [
        ("chat", "functions", {"functions": [{"name": "f"}]}),
        ("chat", "function_call", {"function_call": "auto"}),
        ("chat", "messages.0.content.0.video_url", {"messages": [{"role": "user", "content": [{"video_url": {}}]}]}),
        ("gemini", "system_instruction", {"system_instruction": {"parts": []}}),
        ("gemini", "systemInstruction", {"system_instruction": {"parts": []}}),
        ("gemini", "tool_config", {"tool_config": {}}),
        (
            "gemini",
            "toolConfig.functionCallingConfig",
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}},
        ),
        (
            "gemini",
            "tool_config.function_calling_config.mode",
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        ),
        (
            "gemini",
            "contents[0].parts[0].file_data.file_uri",
            {"contents": [{"parts": [{"fileData": {"fileUri": "https://a.example", "mimeType": "image/png"}}]}]},
        ),
        (
            "messages",
            "messages.0.content.0.image.source.base64.media_type",
            {"messages": [{"content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png"}}]}]},
        ),
        ("gemini", "cachedContent", {"cachedContent": "cachedContents/1"}),
        ("gemini", "generation_config.response_schema", {"generation_config": {"response_schema": {}}}),
        ("gemini", "generationConfig", {"generationConfig": {"maxOutputTokens": 9}}),
        ("messages", "output_config", {"output_config": {"effort": "low", "format": {"type": "json_schema"}}}),
        ("chat", "extra", {"extra": [{"inner": {"max_tokens": 9}}]}),
        ("messages", "service_tier", {"service_tier": "standard_only"}),
        ("responses", "input.0.content.0.detail", {"input": [{"content": [{"type": "input_image", "detail": "low"}]}]}),
        (
            "gemini",
            "generation_config.media_resolution",
            {"generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_LOW"}},
        ),
    ],
)
def test_what_must_stay_is_known_in_every_spelling_and_inside_other_fields(
    protocol: str, path: str, fields: JsonObject
) -> None:
    assert make_sent(protocol, **fields).find_field(path) is None


def test_a_field_without_anything_that_must_stay_is_found() -> None:
    request = make_sent(
        "messages", output_config={"effort": "low"}, thinking={"type": "enabled", "budget_tokens": 2048}
    )
    assert request.find_field("output_config") == ("output_config",)
    assert request.find_field("thinking") == ("thinking",)


def test_a_field_that_was_learnt_stays_where_it_holds_what_must_stay() -> None:
    found = Found("extra_field", "/generationConfig")
    assert "generationConfig" not in change(found, make_sent("gemini", generationConfig={"topK": 1}))[0]
    body, losses = change(found, make_sent("gemini", generationConfig={"maxOutputTokens": 9}))
    assert (body["generationConfig"], losses) == ({"maxOutputTokens": 9}, [])


@pytest.mark.parametrize("keyword", ["type", "properties", "items", "required", "enum", "description"])
def test_a_keyword_that_says_what_an_argument_is_stays(keyword: str) -> None:
    schema = {"type": "object", keyword: "x"}
    request = make_sent("gemini", tools=[{"functionDeclarations": [{"name": "f", "parameters": schema}]}])
    words = f"Invalid JSON payload received. Unknown name \"{keyword}\" at 'tools[0]': Cannot find field."
    assert find_rules(Complaint(400, words), request) == ()


def test_a_keyword_goes_from_every_schema_but_no_property_of_that_name() -> None:
    schema = {
        "type": "object",
        "propertyNames": {"pattern": "^a"},
        "properties": {
            "propertyNames": {"type": "string"},
            "a": {"anyOf": [{"type": "object", "propertyNames": {}, "description": "An a."}]},
        },
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body, losses = change(Found("schema_keyword", "/propertyNames"), make_sent(tools=[tool]))
    parameters = body["tools"][0]["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "properties": {
            "propertyNames": {"type": "string"},
            "a": {"anyOf": [{"type": "object", "description": "An a.\n(propertyNames: {})"}]},
        },
        "description": '(propertyNames: {"pattern":"^a"})',
    }
    assert len(losses) == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tools.0.custom.input_schema.newWord: {}", "unknown_keyword"),
        ("tools.0.custom.input_schema.properties.a.newWord: {}", "unknown_keyword"),
        ("#/tools/0/input_schema: extraneous key [newWord] is not permitted", "unknown_keyword"),
        ("output_config.format.schema.newWord: {}", "unknown_keyword"),
        ("tools.0.custom.input_schema.properties.newWord: {}", None),
        ("tools.0.custom.input_schema.properties.a.type: {}", None),
        ("tools.0.custom.input_schema.other: {}", None),
        ("messages.0.content.0.input.newWord: {}", None),
    ],
)
def test_a_keyword_is_known_by_its_place_in_a_schema_in_every_vendors_words(words: str, found: str | None) -> None:
    schema = {"type": "object", "newWord": 1, "properties": {"newWord": {}, "a": {"type": "string", "newWord": 1}}}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"newWord": 1}}
    request = make_sent(
        "messages",
        tools=[{"name": "f", "input_schema": schema}],
        output_config={"format": {"type": "json_schema", "schema": schema}},
        messages=[{"role": "assistant", "content": [call]}],
    )
    rules = find_rules(Complaint(400, words.format("Extra inputs are not permitted")), request)
    assert rules == (() if found is None else (Found(found, "/newWord"),))
    for rule in rules:
        body, _ = change(rule, request)
        assert body["tools"][0]["input_schema"]["properties"]["newWord"] == {}
        assert "newWord" not in body["tools"][0]["input_schema"]["properties"]["a"]


def test_a_field_outside_of_schemas_is_no_keyword_of_one() -> None:
    words = "Invalid JSON payload received. Unknown name \"newWord\" at 'generation_config': Cannot find field."
    tools = [{"functionDeclarations": [{"name": "f", "parameters": {"newWord": 1}}]}]
    request = make_sent("gemini", tools=tools, generationConfig={"newWord": 1})
    assert find_rules(Complaint(400, words), request) == (Found("extra_name", "/generationConfig/newWord"),)


@pytest.mark.parametrize(
    "words",
    [
        "Validation error at #/stream_options/newField: Extra inputs are not permitted",
        "Error from provider: Extra inputs are not permitted, field: 'stream_options.newField'",
        "2 request validation errors: Extra inputs are not permitted, field: 'stream_options.newField', value: True; "
        "Extra inputs are not permitted, field: 'other', value: 'text of the user'",
        "'stream_options' : property 'newField' is unsupported, did you mean 'include_usage'?",
        "property 'newField' is unsupported, did you mean 'n'?",
    ],
)
def test_a_field_is_left_out_in_every_vendors_words(words: str) -> None:
    request = make_sent(stream_options={"newField": True}, newField=True)
    [found] = find_rules(Complaint(400, make_holes(words)), request)
    assert find_rules(Complaint(400, make_holes(f"{words} was what the user wrote")), request) == ()
    assert found.path == ("/newField" if words.startswith("property") else "/stream_options/newField")


def test_every_moved_message_is_a_loss() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "system", "content": "d"},
    ]
    body, losses = change(Found("leading_system"), make_sent(messages=turns))
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert losses == ["/messages/1", "/messages/3"]


def test_moved_instructions_keep_their_cache_mark_and_their_bytes_when_it_moves_on() -> None:
    """As Claude Code sends them: the newest message has the mark, and text in its place afterwards."""
    mark = {"cache_control": {"type": "ephemeral"}}
    for content in ("a", [{"type": "text", "text": "a"}]):
        user = {"role": "user", "content": content}
        marked = {"role": "system", "content": [{"type": "text", "text": "b", **mark}]}
        first, _ = change(Found("leading_system"), make_sent("messages", messages=[user, marked]))
        moved = {"type": "text", "text": "<system>\nb\n</system>"}
        assert first["messages"][0]["content"] == [{"type": "text", "text": "a"}, {**moved, **mark}]
        second, _ = change(Found("leading_system"), make_sent("messages", messages=[user, {**marked, "content": "b"}]))
        assert second["messages"][0]["content"] == [{"type": "text", "text": "a"}, moved]


def test_moved_instructions_are_parts_of_the_users_message_in_the_words_of_the_protocol() -> None:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
    body, _ = change(
        Found("leading_system"), make_sent("responses", input=[user, {"role": "developer", "content": "b"}])
    )
    assert [part["type"] for part in body["input"][0]["content"]] == ["input_text", "input_text"]


def test_text_after_the_results_of_tools_moves_into_the_last_one() -> None:
    found = Found("no_user_after_tool")
    result = {"type": "tool_result", "tool_use_id": "t", "content": "seen"}
    more = {"type": "text", "text": "And?"}
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example"}}
    joined = {**result, "content": [{"type": "text", "text": "seen"}, more]}
    for turns in (
        [{"role": "user", "content": [result, more]}],
        [{"role": "user", "content": [result]}, {"role": "user", "content": "And?"}],
        [{"role": "user", "content": [result]}, {"role": "system", "content": [more]}],
    ):
        body, _ = change(found, make_sent("messages", messages=turns))
        assert body["messages"] == [{"role": "user", "content": [joined]}]
    for content in ([result, image], [result, more, image], [more]):
        untouched = make_sent("messages", messages=[{"role": "user", "content": content}])
        assert change(found, untouched)[0]["messages"] == untouched.turns
    output = {"type": "function_call_output", "call_id": "c", "output": "seen"}
    question = {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}
    body, _ = change(found, make_sent("responses", input=[output, question]))
    assert body["input"] == [{**output, "output": "seen\n\nAnd?"}]


def test_an_effort_alone_asks_for_thinking_too() -> None:
    body, losses = change(Found("no_effort"), make_sent("messages", output_config={"effort": "high"}))
    assert (body, losses) == ({"model": "m"}, ["/output_config"])


def test_neighbours_of_one_role_are_joined_in_the_words_of_their_protocol() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "d"}]},
    ]
    body, _ = change(Found("alternating_roles"), make_sent("responses", input=turns))
    kinds = [(turn["role"], [part["type"] for part in turn["content"]]) for turn in body["input"]]
    assert kinds == [("user", ["input_text"] * 2), ("assistant", ["output_text"] * 2)]


def test_several_complaints_of_one_error_are_all_found() -> None:
    line = "Invalid JSON payload received. Unknown name \"{}\" at 'generation_config': Cannot find field."
    message = "\n".join((line.format("newA"), line.format("newB"), line.format("maxOutputTokens")))
    request = make_sent("gemini", generationConfig={"newA": 1, "newB": 2, "maxOutputTokens": 3})
    found = find_rules(Complaint(400, make_holes(message)), request)
    assert found == (
        Found("extra_name", "/generationConfig/newA"),
        Found("extra_name", "/generationConfig/newB"),
    )


@pytest.mark.parametrize(
    "words",
    [
        "Validation: Unsupported parameter(s): thinking, reasoning_effort",
        "Unsupported parameter(s): `thinking`, 'reasoning_effort', `messages`, unknown.",
        "Unrecognized request arguments supplied: thinking, reasoning_effort",
    ],
)
def test_several_parameters_of_one_sentence_are_left_out(words: str) -> None:
    request = make_sent(thinking={"type": "enabled"}, reasoning_effort="high", messages=[])
    found = find_rules(Complaint(400, make_holes(words)), request)
    assert [each.path for each in found] == ["/thinking", "/reasoning_effort"]
    assert find_rules(Complaint(400, make_holes(f"{words} was what the user wrote")), request) == ()


def test_a_line_of_a_list_teaches_nothing_in_a_message_that_is_no_list() -> None:
    line = "Invalid JSON payload received. Unknown name \"newA\" at 'generation_config': Cannot find field."
    request = make_sent("gemini", generationConfig={"newA": 1})
    assert find_rules(Complaint(400, make_holes(f"{line}\n\n{line}")), request)
    for message in (f"The prompt is too long:\n{line}", f"{line}\nwas flagged", f"{line}\n{line}\nwas flagged"):
        assert find_rules(Complaint(400, make_holes(message)), request) == ()


@pytest.mark.parametrize(
    ("pointer", "path"),
    [
        ("#", "/foo"),
        ("#/messages/0", "/messages/*/foo"),
        ("#/messages/1", ""),
        ("#/metadata", ""),
        ("#/messages/0/content", ""),
    ],
)
def test_an_extraneous_key_is_left_out_where_the_pointer_says(pointer: str, path: str) -> None:
    message = {"role": "user", "content": "x", "foo": 1}
    request = make_sent("messages", foo=2, metadata={"foo": 3}, messages=[message, {"role": "user", "content": "y"}])
    words = f"Malformed input request: {pointer}: extraneous key [foo] is not permitted, please reformat your input"
    found = find_rules(Complaint(400, make_holes(f"{words} and try again.")), request)
    assert found == ((Found("extra_field", path),) if path else ())


def test_a_refused_effort_is_lowered_to_the_nearest_that_is_named_and_others_stay() -> None:
    words = "Unsupported value: '{}' is not supported with the 'm' model. Supported values are: 'low', and 'high'."
    [found] = find_rules(Complaint(400, words.format("xhigh")), make_sent(reasoning_effort="xhigh"))
    assert found == Found("effort_xhigh_as_high", "/reasoning_effort")
    assert change(found, make_sent(reasoning_effort="xhigh"))[0]["reasoning_effort"] == "high"
    assert change(found, make_sent(reasoning_effort="max"))[0]["reasoning_effort"] == "max"
    assert change(found, make_sent(reasoning_effort="low"))[0]["reasoning_effort"] == "low"
    assert find_rules(Complaint(400, words.format("minimal")), make_sent(reasoning_effort="minimal")) == ()
    assert find_rules(Complaint(400, words.format("xhigh")), make_sent(reasoning_effort="max")) == ()


def test_rules_are_applied_in_the_order_of_the_table_whichever_was_learnt_first() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    rules = [Found("alternating_roles"), Found("leading_system")]
    changed = apply_rules(make_sent(messages=turns), rules, Ledger())
    assert changed.turns == [*turns[:2], {"role": "user", "content": "<system>\nc\n</system>\n\nd"}]


def test_a_budget_stays_below_the_limit_of_the_reply() -> None:
    found = Found("thinking_budget")
    config = {"effort": "high", "format": {"type": "json"}}
    body, _ = change(found, make_sent("messages", thinking={"type": "adaptive"}, max_tokens=2000, output_config=config))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1999}
    assert body["output_config"] == {"format": {"type": "json"}}
    assert "thinking" not in change(found, make_sent("messages", thinking={"type": "adaptive"}, max_tokens=500))[0]


def test_the_mark_of_the_whole_request_moves_to_its_last_block() -> None:
    mark = {"type": "ephemeral"}
    found = Found("block_cache_mark", "/cache_control")
    body, _ = change(found, make_sent("messages", cache_control=mark, messages=[{"role": "user", "content": "x"}]))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": mark}]}],
    }
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    later, _ = change(found, make_sent("messages", cache_control=mark, messages=turns))
    assert [turn["content"] for turn in later["messages"]] == [
        [{"type": "text", "text": "x"}],
        [{"type": "text", "text": "y"}],
        [{"type": "text", "text": "z", "cache_control": mark}],
    ]
    blocks = [{"type": "text", "text": "x", "cache_control": mark}] * 4 + [{"type": "text", "text": "y"}]
    full = make_sent("messages", cache_control=mark, messages=[{"role": "user", "content": blocks}])
    assert change(found, full)[0]["messages"][0]["content"][-1] == {"type": "text", "text": "y"}


@pytest.mark.parametrize(
    ("protocol", "body", "scope"),
    [
        ("responses", {"detail": "Unsupported parameter: safety_identifier"}, RuleScope.PROVIDER),
        ("responses", {"error": {"message": "Unsupported parameter: safety_identifier"}}, RuleScope.MODEL),
        (
            "messages",
            {"error": {"message": "messages[1].role: unknown variant `system`, expected `user` or `assistant`"}},
            RuleScope.PROVIDER,
        ),
        ("messages", {"error": {"message": "System message must be at the beginning."}}, RuleScope.MODEL),
    ],
)
def test_what_a_whole_server_rejects_is_learnt_for_all_its_models(
    protocol: str, body: JsonObject, scope: RuleScope
) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    request = make_sent(protocol, safety_identifier="x", messages=turns)
    [found] = find_rules(read_complaint(400, msgspec.json.encode(body)), request)
    assert BY_ID[found.rule].scope is scope


def test_rules_have_names_of_their_own_and_a_source() -> None:
    assert len(BY_ID) == len(RULES)
    assert all(rule.source and (rule.edit or rule.quirk) for rule in RULES)


def test_fields_of_one_rule_are_left_out_in_one_pass() -> None:
    names = [f"f{number}" for number in range(100)]
    turns = [{"role": "user", "content": "x", "mark": {"inner": 1}}] * 2
    sent = Sent("chat", msgspec.json.encode({"model": "m", "messages": turns} | dict.fromkeys(names, 1)))
    pointers = [*(f"/{name}" for name in names), "/messages/*/mark", "/messages/*/mark/inner", "/unknown"]
    rules, ledger = [Found("forbidden_field", pointer) for pointer in pointers], Ledger()
    changed = apply_rules(sent, rules, ledger)
    one_by_one, others = sent, Ledger()
    for rule in rules:
        one_by_one = apply_rules(one_by_one, [rule], others)
    assert (
        changed.body
        == one_by_one.body
        == msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "x"}] * 2})
    )
    assert [loss.path for loss in ledger] == [loss.path for loss in others]


def test_leaving_out_many_fields_takes_linear_time() -> None:
    def make(size: int) -> tuple[Sent, list[Found]]:
        names = [f"f{number}" for number in range(size)]
        turns = [{"role": "user", "content": "x"}] * (20 * size)
        body = msgspec.json.encode({"model": "m", "messages": turns} | dict.fromkeys(names, 1))
        return Sent("chat", body), [Found("forbidden_field", f"/{name}") for name in names]

    assert_linear_function(lambda given: apply_rules(*given, Ledger()), make, 10)
