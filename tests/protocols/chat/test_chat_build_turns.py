"""Turns, thoughts, media and cache breakpoints as Chat writes them."""

import pytest

from dragoman.hub.loss import LossKind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.profile import Target
from dragoman.hub.request import (
    Cache,
    Document,
    FileId,
    Foreign,
    Function,
    Image,
    Inline,
    Link,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from protocols.chat.chat_building import (
    CALLS,
    LOCAL,
    OPENAI,
    PNG,
    STRICT,
    WIRE_CALLS,
    assistant,
    build_body,
    expect_refusal_at,
    losses,
    messages,
    request,
    result,
    system,
    tool,
    user,
)


def test_one_text_is_a_plain_string_and_more_are_parts() -> None:
    assert messages(user(Text("a"))) == [{"role": "user", "content": "a"}]
    assert messages(user(Text("a"), Image(PNG))) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}},
            ],
        }
    ]


def test_separate_blocks_of_instructions_and_of_the_assistant_are_joined_by_a_blank_line() -> None:
    assert messages(system(Text("a"), Text("b")), assistant(Text("c"), Text("d")), user(Text("e"))) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "assistant", "content": "c\n\nd"},
        {"role": "user", "content": "e"},
    ]


def test_the_developer_becomes_the_system_where_the_server_has_none() -> None:
    turn = system(Text("a"), role=Role.DEVELOPER)
    assert messages(turn) == [{"role": "developer", "content": "a"}]
    quirky = Target("m", "local", quirks=frozenset({"no_developer"}))
    assert messages(turn, target=quirky) == [{"role": "system", "content": "a"}]


def test_results_leave_the_users_turn_first_and_the_rest_follows() -> None:
    turns = assistant(Text("I look."), *CALLS), user(Text("and"), result("b", Text("2")), result("a", Text("1")))
    assert messages(*turns) == [
        {"role": "assistant", "content": "I look.", "tool_calls": WIRE_CALLS},
        tool("b", "2"),
        tool("a", "1"),
        {"role": "user", "content": "and"},
    ]


def test_calls_that_are_items_of_their_own_share_one_message() -> None:
    turns = (
        assistant(Text("I look.")),
        assistant(CALLS[0]),
        assistant(CALLS[1]),
        user(result("a", Text("1"))),
        user(result("b", Text("2"))),
        user(Text("go on")),
    )
    assert messages(*turns, protocol="responses") == [
        {"role": "assistant", "content": "I look.", "tool_calls": WIRE_CALLS},
        tool("a", "1"),
        tool("b", "2"),
        {"role": "user", "content": "go on"},
    ]


def test_a_result_that_comes_late_is_moved_up_to_its_call() -> None:
    turns = assistant(*CALLS), user(result("a", Text("1"))), assistant(Text("x")), user(result("b", Text("2")))
    expected = request(*turns, protocol="responses")
    body, lost = build_body(expected)
    assert body["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": WIRE_CALLS},
        tool("a", "1"),
        tool("b", "2"),
        {"role": "assistant", "content": "x"},
    ]
    assert lost == [("/r/b", LossKind.APPROXIMATED)]


def test_a_second_result_for_one_call_is_dropped() -> None:
    expected = request(assistant(CALLS[0]), user(result("a", Text("1")), result("a", Text("again"))))
    body, lost = build_body(expected)
    assert body["messages"] == [{"role": "assistant", "content": None, "tool_calls": WIRE_CALLS[:1]}, tool("a", "1")]
    assert lost == [("/r/a", LossKind.DROPPED)]


def test_a_result_without_its_call_is_sent_as_the_users_text() -> None:
    body, lost = build_body(request(user(result("lost", Text("42")), Text("so?"))))
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[result of tool call lost]"},
                {"type": "text", "text": "42"},
                {"type": "text", "text": "so?"},
            ],
        }
    ]
    assert lost == [("/r/lost", LossKind.APPROXIMATED)]


def test_an_error_is_described_in_the_text() -> None:
    expected = request(assistant(CALLS[0]), user(result("a", Text("no such file"), is_error=True)))
    body, lost = build_body(expected)
    assert body["messages"][1] == tool("a", "[tool error] no such file")
    assert lost == [("/r/a/is_error", LossKind.APPROXIMATED)]


def test_pictures_in_results_follow_all_results_as_one_user_message() -> None:
    shots = result("a", Text("shot:"), Image(PNG, "/i")), result("b", Text("2"))
    body, lost = build_body(request(assistant(*CALLS), user(*shots, Text("see"))))
    assert body["messages"][1:] == [
        tool("a", "shot:\n\n[image: see the user message that follows]"),
        tool("b", "2"),
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[image from the result of tool call a]"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}},
            ],
        },
        {"role": "user", "content": "see"},
    ]
    assert lost == [("/i", LossKind.APPROXIMATED)]


def test_an_empty_result_is_an_empty_string() -> None:
    assert messages(assistant(CALLS[0]), user(result("a")))[1] == tool("a", "")


def test_a_custom_call_keeps_its_raw_input() -> None:
    call = ToolCall("a", "patch", "*** Begin", custom=True)
    assert messages(assistant(call))[0]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    ]


