"""Hub requests in, bodies for Responses upstreams out."""

import msgspec
import pytest

from dragoman.translate.hub.caching import CacheMode, CachePlan
from dragoman.translate.hub.loss import LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import (
    Audio,
    Cache,
    Document,
    FileId,
    Function,
    Image,
    Inline,
    Link,
    Part,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from translate.protocols.responses.responses_bodies import (
    HI,
    TARGET,
    build_body,
    expect_refusal_at,
    find_losses,
    request_of,
)
from translate.protocols.responses.responses_kit import fixture, parse_body
from wire_json import JsonObject

FULL = msgspec.json.decode(fixture("request.json"))
PDF = Inline("application/pdf", "JVBERi0x")
PNG = Inline("image/png", "iVBORw0KGgo=")


def user(*parts: Part) -> Turn:
    return Turn(Role.USER, parts, "/messages/0")


def assistant(*parts: Part) -> Turn:
    return Turn(Role.ASSISTANT, parts, "/messages/1")


def items(request: Request, target: Target = TARGET) -> list[JsonObject]:
    value = build_body(request, target)["input"]
    assert isinstance(value, list)
    return value


def strip_volatile(value: object) -> object:
    """A request without what a rebuilt one may leave out: items' ids, nulls and defaults."""
    if isinstance(value, dict):
        kept = {key: strip_volatile(inner) for key, inner in value.items() if inner is not None}
        if kept.get("type") != "web_search_call":
            kept.pop("id", None)
            kept.pop("status", None)
        return kept
    return [strip_volatile(inner) for inner in value] if isinstance(value, list) else value


def test_its_own_request_comes_back_without_a_loss() -> None:
    expected = strip_volatile(FULL)
    assert isinstance(expected, dict)
    got = strip_volatile(build_body(parse_body(FULL)))
    assert isinstance(got, dict)
    assert find_losses(parse_body(FULL)) == []
    for item in expected["input"]:
        item.setdefault("type", "message")
    expected["input"][1]["content"][2]["detail"] = "auto"  # left out, it means this
    expected["input"][2]["summary"] = [{"type": "summary_text", "text": "one\n\ntwo"}]
    expected["input"][11]["content"] = [{"type": "input_text", "text": "Go on."}]
    expected["input"][3]["content"][0].pop("logprobs")
    assert got == {**expected, "model": "gpt-5.5"}


def test_nothing_is_stored_and_reasoning_is_requested_in_its_portable_form() -> None:
    body = build_body(request_of())
    assert (body["model"], body["store"], body["include"]) == ("gpt-5.5", False, ["reasoning.encrypted_content"])
    assert "include" not in build_body(request_of(), Target("gpt-4o", "openai", Profile(efforts=())))


def test_leading_system_text_becomes_the_instructions() -> None:
    system = Turn(Role.SYSTEM, (Text("One.", "/system/0"), Text("Two.", "/system/1")), "/system")
    body = build_body(request_of(system, HI))
    assert body["instructions"] == "One.\n\nTwo."
    assert body["input"] == [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]


BREAKPOINTS = Target("gpt-5.6", "openai", cache=CachePlan(CacheMode.AUTO, breakpoints=True))


def test_one_breakpoint_stands_at_the_end_of_the_instructions() -> None:
    cache = Cache("/k", "1h")
    system = Turn(Role.SYSTEM, (Text("One.", "/system/0"), Text("Two.", "/system/1")), "/system")
    marked = Turn(Role.USER, (Text("hi", "/m", cache=cache),), "/m")
    body = build_body(request_of(system, marked), BREAKPOINTS)
    assert "instructions" not in body
    first, second = body["input"]
    assert (first["role"], second["role"]) == ("developer", "user")
    assert first["content"] == [
        {"type": "input_text", "text": "One."},
        {"type": "input_text", "text": "Two.", "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    assert second["content"] == [{"type": "input_text", "text": "hi"}]
    assert find_losses(request_of(system, marked)) == []


def test_only_the_clients_own_mark_becomes_a_breakpoint_where_it_decides() -> None:
    client = Target("gpt-5.6", "openai", cache=CachePlan(CacheMode.CLIENT, breakpoints=True))
    for cache, count in ((None, 0), (Cache("/system/0/cache_control", "1h"), 1)):
        system = Turn(Role.SYSTEM, (Text("One.", "/system/0", cache=cache),), "/system")
        assert str(build_body(request_of(system, HI), client)).count("prompt_cache_breakpoint") == count


def test_models_without_breakpoints_get_instructions_whatever_is_marked() -> None:
    system = Turn(Role.SYSTEM, (Text("One.", "/system/0", cache=Cache("/system/0/cache_control", "1h")),), "/system")
    assert build_body(request_of(system, HI))["instructions"] == "One."
    assert find_losses(request_of(system, HI)) == []


def test_a_later_system_message_stays_where_it_stands() -> None:
    later = Turn(Role.SYSTEM, (Text("Now rhyme.", "/messages/2"),), "/messages/2")
    assert [item["role"] for item in items(request_of(HI, later, protocol="chat"))] == ["user", "system"]


def test_a_prefill_is_sent_as_history_and_recorded_for_clients_that_mean_one() -> None:
    prefill = assistant(Text("{", "/messages/1/content"))
    assert find_losses(request_of(HI, prefill)) == [("/messages/1", LossKind.APPROXIMATED)]
    assert find_losses(request_of(HI, prefill, protocol="gemini")) == [("/messages/1", LossKind.APPROXIMATED)]
    assert find_losses(request_of(HI, prefill, protocol="chat")) == []


def test_an_assistant_turn_becomes_items_in_its_own_order() -> None:
    request = request_of(
        HI,
        assistant(
            Text("Let me look.", "/a"),
            ToolCall("toolu_1", "look", '{"a":1}', "/b"),
            ToolCall("c2", "patch", "*** x", "/c", custom=True),
            Text("And more.", "/d"),
        ),
        user(ToolResult("toolu_1", (), "/e"), ToolResult("c2", (), "/f")),
    )
    assert items(request)[1:-2] == [
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


def test_only_messages_have_a_role() -> None:
    for item in items(parse_body(FULL)):
        assert ("role" in item) == (item["type"] == "message")


CALLS = [ToolCall(id, "look", "{}", f"/{id}") for id in ("a", "b", "c")]


def test_tool_results_become_outputs_of_their_kind() -> None:
    request = request_of(
        assistant(*CALLS),
        user(
            ToolResult("a", (Text("fine", "/x"),), "/r0"),
            ToolResult("b", (), "/r1", custom=True),
            ToolResult("c", (Text("see", "/y"), Image(PNG, "/z")), "/r2"),
            Text("and?", "/t"),
        ),
    )
    assert items(request)[3:] == [
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


def test_an_output_is_of_the_kind_of_its_call() -> None:
    call = ToolCall("a", "patch", "*** x", "/c", custom=True)
    request = request_of(HI, assistant(call), user(ToolResult("a", (Text("ok", "/x"),), "/r")), protocol="chat")
    assert items(request)[2]["type"] == "custom_tool_call_output"


def test_a_failed_tool_shows_it_in_its_text_and_is_never_incomplete() -> None:
    result = ToolResult("a", (Text("no such file", "/x"),), "/r", is_error=True)
    request = request_of(assistant(CALLS[0]), user(result))
    output = {"type": "function_call_output", "call_id": "a", "output": "[tool error] no such file"}
    assert items(request)[1:] == [output]
    assert find_losses(request) == [("/r/is_error", LossKind.APPROXIMATED)]


def test_a_result_looks_the_same_whatever_is_marked() -> None:
    cache = Cache("/r/cache_control")
    request = request_of(assistant(CALLS[0]), user(ToolResult("a", (Text("fine", "/x"),), "/r", cache=cache)))
    assert build_body(request)["input"][-1]["output"] == "fine"
    assert find_losses(request) == []


def test_a_call_without_a_result_gets_one_where_it_stands() -> None:
    request = request_of(HI, assistant(*CALLS[:2]), user(ToolResult("b", (Text("ok", "/x"),), "/r"), Text("Go", "/g")))
    assert [(item["type"], item.get("call_id")) for item in items(request)[1:]] == [
        ("function_call", "a"),
        ("function_call", "b"),
        ("function_call_output", "a"),
        ("function_call_output", "b"),
        ("message", None),
    ]
    assert find_losses(request) == [("/a", LossKind.INVENTED)]


def test_a_result_without_a_call_is_sent_as_text() -> None:
    request = request_of(HI, user(ToolResult("z", (Text("sunny", "/x"),), "/r")))
    (message,) = items(request)[1:]
    assert message["role"] == "user"
    assert [part["text"] for part in message["content"]] == ["[result of tool call z]", "sunny"]
    assert find_losses(request) == [("/r", LossKind.APPROXIMATED)]


def test_the_last_result_of_a_call_counts() -> None:
    results = [ToolResult("a", (Text(text, "/x"),), at) for text, at in (("old", "/r0"), ("new", "/r1"))]
    request = request_of(HI, assistant(CALLS[0]), user(*results))
    assert [item["output"] for item in items(request)[2:]] == ["new"]
    assert find_losses(request) == [("/r0", LossKind.DROPPED)]


def test_ids_that_every_step_uses_again_become_unique() -> None:
    step = (assistant(CALLS[0]), user(ToolResult("a", (Text("ok", "/x"),), "/r")))
    request = request_of(HI, *step, assistant(ToolCall("a", "look", "{}", "/a2")), user(ToolResult("a", (), "/r2")))
    assert [item["call_id"] for item in items(request)[1:]] == ["a", "a", "a-2", "a-2"]
    assert find_losses(request) == []


def test_breakpoints_where_there_is_no_place_for_them_are_no_loss() -> None:
    cache = Cache("/tools/0/cache_control")
    request = request_of(tools=(Function("f", "/tools/0", cache=cache), Function("g", "/tools/1")))
    assert find_losses(request) == []


def test_reasoning_returns_to_its_issuer_without_an_id() -> None:
    opaque = Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-x", "gpt-5.5")
    request = request_of(HI, assistant(Thinking("hm", "/t", opaque), Text("ok", "/u")), HI)
    assert items(request)[1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "gAAAA-x",
    }


def test_reasoning_that_showed_nothing_returns_with_an_empty_summary() -> None:
    opaque = Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-x")
    request = request_of(HI, assistant(Thinking("", "/t", opaque), Text("ok", "/u")), HI)
    assert items(request)[1] == {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA-x"}


@pytest.mark.parametrize(
    "opaque",
    [
        None,
        Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln"),
        Opaque("someone-else", OpaqueForm.ENCRYPTED, "gAAAA-x"),
        Opaque("openai", OpaqueForm.ENCRYPTED, "dgm1.broken"),
    ],
)
def test_reasoning_that_this_upstream_cannot_read_is_dropped_and_recorded(opaque: Opaque | None) -> None:
    request = request_of(HI, assistant(Thinking("hm", "/t", opaque), Text("ok", "/u")), HI)
    assert all(item["type"] == "message" for item in items(request))
    assert find_losses(request) == [("/t", LossKind.DROPPED)]


def test_media_go_out_as_data_or_as_addresses() -> None:
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
    assert find_losses(request) == []


def test_a_nameless_pdf_gets_a_name_and_plain_text_documents_become_text() -> None:
    request = request_of(user(Document(PDF, "/0"), Document("words", "/1", title="Notes")))
    assert find_losses(request) == [("/0", LossKind.INVENTED), ("/1", LossKind.APPROXIMATED)]
    assert items(request)[0]["content"][1] == {"type": "input_text", "text": "Notes\n\nwords"}


def test_another_vendors_file_and_audio_are_refused_but_chats_files_are_the_same_vendors() -> None:
    assert (
        expect_refusal_at(request_of(user(Image(FileId("file_1"), "/messages/0/content/0")))) == "/messages/0/content/0"
    )
    assert expect_refusal_at(request_of(user(Audio(Inline("audio/wav", "aa"), "/a")), protocol="chat")) == "/a"
    assert items(request_of(user(Document(FileId("file-1"), "/f")), protocol="chat"))[0]["content"] == [
        {"type": "input_file", "file_id": "file-1"}
    ]
