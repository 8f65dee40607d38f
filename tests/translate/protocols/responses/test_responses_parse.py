"""Requests of Responses clients in, hub requests out."""

import msgspec
from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from dragoman.translate.hub.request import (
    Cache,
    Document,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from narrowing import expect, expect_all
from translate.protocols.responses.responses_kit import fixture, parse_body

FULL = msgspec.json.decode(fixture("request.json"))


def of(*items: object, **fields: object) -> Request:
    return parse_body({"model": "m", "input": list(items), **fields})


def test_a_string_is_one_user_turn() -> None:
    assert parse_body({"model": "m", "input": "hi"}).turns == (Turn(Role.USER, (Text("hi", "/input"),), "/input"),)


def test_instructions_lead_as_a_system_turn() -> None:
    turns = parse_body({"model": "m", "input": "hi", "instructions": "Be brief."}).turns
    assert turns[0] == Turn(Role.SYSTEM, (Text("Be brief.", "/instructions"),), "/instructions")


def test_every_kind_of_turn_is_read_in_order() -> None:
    turns = parse_body(FULL).turns
    assert [turn.role for turn in turns] == [
        *(Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT, Role.USER, Role.USER),
        *(Role.USER, Role.ASSISTANT, Role.USER),
    ]
    assert [type(part) for part in turns[3].parts] == [Thinking, Text, ToolCall, ToolCall, ToolCall]


def test_images_and_files_are_read_from_data_and_from_addresses() -> None:
    parts = parse_body(FULL).turns[2].parts
    at = "/input/1/content"
    assert parts == (
        Text("What is this?", f"{at}/0"),
        Image(Inline("image/png", "iVBORw0KGgo="), f"{at}/1", detail="high", detail_at=f"{at}/1/detail"),
        Image(Link("https://pictures.example/1.png"), f"{at}/2"),
        Document(Inline("application/pdf", "JVBERi0x"), f"{at}/3", title="a.pdf"),
        Document(Link("https://files.example/a.pdf"), f"{at}/4"),
    )


def test_file_ids_and_bare_base64_are_read() -> None:
    content = [
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "file_id": "file-2"},
        {"type": "input_file", "file_data": "aGk=", "filename": "note.txt"},
    ]
    parts = of({"role": "user", "content": content}).turns[0].parts
    sources = [part.source for part in parts if isinstance(part, Image | Document)]
    assert sources == [FileId("file-1"), FileId("file-2"), Inline("text/plain", "aGk=")]


def test_a_cache_breakpoint_is_read_with_its_time_to_live() -> None:
    text = parse_body(FULL).turns[1].parts[0]
    assert isinstance(text, Text)
    assert text.cache == Cache("/input/0/content/0/prompt_cache_breakpoint", "12h")


def test_reasoning_is_read_with_its_vendors_own_opaque_value() -> None:
    thought = parse_body(FULL).turns[3].parts[0]
    assert thought == Thinking("one\n\ntwo", "/input/2", Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-native"))


def test_an_envelope_of_ours_is_opened_and_its_text_wins_over_the_summary() -> None:
    opaque = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln", "claude-x")
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "tidied"}],
        "encrypted_content": encode_envelope(opaque, "the very words"),
    }
    thought = of(item, {"role": "assistant", "content": "x"}).turns[0].parts[0]
    assert isinstance(thought, Thinking)
    assert (thought.text, thought.opaque) == ("the very words", replace(opaque, text="the very words"))


def test_raw_reasoning_content_is_read_as_raw() -> None:
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert of(item).turns[0].parts == (Thinking("hm", "/input/0", raw=True),)


def test_calls_keep_id_name_namespace_and_kind() -> None:
    calls = [part for part in parse_body(FULL).turns[3].parts if isinstance(part, ToolCall)]
    assert [(call.id, call.name, call.arguments, call.custom, call.namespace) for call in calls] == [
        ("call_1", "look", '{"where":"here"}', False, None),
        ("call_2", "apply_patch", "*** Begin Patch", True, None),
        ("call_3", "wait", '{"ids":[1]}', False, "agents"),
    ]


def test_object_valued_and_empty_arguments_are_accepted() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f"}
    calls = of({**call, "arguments": {"x": 1}}, {**call, "call_id": "b", "arguments": ""}).turns[0].parts
    assert [call.arguments for call in expect_all(ToolCall, calls)] == ['{"x":1}', "{}"]


def test_outputs_hold_text_images_or_nothing() -> None:
    results = [part for turn in parse_body(FULL).turns for part in turn.parts if isinstance(part, ToolResult)]
    assert [(result.call_id, result.custom, [type(part) for part in result.content]) for result in results] == [
        ("call_1", False, [Text, Image]),
        ("call_2", True, [Text]),
        ("call_3", False, [Text]),
    ]
    nothing = of({"type": "function_call_output", "call_id": "a", "output": ""}).turns[0].parts[0]
    assert expect(ToolResult, nothing).content == ()


def test_of_two_outputs_of_one_call_the_last_counts_in_the_place_of_the_first() -> None:
    ledger = Ledger()
    output = {"type": "function_call_output", "call_id": "a", "output": "old"}
    items = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        *(output, {"role": "user", "content": "go on"}, {**output, "output": "new"}),
    ]
    turns = parse_body({"model": "m", "input": items}, ledger).turns
    assert [turn.role for turn in turns] == [Role.ASSISTANT, Role.USER, Role.USER]
    assert expect(ToolResult, turns[1].parts[0]).content == (Text("new", "/input/3/output"),)
    assert [(loss.path, loss.how) for loss in ledger] == [("/input/1", LossKind.DROPPED)]


def test_hosted_activity_in_history_is_kept_for_its_own_protocol() -> None:
    part = parse_body(FULL).turns[7].parts[0]
    assert part == Foreign("web_search_call", FULL["input"][10], "/input/10")


def test_unknown_parts_and_items_are_kept_and_cost_no_400() -> None:
    smell = {"type": "input_smell", "smell": "rose"}
    turns = of({"role": "user", "content": [smell]}, {"type": "hologram", "x": 1}).turns
    assert turns[0].parts == (Foreign("input_smell", smell, "/input/0/content/0"),)
    assert turns[1].parts == (Foreign("hologram", {"type": "hologram", "x": 1}, "/input/1"),)


def test_a_refusal_and_plain_string_content_of_the_assistant_are_read() -> None:
    turns = of(
        {"role": "assistant", "content": "Hello."},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ).turns
    assert turns == (
        Turn(Role.ASSISTANT, (Text("Hello.", "/input/0/content"), Refusal("No.", "/input/1/content/0")), "/input/0"),
    )