def test_a_refusal_is_returned_as_one() -> None:
    assert messages(assistant(Refusal("No.")), user(Text("why?")))[0] == {
        "role": "assistant",
        "content": None,
        "refusal": "No.",
    }


SIGNED = Thinking("Hm.", "/t", Opaque("anthropic", Form.SIGNATURE, "c2ln"))


PLAIN = Thinking("Hm.", "/t")


DETAIL = Thinking("Hm.", "/t", Opaque("local", Form.DETAIL, '{"type":"reasoning.text","signature":"c2ln","index":0}'))


WANTS_REASONING = Target("r1", "local", quirks=frozenset({"replay_reasoning"}))


@pytest.mark.parametrize("thought", [SIGNED, PLAIN, DETAIL], ids=["signed", "plain", "detail"])
def test_openai_gets_no_reasoning(thought: Thinking) -> None:
    body, lost = build_body(request(assistant(thought, Text("Yes.")), user(Text("so?"))))
    assert body["messages"][0] == {"role": "assistant", "content": "Yes."}
    assert lost == [("/t", LossKind.DROPPED)]


def test_a_server_that_wants_its_reasoning_gets_the_text_and_never_anothers_signature() -> None:
    for thought, lost in ((PLAIN, []), (SIGNED, [("/t", LossKind.APPROXIMATED)])):
        body, recorded = build_body(request(assistant(thought, Text("Yes.")), user(Text("so?"))), WANTS_REASONING)
        assert body["messages"][0] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
        assert recorded == lost
    assert losses(request(assistant(PLAIN, Text("Yes.")), user(Text("so?"))), LOCAL) == [("/t", LossKind.DROPPED)]


def test_what_a_server_issued_is_returned_to_it() -> None:
    assert messages(assistant(DETAIL, Text("Yes.")), target=LOCAL)[0] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
        "reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0}],
    }


def test_an_assistant_turn_of_nothing_but_lost_reasoning_is_left_out() -> None:
    assert messages(user(Text("a")), assistant(SIGNED), user(Text("b"))) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_documents_go_out_as_files_and_an_absent_name_is_invented() -> None:
    named = Document(Inline("application/pdf", "cGRm"), "/d", title="a.pdf")
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"}
    assert messages(user(named))[0]["content"] == [{"type": "file", "file": file}]
    body, lost = build_body(request(user(Document(Inline("application/pdf", "cGRm"), "/d"))))
    assert body["messages"][0]["content"][0]["file"]["filename"] == "document.pdf"
    assert lost == [("/d", LossKind.INVENTED)]


def test_a_text_document_is_sent_as_text() -> None:
    body, lost = build_body(request(user(Document("words", "/d", title="Notes"))))
    assert body["messages"] == [{"role": "user", "content": "Notes\n\nwords"}]
    assert lost == [("/d", LossKind.APPROXIMATED)]


def test_linked_images_stay_links() -> None:
    part = messages(user(Image(Link("https://a.example/b.png"), detail="low")))[0]["content"]
    assert part == [{"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}}]


def test_what_chat_cannot_be_given_is_refused_by_name() -> None:
    assert expect_refusal_at(request(user(Document(Link("https://a.example/b.pdf"), "/d")))) == "/d"
    assert expect_refusal_at(request(user(Document(FileId("file_1"), "/d")))) == "/d"
    assert expect_refusal_at(request(user(Image(FileId("file_1"), "/d")))) == "/d"


def test_a_file_of_the_same_vendor_keeps_its_id() -> None:
    expected = request(user(Document(FileId("file-1"), "/d")), protocol="responses")
    for target in (OPENAI, LOCAL):
        content = [{"type": "file", "file": {"file_id": "file-1"}}]
        assert build_body(expected, target)[0]["messages"] == [{"role": "user", "content": content}]


def test_foreign_parts_are_dropped_by_name() -> None:
    expected = request(user(Text("a"), Foreign("search_result", {"x": 1}, "/f")))
    assert build_body(expected) == (
        {"model": "gpt-x", "messages": [{"role": "user", "content": "a"}]},
        [("/f", LossKind.DROPPED)],
    )


def test_breakpoints_stand_on_parts_and_lifetimes_are_fitted() -> None:
    expected = request(user(Text("a", cache=Cache("/k", "1h")), Image(PNG, cache=Cache("/k2"))))
    body, lost = build_body(expected)
    content = body["messages"][0]["content"]
    assert [part["prompt_cache_breakpoint"] for part in content] == [
        {"mode": "explicit", "ttl": "12h"},
        {"mode": "explicit"},
    ]
    assert lost == [("/k", LossKind.APPROXIMATED), ("/k2", LossKind.APPROXIMATED)]


def test_breakpoints_elsewhere_are_dropped() -> None:
    cache = Cache("/k", "5m")
    assert losses(request(system(Text("a", cache=cache)), user(Text("b")))) == [("/k", LossKind.DROPPED)]
    assert losses(request(tools=(Function("f", cache=cache),))) == [("/k", LossKind.DROPPED)]
    assert losses(request(assistant(CALLS[0]), user(ToolResult("a", (), cache=cache)))) == [("/k", LossKind.DROPPED)]
    assert losses(request(user(Text("a", cache=cache))), STRICT) == [("/k", LossKind.DROPPED)]
