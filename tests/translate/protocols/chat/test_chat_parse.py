"""Chat requests as clients write them: bytes in, what they mean out."""

from pathlib import Path

import msgspec
import pytest

from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from dragoman.translate.hub.request import (
    Audio,
    Cache,
    Custom,
    Document,
    FileId,
    Foreign,
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
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.protocols.chat.parse import parse, read_call
from tables import each_row

FIXTURE = (Path(__file__).parents[3] / "fixtures" / "chat" / "request.json").read_bytes()
SIGNED = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2lnbmF0dXJl", "claude", "Hm.")


def read(**fields: object) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    return parse(msgspec.json.encode(body), Ledger())


def parts(content: object, role: str = "user", **more: object) -> tuple[Part, ...]:
    (turn,) = read(messages=[{"role": role, "content": content, **more}]).turns
    return turn.parts


def expect_refusal(body: object) -> tuple[str | None, str]:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(RequestError) as caught:
        parse(data, Ledger())
    assert caught.value.failure.kind is Kind.BAD_REQUEST
    return caught.value.failure.at, caught.value.failure.message


def test_the_whole_conversation_keeps_its_order() -> None:
    request = parse(FIXTURE, Ledger())
    assert [turn.role for turn in request.turns] == [
        Role.SYSTEM,
        Role.DEVELOPER,
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
    ]
    assert request.turns[0] == Turn(Role.SYSTEM, (Text("Be brief.", "/messages/0/content"),), "/messages/0")
    assert request.turns[1].parts == (
        Text("Rules", "/messages/1/content/0", cache=Cache("/messages/1/content/0/prompt_cache_breakpoint", "30m")),
    )
    assert request.turns[1].ext == {"name": "ops"}


def test_every_kind_of_part_is_read() -> None:
    at = "/messages/2/content/"
    assert parse(FIXTURE, Ledger()).turns[2].parts == (
        Text("Look", at + "0", ext={"mood": "curious"}),
        Image(Inline("image/png", "iVBORw0KGgo="), at + "1", detail="high", detail_at=at + "1/image_url/detail"),
        Image(Link("https://pictures.example/a.png"), at + "2"),
        Document(Inline("application/pdf", "JVBERi0="), at + "3", title="a.pdf"),
        Document(FileId("file-1"), at + "4"),
        Audio(Inline("audio/wav", "UklGRg=="), at + "5"),
        Foreign("hologram", {"type": "hologram", "beam": 3}, at + "6"),
    )


def test_calls_and_results_are_read() -> None:
    turns = parse(FIXTURE, Ledger()).turns
    assert turns[3].parts == (
        Thinking("I must read.", "/messages/3/reasoning_content"),
        ToolCall(
            "call_a",
            "read",
            '{"path":"a"}',
            "/messages/3/tool_calls/0",
            ext={"extra_content": {"google": {"thought_signature": "c2ln"}}},
        ),
        ToolCall("call_b", "patch", "*** Begin", "/messages/3/tool_calls/1", custom=True),
    )
    assert turns[4].parts == (ToolResult("call_a", (Text("text of a", "/messages/4/content"),), "/messages/4"),)
    assert [part.custom for turn in turns[4:6] for part in turn.parts if isinstance(part, ToolResult)] == [False, True]


def test_what_an_sdk_adds_to_its_own_message_is_no_field() -> None:
    assert parse(FIXTURE, Ledger()).turns[6].ext == {}


def test_tools_and_the_choice_are_read() -> None:
    request = parse(FIXTURE, Ledger())
    assert request.tools == (
        Function(
            "read",
            "/tools/0",
            description="Reads",
            parameters={"type": "object", "properties": {"path": {"type": "string"}}},
            strict=True,
            fields_at="/tools/0/function",
        ),
        Custom(
            "patch",
            "/tools/1",
            description="Patches",
            grammar=Grammar("lark", 'start: "x"'),
            fields_at="/tools/1/custom",
        ),
    )
    assert request.tool_choice == ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("read", "patch"))


