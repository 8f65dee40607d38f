"""Requests of real clients, fitted to the ChatGPT backend and checked against its rules."""

import msgspec
import pytest

from clients.captured import list_captured
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.codex.request_rules import DEFAULT_INSTRUCTIONS, fit_request, passthrough_body
from fakes.codex import objection_to
from narrowing import present

KEPT_BY_VENDOR = ("thread", "previous_response_id")
GOOD: dict[str, object] = {
    "model": "gpt-5.5",
    "instructions": "Be brief.",
    "input": [{"type": "message", "role": "user", "content": "hi"}],
    "store": False,
    "stream": True,
}


def list_requests() -> list[tuple[str, str, bytes]]:
    """Name, protocol and body of every request that was captured."""
    return [
        (found.name, found.protocol, bytes(found.body))
        for found in list_captured()
        if found.protocol in ("chat", "responses", "messages") and found.json.keys().isdisjoint(KEPT_BY_VENDOR)
    ]


def build_body(protocol: str, body: bytes) -> tuple[dict[str, object], Ledger]:
    client, upstream = PROTOCOLS[protocol].client, PROTOCOLS["responses"].upstream
    assert upstream is not None
    ledger = Ledger()
    request, _ = adapt_tools(present(client).parse(body, ledger), upstream.tool_limits, ledger)
    wire = upstream.build(fit_request(request, ledger), Target("gpt-5.5", "codex"), ledger)
    return msgspec.json.decode(wire, type=dict[str, object]), ledger


@pytest.mark.parametrize(
    ("protocol", "body"), [case[1:] for case in list_requests()], ids=[case[0] for case in list_requests()]
)
def test_requests_of_real_clients_are_accepted(protocol: str, body: bytes) -> None:
    wire, _ = build_body(protocol, body)
    assert objection_to(wire) is None
    sent = msgspec.json.encode(wire)
    assert passthrough_body("responses", sent) == sent


@pytest.mark.parametrize("body", [case[2] for case in list_requests() if case[0].startswith("codex")])
def test_requests_of_codex_pass_unchanged(body: bytes) -> None:
    """But for the instructions, which it leaves out and the backend demands."""
    passed = passthrough_body("responses", body)
    assert passed is not None
    assert objection_to(msgspec.json.decode(passed)) is None
    assert msgspec.json.decode(passed) == {**msgspec.json.decode(body), "instructions": DEFAULT_INSTRUCTIONS}
    assert passed.endswith(body.lstrip()[1:])


def test_cache_breakpoints_of_others_are_not_sent() -> None:
    client, upstream = PROTOCOLS["messages"].client, PROTOCOLS["responses"].upstream
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    ledger = Ledger()
    request = present(client).parse(msgspec.json.encode({**body, "cache_control": {"type": "ephemeral"}}), ledger)
    sent = present(upstream).build(fit_request(request, ledger), Target("gpt-5.5", "openai"), ledger)
    assert objection_to(msgspec.json.decode(sent)) is None
    assert "/cache_control" not in [loss.path for loss in ledger]


def test_there_are_recorded_requests() -> None:
    assert {case[1] for case in list_requests()} >= {"chat", "responses", "messages"}


def test_a_good_body_passes() -> None:
    body = msgspec.json.encode(GOOD)
    assert passthrough_body("responses", body) is body


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"previous_response_id": "resp_1"},
        {"of_tomorrow": True},
        {"store": True},
        {"stream": False},
        {"input": "hi"},
        {"input": [{"role": "system", "content": "x"}]},
        {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "id": "m" * 65, "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "prompt_cache_breakpoint": {}}]}]},
        {"service_tier": "flex"},
        {"stream_options": {"include_usage": True}},
        {"parallel_tool_calls": True},
        {"reasoning": {"effort": "ultra"}},
    ],
    ids=str,
)
def test_a_body_that_the_backend_rejects_does_not_pass(change: dict[str, object]) -> None:
    assert passthrough_body("responses", msgspec.json.encode({**GOOD, **change})) is None


@pytest.mark.parametrize("name", ["input", "store", "stream"])
def test_a_body_that_lacks_something_does_not_pass(name: str) -> None:
    assert (
        passthrough_body("responses", msgspec.json.encode({key: value for key, value in GOOD.items() if key != name}))
        is None
    )


@pytest.mark.parametrize("instructions", ["", None])
def test_empty_instructions_are_filled_in(instructions: str | None) -> None:
    passed = passthrough_body("responses", msgspec.json.encode({**GOOD, "instructions": instructions}))
    assert passed == msgspec.json.encode({**GOOD, "instructions": DEFAULT_INSTRUCTIONS})


@pytest.mark.parametrize(
    "change",
    [
        {"service_tier": "priority"},
        {"reasoning": {"effort": "max", "summary": "auto", "context": "all_turns"}},
        {"reasoning": None},
        {"stream_options": {"reasoning_summary_delivery": "sequential_cutoff"}},
        {"parallel_tool_calls": True, "tools": [{"type": "custom", "name": "x"}]},
        {"client_metadata": {"a": "b"}, "text": {"verbosity": "low"}, "prompt_cache_key": "k"},
        {"input": [{"type": "compaction", "encrypted_content": "x"}]},
        {"parallel_tool_calls": True, "input": [{"type": "additional_tools", "role": "developer", "tools": []}]},
    ],
    ids=str,
)
def test_fields_of_codex_pass(change: dict[str, object]) -> None:
    body = msgspec.json.encode({**GOOD, **change})
    assert passthrough_body("responses", body) == body


def test_default_values_are_no_loss() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}
    extra = {"temperature": 1, "top_p": 1, "service_tier": "auto", "logprobs": False, "parallel_tool_calls": True}
    wire, ledger = build_body("chat", msgspec.json.encode({**body, **extra}))
    assert list(ledger) == []
    assert wire.keys() <= {"model", "instructions", "input", "store", "stream", "include"}


def test_the_effort_ultra_becomes_the_highest() -> None:
    wire, ledger = build_body("responses", msgspec.json.encode({**GOOD, "reasoning": {"effort": "ultra"}}))
    assert wire["reasoning"] == {"effort": "max"}
    assert [loss.path for loss in ledger] == ["/reasoning/effort"]


def test_a_preview_search_becomes_the_search() -> None:
    wire, _ = build_body("responses", msgspec.json.encode({**GOOD, "tools": [{"type": "web_search_preview"}]}))
    assert wire["tools"] == [{"type": "web_search"}]
