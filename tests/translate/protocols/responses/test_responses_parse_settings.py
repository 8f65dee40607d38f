"""Tools and settings of Responses clients in, hub requests out; and what is refused."""

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Custom,
    Format,
    Function,
    Grammar,
    Hosted,
    Pick,
    Reasoning,
    Request,
    Shape,
    Text,
    ToolChoice,
)
from narrowing import expect, expect_all
from tables import each_row
from translate.protocols.responses.responses_kit import CLIENT, fixture, parse_body
from wire_json import JsonObject

FULL = msgspec.json.decode(fixture("request.json"))


def expect_refusal(body: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_body(body)
    assert caught.value.failure.kind is Kind.BAD_REQUEST
    return caught.value


def of(*items: object, **fields: object) -> Request:
    return parse_body({"model": "m", "input": list(items) or "Hi", **fields})


def test_tools_of_every_kind_are_read_and_namespaces_opened() -> None:
    look, later, patch, wait, search, finder = parse_body(FULL).tools
    assert (expect(Function, look).strict, expect(Function, look).deferred) == (True, False)
    assert expect(Function, later).deferred
    assert expect(Custom, patch).grammar == Grammar("lark", 'start: "x"')
    assert isinstance(wait, Function)
    assert (wait.name, wait.namespace, wait.at) == ("wait", "agents", "/tools/3/tools/0")
    assert isinstance(search, Hosted)
    assert (search.kind, search.allowed_domains) == ("web_search", ("docs.example",))
    assert search.location == {"type": "approximate", "country": "DE"}
    assert expect(Hosted, finder).kind == "tool_search"


def test_tools_among_the_items_are_offered_with_their_own_pointers() -> None:
    inner = [{"type": "custom", "name": "exec"}]
    namespace = {"type": "namespace", "name": "functions", "description": "", "tools": inner}
    tools = of(
        {"type": "additional_tools", "role": "developer", "tools": [namespace]},
        {"role": "user", "content": "hi"},
        tools=[{"type": "function", "name": "f", "parameters": None}],
    ).tools
    assert [(tool.name, tool.at) for tool in tools if not isinstance(tool, Hosted)] == [
        ("f", "/tools/0"),
        ("exec", "/input/0/tools/0/tools/0"),
    ]


HOSTED_KINDS = {"web_search_preview": "web_search", "code_interpreter": "code_execution"}


def test_hosted_tools_have_the_hubs_name_or_their_own() -> None:
    types = (*HOSTED_KINDS, "mcp", "image_generation", "something_new")
    tools = expect_all(Hosted, of(tools=[{"type": type_} for type_ in types]).tools)
    assert [tool.kind for tool in tools] == [HOSTED_KINDS.get(type_, type_) for type_ in types]


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
def test_tool_choice_is_read_in_every_form(choice: object, read: ToolChoice | None) -> None:
    assert of(tool_choice=choice).tool_choice == read


def test_every_request_level_field_has_its_value_and_its_pointer() -> None:
    request = parse_body(FULL)
    assert request.tool_choice == ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("look", "apply_patch"))
    assert (request.parallel, request.max_tokens, request.max_tool_calls) == (False, 2000, 5)
    sampling, attribution = request.sampling, request.attribution
    assert (sampling.temperature, sampling.top_p, sampling.logprobs, sampling.top_logprobs) == (0.5, 0.9, True, 3)
    assert request.reasoning == Reasoning("/reasoning/effort", "high", show="auto", show_at="/reasoning/summary")
    assert request.extras.encrypted_reasoning is True
    assert request.format == Format(
        Shape.SCHEMA, "/text/format", "answer", "An answer.", FULL["text"]["format"]["schema"], True
    )
    assert (request.verbosity, attribution.metadata, attribution.user) == ("low", {"team": "blue"}, "u-1")
    assert (attribution.safety_identifier, request.cache_key, attribution.service_tier) == ("s-1", "k-1", "flex")
    assert request.stream is True
    assert request.pointer("max_tokens") == "/max_output_tokens"
    assert request.pointer("cache_key") == "/prompt_cache_key"


def test_what_only_this_protocol_has_is_kept_by_pointer() -> None:
    assert set(parse_body(FULL).ext) == {
        "tools/3/description",
        "input/3/phase",
        "reasoning/context",
        "prompt_cache_options/mode",
        "prompt_cache_options/ttl",
        "truncation",
        "client_metadata",
        "context_management",
    }


def test_encrypted_reasoning_is_included_only_if_it_is_requested() -> None:
    assert of().extras.encrypted_reasoning is False
    assert of(include=["reasoning.encrypted_content"]).extras.encrypted_reasoning is True


def test_values_that_have_no_effect_are_no_loss() -> None:
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


def test_warming_the_cache_is_a_request_for_no_tokens() -> None:
    request = of(prompt_cache_options={"prewarm": True})
    assert (request.max_tokens, request.pointer("max_tokens")) == (0, "/prompt_cache_options/prewarm")


@each_row(
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
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "/input/0/content/0"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "/input/0/call_id"),
        ({"model": None}, "/model"),
        ({"temperature": "hot"}, "/temperature"),
        ({"tools": [{"name": "f"}]}, "/tools/0/type"),
        ({"tool_choice": "sometimes"}, "/tool_choice"),
        ({"text": {"format": {"type": "poem"}}}, "/text/format/type"),
        ({"include": [5]}, "/include/0"),
    ],
)
def test_what_cannot_be_had_here_is_refused_and_named(fields: JsonObject, at: str) -> None:
    assert expect_refusal({"model": "m", "input": "hi", **fields}).failure.at == at


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"x"', b"\xff", b'{"model":', b"[" * 200_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        CLIENT.parse(body, Ledger())
    assert caught.value.failure.kind is Kind.BAD_REQUEST


def test_half_a_surrogate_pair_in_a_request_is_repaired() -> None:
    request = CLIENT.parse(b'{"model":"m","input":"a\\ud83db"}', Ledger())
    assert request.turns[0].parts == (Text("a\ufffdb", "/input"),)