def test_settings_are_read_and_the_rest_is_kept() -> None:
    request = parse(FIXTURE, Ledger())
    assert (request.protocol, request.model) == ("chat", "gpt-x")
    assert (request.stream, request.extras.include_usage) == (True, True)
    sampling, attribution = request.sampling, request.attribution
    assert (request.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (500, 0.5, 0.9, 7)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.1, 0.2)
    assert (sampling.stop, sampling.logprobs, sampling.top_logprobs) == (("END", "FIN"), True, 2)
    assert request.reasoning == Reasoning("/reasoning_effort", effort="high")
    assert request.format is not None
    assert (request.format.shape, request.format.name, request.format.strict) == (Shape.SCHEMA, "answer", True)
    assert (request.verbosity, request.cache_key) == ("low", "k")
    assert (attribution.user, attribution.safety_identifier) == ("u", "s")
    assert (attribution.metadata, attribution.service_tier, request.parallel) == ({"a": "b"}, "flex", False)
    assert request.ext == {
        "logit_bias": {"50256": -100},
        "store": True,
        "prediction": {"type": "content", "content": "x"},
        "stream_options/padding": 7,
    }
    assert request.pointer("max_tokens") == "/max_completion_tokens"
    assert request.pointer("reasoning") == "/reasoning_effort"
    assert request.pointer("cache_key") == "/prompt_cache_key"


def test_defaults_written_out_are_no_fields() -> None:
    request = read(
        n=1,
        store=False,
        logprobs=False,
        modalities=["text"],
        service_tier="auto",
        verbosity="medium",
        frequency_penalty=0,
        response_format={"type": "text"},
        stream_options={"include_obfuscation": True},
        temperature=None,
        logit_bias={},
    )
    assert request.ext == {}
    assert (request.sampling.n, request.sampling.logprobs) == (None, None)
    assert (request.attribution.service_tier, request.verbosity) == (None, None)
    assert (request.sampling.frequency_penalty, request.format, request.sampling.temperature) == (None, None, None)


def test_a_setting_has_its_value_in_every_spelling() -> None:
    assert read(n=3).sampling.n == 3  # for the build to judge
    assert (read(stop="END").sampling.stop, read(stop=None).sampling.stop) == (("END",), ())
    assert read(stream=True).extras.include_usage is False
    assert read(stream=True, stream_options={"include_usage": True}).extras.include_usage is True


def test_both_names_of_the_cap_are_taken_and_the_newer_wins() -> None:
    assert read(max_tokens=5).max_tokens == 5
    assert read(max_completion_tokens=6).max_tokens == 6
    ledger = Ledger()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "max_completion_tokens": 6}
    assert parse(msgspec.json.encode(body), ledger).max_tokens == 6
    assert [loss.path for loss in ledger] == ["/max_tokens"]


AT = "/messages/0/content/0"


def part(kind: str, held: object) -> list[object]:
    """The content that is one part, of which the field is named as the type."""
    return [{"type": kind, kind: held}]


@each_row(
    ("content", "expected"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        (part("refusal", "No."), (Refusal("No.", AT),)),
        (
            part("file", {"filename": "notes.txt", "file_data": "aGk="}),
            (Document(Inline("text/plain", "aGk="), AT, title="notes.txt"),),
        ),
        (part("file", {"file_data": "JVBERi0="}), (Document(Inline("application/pdf", "JVBERi0="), AT),)),
        (
            part("image_url", {"url": "data:image/svg+xml,%3Csvg/%3E", "detail": "auto"}),
            (Image(Inline("image/svg+xml", "PHN2Zy8+"), AT),),
        ),
        (part("image_url", "https://a.example/b.png"), (Image(Link("https://a.example/b.png"), AT),)),
    ],
)
def test_content_is_read_however_it_is_written(content: object, expected: tuple[Part, ...]) -> None:
    assert parts(content, "assistant") == expected


def test_a_refusal_is_read_from_its_field() -> None:
    assert parts(None, "assistant", refusal="No.") == (Refusal("No.", "/messages/0/refusal"),)


