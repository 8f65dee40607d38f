"""Requests towards Chat upstreams: what is meant comes in, the body and the ledger come out."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dragoman.hub.failure import Refused
from dragoman.hub.loss import How, Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.profile import Profile, Target
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
    Part,
    Pick,
    Reasoning,
    Refusal,
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
from dragoman.protocols.chat.build import build
from dragoman.protocols.chat.parse import parse

FIXTURE = (Path(__file__).parents[2] / "fixtures" / "chat" / "request.json").read_bytes()
OPENAI = Target("gpt-x", "openai")
LOCAL = Target("llama", "local")
STRICT = Target("llama", "local", quirks=frozenset({"plain"}))
PNG = Inline("image/png", "aW1n")

Wire = dict[str, object]


def user(*parts: Part) -> Turn:
    return Turn(Role.USER, parts, "/u")


def assistant(*parts: Part) -> Turn:
    return Turn(Role.ASSISTANT, parts, "/a")


def system(*parts: Part, role: Role = Role.SYSTEM) -> Turn:
    return Turn(role, parts, "/s")


def request(*turns: Turn, protocol: str = "messages", **fields: object) -> Request:
    return msgspec.structs.replace(Request(protocol, "asked", turns or (user(Text("hi")),)), **fields)


def built(meant: Request, target: Target = OPENAI) -> tuple[Wire, list[tuple[str, How]]]:
    ledger = Ledger()
    body = msgspec.json.decode(build(meant, target, ledger))
    return body, [(loss.path, loss.how) for loss in ledger]


def messages(*turns: Turn, target: Target = OPENAI, protocol: str = "messages") -> list[Wire]:
    body, _ = built(request(*turns, protocol=protocol), target)
    return body["messages"]  # type: ignore[return-value]


def losses(meant: Request, target: Target = OPENAI) -> list[tuple[str, How]]:
    return built(meant, target)[1]


def refused_at(meant: Request, target: Target = OPENAI) -> str | None:
    with pytest.raises(Refused) as caught:
        built(meant, target)
    return caught.value.failure.at


# Turns


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


def test_the_developer_becomes_the_system_where_the_server_knows_none() -> None:
    turn = system(Text("a"), role=Role.DEVELOPER)
    assert messages(turn) == [{"role": "developer", "content": "a"}]
    quirky = Target("m", "local", quirks=frozenset({"no_developer"}))
    assert messages(turn, target=quirky) == [{"role": "system", "content": "a"}]


CALLS = (ToolCall("a", "read", '{"p":1}', "/c0"), ToolCall("b", "list", "", "/c1"))
WIRE_CALLS = [
    {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"p":1}'}},
    {"id": "b", "type": "function", "function": {"name": "list", "arguments": "{}"}},
]


def result(call_id: str, *parts: Text | Image | Document, is_error: bool = False) -> ToolResult:
    return ToolResult(call_id, parts, f"/r/{call_id}", is_error=is_error)


def tool(call_id: str, content: str) -> Wire:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


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
    meant = request(*turns, protocol="responses")
    body, lost = built(meant)
    assert body["messages"] == [
        {"role": "assistant", "content": None, "tool_calls": WIRE_CALLS},
        tool("a", "1"),
        tool("b", "2"),
        {"role": "assistant", "content": "x"},
    ]
    assert lost == [("/r/b", How.APPROXIMATED)]


def test_a_second_result_for_one_call_is_dropped() -> None:
    meant = request(assistant(CALLS[0]), user(result("a", Text("1")), result("a", Text("again"))))
    body, lost = built(meant)
    assert body["messages"] == [{"role": "assistant", "content": None, "tool_calls": WIRE_CALLS[:1]}, tool("a", "1")]
    assert lost == [("/r/a", How.DROPPED)]


def test_a_result_without_its_call_is_told_by_the_user() -> None:
    body, lost = built(request(user(result("lost", Text("42")), Text("so?"))))
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
    assert lost == [("/r/lost", How.APPROXIMATED)]


def test_an_error_is_said_in_words() -> None:
    meant = request(assistant(CALLS[0]), user(result("a", Text("no such file"), is_error=True)))
    body, lost = built(meant)
    assert body["messages"][1] == tool("a", "[tool error] no such file")  # type: ignore[index]
    assert lost == [("/r/a/is_error", How.APPROXIMATED)]


def test_pictures_in_results_follow_all_results_as_one_user_message() -> None:
    shots = result("a", Text("shot:"), Image(PNG, "/i")), result("b", Text("2"))
    body, lost = built(request(assistant(*CALLS), user(*shots, Text("see"))))
    assert body["messages"][1:] == [  # type: ignore[index]
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
    assert lost == [("/i", How.APPROXIMATED)]


def test_an_empty_result_is_an_empty_string() -> None:
    assert messages(assistant(CALLS[0]), user(result("a")))[1] == tool("a", "")


def test_a_custom_call_keeps_its_raw_input() -> None:
    call = ToolCall("a", "patch", "*** Begin", custom=True)
    assert messages(assistant(call))[0]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    ]


def test_a_refusal_goes_back_as_one() -> None:
    assert messages(assistant(Refusal("No.")), user(Text("why?")))[0] == {
        "role": "assistant",
        "content": None,
        "refusal": "No.",
    }


# Thoughts

SIGNED = Thinking("Hm.", "/t", Opaque("anthropic", Form.SIGNATURE, "c2ln"))
PLAIN = Thinking("Hm.", "/t")
DETAIL = Thinking("Hm.", "/t", Opaque("local", Form.DETAIL, '{"type":"reasoning.text","signature":"c2ln","index":0}'))
WANTS_REASONING = Target("r1", "local", quirks=frozenset({"replay_reasoning"}))


@pytest.mark.parametrize("thought", [SIGNED, PLAIN, DETAIL], ids=["signed", "plain", "detail"])
def test_openai_gets_no_thoughts(thought: Thinking) -> None:
    body, lost = built(request(assistant(thought, Text("Yes.")), user(Text("so?"))))
    assert body["messages"][0] == {"role": "assistant", "content": "Yes."}  # type: ignore[index]
    assert lost == [("/t", How.DROPPED)]


def test_a_server_that_wants_its_reasoning_gets_the_text_and_never_anothers_signature() -> None:
    for thought, lost in ((PLAIN, []), (SIGNED, [("/t", How.APPROXIMATED)])):
        body, told = built(request(assistant(thought, Text("Yes.")), user(Text("so?"))), WANTS_REASONING)
        assert body["messages"][0] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}  # type: ignore[index]
        assert told == lost
    assert losses(request(assistant(PLAIN, Text("Yes.")), user(Text("so?"))), LOCAL) == [("/t", How.DROPPED)]


def test_what_a_server_issued_goes_back_to_it() -> None:
    assert messages(assistant(DETAIL, Text("Yes.")), target=LOCAL)[0] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
        "reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0}],
    }


def test_an_assistant_turn_of_nothing_but_lost_thoughts_is_left_out() -> None:
    assert messages(user(Text("a")), assistant(SIGNED), user(Text("b"))) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


# Media


def test_documents_go_out_as_files_and_an_absent_name_is_invented() -> None:
    named = Document(Inline("application/pdf", "cGRm"), "/d", title="a.pdf")
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"}
    assert messages(user(named))[0]["content"] == [{"type": "file", "file": file}]
    body, lost = built(request(user(Document(Inline("application/pdf", "cGRm"), "/d"))))
    assert body["messages"][0]["content"][0]["file"]["filename"] == "document.pdf"  # type: ignore[index]
    assert lost == [("/d", How.INVENTED)]


def test_a_text_document_is_told_as_text() -> None:
    body, lost = built(request(user(Document("words", "/d", title="Notes"))))
    assert body["messages"] == [{"role": "user", "content": "Notes\n\nwords"}]
    assert lost == [("/d", How.APPROXIMATED)]


def test_linked_images_stay_links() -> None:
    part = messages(user(Image(Link("https://a.example/b.png"), detail="low")))[0]["content"]
    assert part == [{"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}}]


def test_what_chat_cannot_be_given_is_refused_by_name() -> None:
    assert refused_at(request(user(Document(Link("https://a.example/b.pdf"), "/d")))) == "/d"
    assert refused_at(request(user(Document(FileId("file_1"), "/d")))) == "/d"
    assert refused_at(request(user(Image(FileId("file_1"), "/d")))) == "/d"


def test_a_file_of_the_same_vendor_keeps_its_id() -> None:
    meant = request(user(Document(FileId("file-1"), "/d")), protocol="responses")
    for target in (OPENAI, LOCAL):
        content = [{"type": "file", "file": {"file_id": "file-1"}}]
        assert built(meant, target)[0]["messages"] == [{"role": "user", "content": content}]


def test_foreign_parts_are_dropped_by_name() -> None:
    meant = request(user(Text("a"), Foreign("search_result", {"x": 1}, "/f")))
    assert built(meant) == ({"model": "gpt-x", "messages": [{"role": "user", "content": "a"}]}, [("/f", How.DROPPED)])


# Caches


def test_breakpoints_stand_on_parts_and_lifetimes_are_fitted() -> None:
    meant = request(user(Text("a", cache=Cache("/k", "1h")), Image(PNG, cache=Cache("/k2"))))
    body, lost = built(meant)
    content = body["messages"][0]["content"]  # type: ignore[index]
    assert [part["prompt_cache_breakpoint"] for part in content] == [
        {"mode": "explicit", "ttl": "12h"},
        {"mode": "explicit"},
    ]
    assert lost == [("/k", How.APPROXIMATED), ("/k2", How.APPROXIMATED)]


def test_breakpoints_elsewhere_are_dropped() -> None:
    cache = Cache("/k", "5m")
    assert losses(request(system(Text("a", cache=cache)), user(Text("b")))) == [("/k", How.DROPPED)]
    assert losses(request(tools=(Function("f", cache=cache),))) == [("/k", How.DROPPED)]
    assert losses(request(assistant(CALLS[0]), user(ToolResult("a", (), cache=cache)))) == [("/k", How.DROPPED)]
    assert losses(request(user(Text("a", cache=cache))), STRICT) == [("/k", How.DROPPED)]


# Tools

F = Function("f", "/tools/0", description="does", parameters={"type": "object"}, strict=True)
C = Custom("c", "/tools/1", description="writes", grammar=Grammar("lark", "start: x"))


def test_functions_and_custom_tools_are_nested() -> None:
    body, lost = built(request(tools=(F, C), parallel=False))
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "does", "parameters": {"type": "object"}, "strict": True},
        },
        {
            "type": "custom",
            "custom": {
                "name": "c",
                "description": "writes",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: x"}},
            },
        },
    ]
    assert body["parallel_tool_calls"] is False
    assert lost == []


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        (ToolChoice(Pick.AUTO, "/t"), "auto"),
        (ToolChoice(Pick.NONE, "/t"), "none"),
        (ToolChoice(Pick.REQUIRED, "/t"), "required"),
        (ToolChoice(Pick.NAMED, "/t", name="f"), {"type": "function", "function": {"name": "f"}}),
        (ToolChoice(Pick.NAMED, "/t", name="c", custom=True), {"type": "custom", "custom": {"name": "c"}}),
        (
            ToolChoice(Pick.REQUIRED, "/t", allowed=("f", "c")),
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [
                        {"type": "function", "function": {"name": "f"}},
                        {"type": "custom", "custom": {"name": "c"}},
                    ],
                },
            },
        ),
    ],
)
def test_each_choice_is_said(choice: ToolChoice, wire: object) -> None:
    assert built(request(tools=(F, C), tool_choice=choice))[0]["tool_choice"] == wire


def test_a_choice_without_tools_is_left_out_or_refused() -> None:
    assert "tool_choice" not in built(request(tool_choice=ToolChoice(Pick.AUTO, "/t")))[0]
    assert refused_at(request(tool_choice=ToolChoice(Pick.REQUIRED, "/t"))) == "/t"


def test_a_hosted_tool_beside_others_is_dropped_and_else_refused() -> None:
    search = Hosted("web_search", {}, "/tools/9")
    body, lost = built(request(tools=(F, search)))
    assert len(body["tools"]) == 1  # type: ignore[arg-type]
    assert lost == [("/tools/9", How.DROPPED)]
    assert refused_at(request(tools=(search,))) == "/tools/9"
    forced = ToolChoice(Pick.NAMED, "/t", hosted="web_search")
    assert refused_at(request(tools=(F, search), tool_choice=forced)) == "/tools/9"


def test_a_deferred_tool_is_offered_at_once() -> None:
    meant = request(tools=(msgspec.structs.replace(F, deferred=True),))
    assert losses(meant) == [("/tools/0/defer_loading", How.APPROXIMATED)]


# Settings


def test_the_cap_has_the_name_that_the_server_knows() -> None:
    assert built(request(max_tokens=9))[0]["max_completion_tokens"] == 9
    older = Target("m", "local", quirks=frozenset({"max_tokens"}))
    assert built(request(max_tokens=9), older)[0]["max_tokens"] == 9


def test_a_stream_is_always_asked_for_its_usage() -> None:
    body, _ = built(request(stream=True, include_usage=False))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in built(request())[0]


def test_settings_that_chat_lacks_are_dropped_by_name() -> None:
    meant = request(top_k=5, max_tool_calls=2, where={"top_k": "/generation/top_k"})
    assert losses(meant) == [("/generation/top_k", How.DROPPED), ("/max_tool_calls", How.DROPPED)]


def test_a_model_without_sampling_gets_none() -> None:
    fixed = Target("o9", "openai", Profile(sampling=False))
    body, lost = built(request(temperature=0.5, top_p=0.9), fixed)
    assert body.keys() == {"model", "messages"}
    assert lost == [("/temperature", How.DROPPED), ("/top_p", How.DROPPED)]


def test_more_answers_than_one_are_refused_to_other_protocols() -> None:
    assert refused_at(request(n=2)) == "/n"


VENDORS = {
    "verbosity": "low",
    "cache_key": "k",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "service_tier": "flex",
}


def test_a_server_that_refuses_unknown_fields_is_spared_openais_own() -> None:
    meant = request(protocol="responses", **VENDORS)
    body, lost = built(meant)
    assert body["prompt_cache_key"] == "k"
    assert {key: body[key] for key in ("verbosity", "safety_identifier", "metadata", "service_tier")} == {
        key: VENDORS[key] for key in ("verbosity", "safety_identifier", "metadata", "service_tier")
    }
    assert lost == []
    assert built(meant, LOCAL)[1] == []
    body, lost = built(meant, STRICT)
    assert body.keys() == {"model", "messages"}
    assert {path for path, _ in lost} == {"/" + key for key in VENDORS}


def test_an_end_user_of_another_vendor_is_nearly_the_same() -> None:
    body, lost = built(request(user="someone", where={"user": "/metadata/user_id"}))
    assert body["user"] == "someone"
    assert lost == [("/metadata/user_id", How.APPROXIMATED)]


def test_openai_takes_four_stop_sequences() -> None:
    meant = request(stop=("a", "b", "c", "d", "e"), where={"stop": "/stop_sequences"})
    body, lost = built(meant)
    assert body["stop"] == ["a", "b", "c", "d"]
    assert lost == [("/stop_sequences", How.DROPPED)]
    assert built(meant, LOCAL)[0]["stop"] == ["a", "b", "c", "d", "e"]


def test_a_schema_without_a_name_gets_one() -> None:
    meant = request(format=Format(Shape.SCHEMA, "/format", schema={"type": "object"}))
    body, lost = built(meant)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": {"type": "object"}},
    }
    assert lost == [("/format", How.INVENTED)]


def test_json_mode_is_asked_for() -> None:
    assert built(request(format=Format(Shape.JSON, "/format")))[0]["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("reasoning", "efforts", "effort", "lost"),
    [
        (Reasoning("/e", effort="high"), ("low", "high"), "high", []),
        (Reasoning("/e", effort="max"), ("low", "high"), "high", [("/e", How.APPROXIMATED)]),
        (Reasoning("/e", effort="minimal"), ("low", "high"), "low", [("/e", How.APPROXIMATED)]),
        (Reasoning("/e", effort="minimal"), ("none", "low"), "low", [("/e", How.APPROXIMATED)]),
        (Reasoning("/e", effort="medium"), ("low", "high"), "low", [("/e", How.APPROXIMATED)]),
        (Reasoning("/e", effort="high"), (), None, [("/e", How.DROPPED)]),
        (Reasoning("/e", budget=2000, budget_at="/b"), ("low", "medium"), "medium", [("/b", How.APPROXIMATED)]),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), ("none", "low"), "none", []),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), ("low",), "low", [("/s", How.APPROXIMATED)]),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), (), None, []),
        (Reasoning("/e", switch=Switch.ADAPTIVE, switch_at="/s"), ("low",), None, [("/s", How.APPROXIMATED)]),
        (Reasoning("/e", effort="low", show="auto", show_at="/v"), ("low",), "low", [("/v", How.DROPPED)]),
    ],
)
def test_effort_is_fitted_to_the_model(
    reasoning: Reasoning, efforts: tuple[str, ...], effort: str | None, lost: list[tuple[str, How]]
) -> None:
    target = Target("gpt-x", "openai", Profile(efforts=efforts))
    body, told = built(request(protocol="responses", reasoning=reasoning), target)
    assert body.get("reasoning_effort") == effort
    assert told == lost


def test_openais_chat_knows_no_maximal_effort() -> None:
    assert built(request(reasoning=Reasoning("/e", effort="max")))[0]["reasoning_effort"] == "xhigh"


def test_a_prefill_of_another_vendor_is_only_history() -> None:
    turns = user(Text("a")), assistant(Text("The answer is"))
    assert losses(request(*turns)) == [("/a", How.APPROXIMATED)]
    assert losses(request(*turns, protocol="responses")) == []


# Chat to Chat


def test_a_chat_clients_request_goes_out_as_it_came_in() -> None:
    meant = parse(FIXTURE, Ledger())
    ledger = Ledger()
    body = build(meant, Target("gpt-x", "openai"), ledger)
    assert list(ledger) == []
    wire, original = msgspec.json.decode(body), msgspec.json.decode(FIXTURE)
    del original["stream_options"]["include_obfuscation"]
    original["messages"][6] = {"role": "assistant", "content": "Done."}
    original["messages"][1]["content"][0]["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "30m"}
    assert wire == original


def leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    items: list[tuple[object, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    if not items:
        yield path
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def without(body: Wire, path: tuple[object, ...]) -> Wire:
    shorter = copy.deepcopy(body)
    holder: object = shorter
    for key in path[:-1]:
        holder = holder[key]  # type: ignore[index]
    del holder[path[-1]]  # type: ignore[attr-defined]
    return shorter


# What says nothing: defaults written out, types that a missing one means, and what the gateway asks for anyway.
SILENT = {"include_obfuscation", "refusal", "annotations", "mode", "type", "include_usage"}


@pytest.mark.parametrize("protocol", ["chat", "elsewhere"])
@pytest.mark.parametrize("issuer", ["openai", "local"])
def test_no_leaf_vanishes_quietly(protocol: str, issuer: str) -> None:
    original = msgspec.json.decode(FIXTURE)
    if protocol != "chat":
        del original["messages"][2]["content"][4]  # a file id, which is refused
        del original["top_logprobs"]  # which implies logprobs

    def outcome(body: Wire) -> tuple[bytes, list[str]]:
        ledger = Ledger()
        try:
            meant = msgspec.structs.replace(parse(msgspec.json.encode(body), ledger), protocol=protocol)
            return build(meant, Target("up", issuer), ledger), [loss.path for loss in ledger]
        except Refused as refused:
            return b"refused", [str(refused.failure.at)]

    wire, named = outcome(original)
    assert wire != b"refused"
    vanished = [path for path in leaves(original) if outcome(without(original, path))[0] == wire]
    quiet = [
        path
        for path in vanished
        if path[-1] not in SILENT and not any("/".join(map(str, ("", *path))).startswith(loss) for loss in named)
    ]
    # An assistant's null content beside its calls says nothing either.
    assert quiet == [("messages", 3, "content")]


def test_ids_that_every_step_uses_again_still_find_their_results() -> None:
    steps = [turn for n in "12" for turn in (assistant(CALLS[0]), user(result("a", Text(n))))]
    body, lost = built(request(*steps))
    assert [message.get("content") for message in body["messages"]] == [None, "1", None, "2"]  # type: ignore[attr-defined]
    assert lost == []


def test_a_reasoning_item_of_responses_has_no_place_in_chat() -> None:
    item = Thinking("", "/t", Opaque("local", Form.ENCRYPTED, "ZW5j"))
    body, lost = built(request(assistant(item, Text("Yes.")), user(Text("so?")), protocol="responses"), LOCAL)
    assert body["messages"][0] == {"role": "assistant", "content": "Yes."}  # type: ignore[index]
    assert lost == [("/t", How.DROPPED)]


def test_a_long_history_of_tools_is_built_in_linear_time() -> None:
    def seconds(steps: int) -> float:
        turns = [
            turn
            for n in range(steps)
            for turn in (
                assistant(ToolCall(f"c{n}", "f", "{}")),
                user(ToolResult(f"c{n}", (Text("x"),))),
            )
        ]
        meant = request(*turns)
        start = time.process_time()
        build(meant, OPENAI, Ledger())
        return time.process_time() - start

    short = min(seconds(300) for _ in range(3))
    long = min(seconds(2400) for _ in range(3))
    assert long <= 2 * 8 * max(short, 0.002)