def test_object_arguments_and_missing_arguments_are_taken() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "b", "function": {"name": "g", "arguments": ""}},
    ]
    read_calls = [part for part in parts(None, "assistant", tool_calls=calls) if isinstance(part, ToolCall)]
    assert [call.arguments for call in read_calls] == ['{"x":1}', "{}"]


def test_images_in_tool_results_are_read() -> None:
    (result,) = parts(part("image_url", {"url": "data:image/png;base64,aQ=="}), "tool", tool_call_id="a")
    assert isinstance(result, ToolResult)
    assert result.content == (Image(Inline("image/png", "aQ=="), AT),)


def test_legacy_functions_become_tools() -> None:
    request = read(functions=[{"name": "f", "parameters": {"type": "object"}}], function_call={"name": "f"})
    assert request.tools == (Function("f", "/functions/0", parameters={"type": "object"}),)
    assert request.tool_choice == ToolChoice(Pick.NAMED, "/function_call", name="f")
    assert request.pointer("tool_choice") == "/function_call"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice(Pick.AUTO, "/tool_choice")),
        ("none", ToolChoice(Pick.NONE, "/tool_choice")),
        ("required", ToolChoice(Pick.REQUIRED, "/tool_choice")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice(Pick.NAMED, "/tool_choice", name="f")),
        ({"type": "custom", "custom": {"name": "c"}}, ToolChoice(Pick.NAMED, "/tool_choice", name="c", custom=True)),
        ({"type": "web_search"}, ToolChoice(Pick.NAMED, "/tool_choice", hosted="web_search")),
    ],
)
def test_each_tool_choice_is_read(choice: object, expected: ToolChoice) -> None:
    assert read(tool_choice=choice).tool_choice == expected


PLACE = {"type": "approximate", "approximate": {"city": "Oslo"}}
OPTIONS = {"search_context_size": "low", "user_location": PLACE}
OSLO = {"type": "approximate", "city": "Oslo"}


@each_row(
    ("fields", "tool"),
    [
        (
            {"web_search_options": OPTIONS},
            Hosted("web_search", OPTIONS, "/web_search_options", location=OSLO, context_size="low"),
        ),
        (  # unknown, and kept whole
            {"tools": [{"type": "teleport", "range": 3}]},
            Hosted("teleport", {"type": "teleport", "range": 3}, "/tools/0", ext={"range": 3}, known=False),
        ),
        ({"tools": [{"type": "function", "name": "f", "strict": False}]}, Function("f", "/tools/0", strict=False)),
    ],
)
def test_tools_are_read_wherever_they_stand(fields: dict[str, object], tool: Tool) -> None:
    assert read(**fields).tools == (tool,)


def test_our_envelope_returns_the_reasoning_it_holds() -> None:
    detail = {"type": "reasoning.encrypted", "data": encode_envelope(SIGNED), "index": 0}
    at = "/messages/0/reasoning_details/0"
    assert parts("Yes.", "assistant", reasoning_content="Hm.", reasoning_details=[detail]) == (
        Thinking("Hm.", at, SIGNED),
        Text("Yes.", "/messages/0/content"),
    )


@each_row("shown, texts", [("First. Hm. Last.", ["First. ", "Hm.", " Last."]), ("hm", ["Hm."])])
def test_sealed_reasoning_keeps_its_place_and_is_not_sent_twice(shown: str, texts: list[str]) -> None:
    detail = {"type": "reasoning.encrypted", "data": encode_envelope(SIGNED), "index": 0}
    thoughts = parts(None, "assistant", reasoning_content=shown, reasoning_details=[detail])
    assert [part.text for part in thoughts if isinstance(part, Thinking)] == texts


def test_foreign_details_are_kept_with_their_text() -> None:
    detail = {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "index": 0}
    (thought,) = parts(None, "assistant", reasoning="Hm.", reasoning_details=[detail])
    assert isinstance(thought, Thinking)
    assert thought.text == "Hm."
    assert thought.opaque is not None
    assert (thought.opaque.issuer, thought.opaque.form) == ("", OpaqueForm.DETAIL)
    assert msgspec.json.decode(thought.opaque.payload) == detail


def test_thinking_blocks_are_read() -> None:
    signed = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    blocks = [signed, {"type": "redacted_thinking", "data": "cmVk"}]
    thoughts = parts(None, "assistant", reasoning_content="Hm.", thinking_blocks=blocks)
    assert [(thought.text, thought.opaque) for thought in thoughts if isinstance(thought, Thinking)] == [
        ("Hm.", Opaque("", OpaqueForm.SIGNATURE, "c2ln")),
        ("", Opaque("", OpaqueForm.REDACTED, "cmVk")),
    ]


MESSAGES = [{"role": "user", "content": "hi"}]


def turn(**message: object) -> object:
    return {"model": "m", "messages": [message]}


@each_row(
    ("body", "at"),
    [
        (b"", ""),
        (b"not json", ""),
        (b"[]", ""),
        (b"[" * 100_000, ""),
        (b'{"model": "\xff"}', ""),
        ({"messages": MESSAGES}, "/model"),
        ({"model": "m"}, "/messages"),
        ({"model": "m", "input": "hi"}, "/messages"),
        ({"model": "m", "messages": "hi"}, "/messages"),
        ({"model": "m", "messages": ["hi"]}, "/messages/0"),
        ({"model": "m", "messages": [{"content": "hi"}]}, "/messages/0/role"),
        ({"model": "m", "messages": [{"role": "king", "content": "hi"}]}, "/messages/0/role"),
        ({"model": "m", "messages": [{"role": "function", "name": "f", "content": ""}]}, "/messages/0/role"),
        ({"model": "m", "messages": [{"role": "tool", "content": ""}]}, "/messages/0/tool_call_id"),
        ({"model": "m", "messages": [{"role": "user", "content": 5}]}, "/messages/0/content"),
        (turn(role="user", content=[{}]), "/messages/0/content/0/type"),
        (turn(role="user", content=part("image_url", {"url": "x"})), "/messages/0/content/0/image_url/url"),
        (turn(role="user", content=part("file", {})), "/messages/0/content/0/file"),
        ({"model": "m", "messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "/messages/0/audio"),
        ({"model": "m", "messages": MESSAGES, "modalities": ["text", "audio"]}, "/modalities"),
        ({"model": "m", "messages": MESSAGES, "audio": {"voice": "alloy"}}, "/audio"),
        ({"model": "m", "messages": MESSAGES, "temperature": "hot"}, "/temperature"),
        ({"model": "m", "messages": MESSAGES, "n": 0}, "/n"),
        ({"model": "m", "messages": MESSAGES, "stop": [1]}, "/stop"),
        ({"model": "m", "messages": MESSAGES, "tool_choice": "maybe"}, "/tool_choice"),
        ({"model": "m", "messages": MESSAGES, "tools": [{"function": {}}]}, "/tools/0/function/name"),
        ({"model": "m", "messages": MESSAGES, "response_format": {"type": "xml"}}, "/response_format/type"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_by_the_name_of_its_field(body: object, at: str) -> None:
    assert expect_refusal(body)[0] == at


def test_a_body_for_responses_is_directed_to_where_it_belongs() -> None:
    assert "/v1/responses" in expect_refusal({"model": "m", "input": "hi"})[1]


def test_half_a_surrogate_pair_in_a_body_costs_one_character() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a\\ud83d"}]}'
    assert parse(body, Ledger()).turns[0].parts == (Text("a\ufffd", "/messages/0/content"),)


@pytest.mark.parametrize(
    ("fields", "protocol"),
    [
        (b'"messages":[]', ""),
        (b'"input":"Hi"', "responses"),
        (b'"input":"Hi","messages":null', "responses"),
        (b'"input":"Hi","messages":[]', ""),
        (b'"input":null', ""),
        (b'"messages":[{"role":"user","content":"\\"input\\":1"}]', ""),
    ],
)
def test_a_body_with_input_instead_of_messages_is_one_of_responses(fields: bytes, protocol: str) -> None:
    head = read_call("", "", b'{"model":"m",%b}' % fields)
    assert (head.model, head.body_protocol) == ("m", protocol)
