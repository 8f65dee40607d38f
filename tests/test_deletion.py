"""Law 7: remove any leaf of a request, and the upstream's body changes or the ledger names it."""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from clients.captured import list_captured
from deletion import Built, Turned, Vanished, find_vanishing, outcome

FIXTURES = Path(__file__).parent / "fixtures"
PROTOCOLS = ("chat", "responses", "messages")
CLIENTS = TARGETS = (*PROTOCOLS, "gemini")
OWN = {f"{name}/request": (name, FIXTURES / name / "request.json") for name in CLIENTS} | {
    file.stem: (file.stem.partition("-")[0], file) for file in sorted((FIXTURES / "deletion").glob("*.json"))
}
CAPTURED = {found.name: found for found in list_captured()}
LARGEST = {found.client: name for name, found in sorted(CAPTURED.items(), key=lambda item: len(item[1].body))}
MOST_OF_A_SHAPE = 2  # in captured conversations


@dataclass(frozen=True)
class Quiet:
    """A leaf that may go without a word. `where` is a pointer with * for any place; no values means any."""

    clients: str
    where: str
    values: tuple[object, ...]
    why: str

    def covers(self, client: str, gone: Vanished) -> bool:
        pattern = re.escape(self.where).replace(r"\*\*", ".*").replace(r"\*", "[^/]+")
        known = client in self.clients.split() and re.fullmatch(pattern, gone.pointer) is not None
        return known and (not self.values or any(_same(value, gone.value) for value in self.values))


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


# The documented defaults of each protocol: writing them out changes nothing.
DEFAULTS: dict[str, tuple[tuple[str, object], ...]] = {
    "chat": (
        ("/stream", False),
        ("/n", 1),
        ("/logprobs", False),
        ("/store", False),
        ("/parallel_tool_calls", True),
        ("/response_format/type", "text"),
        ("/service_tier", "auto"),
        ("/modalities/*", "text"),
        ("/frequency_penalty", 0),
        ("/presence_penalty", 0),
        ("/tools/*/function/strict", False),
        ("/messages/*/content/*/image_url/detail", "auto"),
    ),
    "responses": (
        ("/stream", False),
        ("/parallel_tool_calls", True),
        ("/tool_choice", "auto"),
        ("/background", False),
        ("/truncation", "disabled"),
        ("/service_tier", "auto"),
        ("/top_logprobs", 0),
        ("/text/format/name", "response"),
        ("/**/strict", False),
        ("/tools/*/defer_loading", False),
        ("/input/*/content/*/detail", "auto"),
    ),
    "messages": (
        ("/stream", False),
        ("/service_tier", "auto"),
        ("/tool_choice/disable_parallel_tool_use", False),
        ("/tools/*/strict", False),
        ("/tools/*/defer_loading", False),
        ("/messages/*/content/*/is_error", False),
    ),
    "gemini": (
        ("/contents/*/role", "user"),
        ("/generationConfig/candidateCount", 1),
        ("/generationConfig/responseMimeType", "text/plain"),
        ("/generationConfig/responseModalities/*", "TEXT"),
        ("/generationConfig/responseLogprobs", False),
        ("/generationConfig/presencePenalty", 0),
        ("/generationConfig/frequencyPenalty", 0),
        ("/generationConfig/thinkingConfig/includeThoughts", False),
    ),
}

QUIET = (
    *(
        Quiet(client, where, (value,), "the default")
        for client, defaults in DEFAULTS.items()
        for where, value in defaults
    ),
    Quiet("chat responses", "/**/parameters/type", ("object",), "the only type that parameters can have"),
    Quiet("messages", "/tools/*/input_schema/type", ("object",), "the only type that an input can have"),
    Quiet("chat responses messages gemini", "/**/$schema", (), "the dialect, of which an upstream knows one"),
    # The default type, or the only type that exists.
    Quiet("chat", "/tools/*/type", ("function",), "functions are what tools are"),
    Quiet("chat", "/messages/*/tool_calls/*/type", ("function",), "functions are what is called"),
    Quiet("chat", "/tool_choice/type", ("function",), "the function that is named beside it says so"),
    Quiet("chat", "/tool_choice/allowed_tools/tools/*/type", ("function",), "the function beside it says so"),
    Quiet("messages", "/tools/*/type", ("custom",), "the default"),
    Quiet("responses", "/tool_choice/tools/*/type", ("function", "custom"), "the name says which tool is meant"),
    Quiet("responses", "/**/tools/*/tools/*/type", ("function",), "functions are what a namespace holds"),
    Quiet("responses", "/tools/*/tools/*/type", ("function",), "functions are what a namespace holds"),
    Quiet("responses", "/input/*/type", ("message",), "the default of an item with a role"),
    Quiet("responses", "/input/*/summary/*/type", ("summary_text",), "the only kind of summary"),
    Quiet("responses", "/input/*/content/*/type", ("reasoning_text",), "the only kind of thoughts"),
    Quiet("responses", "/input/*/role", ("developer",), "the only role of an item that adds tools"),
    Quiet("responses", "/input/*/caller/type", ("direct",), "the default: the model itself"),
    Quiet("messages", "/messages/*/content/*/caller/type", ("direct",), "the default: the model itself"),
    Quiet("chat", "/tools/*/custom/format/type", ("text",), "the default: any text"),
    Quiet("responses", "/tools/*/format/type", ("text",), "the default: any text"),
    Quiet("chat", "/prompt_cache_options/ttl", ("30m",), "the default"),
    # What only concerns the prompt cache of another upstream.
    Quiet("chat responses", "/**/prompt_cache_breakpoint/**", (), "the upstream decides where its cache ends"),
    Quiet("messages", "/**cache_control/**", (), "the upstream decides where its cache ends"),
    Quiet("chat responses", "/prompt_cache_key", (), "it names the session"),
    Quiet("chat responses", "/prompt_cache_options/mode", ("explicit",), "the gateway sets no marks of its own then"),
    # Nothing, written out.
    Quiet("chat", "/messages/*/content", ("",), "empty, beside a refusal or calls"),
    Quiet("chat", "/messages/*/tool_calls/*/function/arguments", ("",), "no arguments"),
    Quiet("responses", "/input/*/arguments", ("{}",), "no arguments"),
    Quiet("responses", "/input/*/output", ("",), "no output"),
    Quiet("responses", "/input/*/tools/*/description", ("",), "no description"),
    Quiet("messages", "/messages/*/content/*/content", ("",), "no output"),
    Quiet("chat responses messages gemini", "/**", ([], {}), "empty"),
    # What concerns the reply and is honoured there, whoever the upstream is.
    Quiet("chat", "/stream_options/include_usage", (True,), "the client's own stream ends with usage"),
    Quiet("chat responses", "/stream_options/include_obfuscation", (False,), "the client's own stream is not padded"),
    Quiet("responses", "/include/*", ("reasoning.encrypted_content",), "the reply carries opaque reasoning"),
    Quiet("responses", "/include/*", ("message.output_text.logprobs",), "top_logprobs beside it asks for the same"),
    Quiet("responses", "/store", (False,), "nothing is kept, here or there"),
    Quiet("messages", "/thinking/display", ("summarized",), "thoughts are shown unless they are to be omitted"),
    # Redundant.
    Quiet("chat", "/logprobs", (True,), "top_logprobs beside it asks for the same"),
    Quiet("chat", "/messages/*/reasoning_content", (), "reasoning_details beside it tell the same thought"),
    Quiet("gemini", "/systemInstruction/role", ("user",), "instructions have no role"),
    Quiet("gemini", "/contents/*/parts/*/functionResponse/id", (), "responses are in the order of their calls"),
    Quiet("gemini", "/**/properties/*/format", ("enum",), "the enum beside it says so"),
    Quiet("gemini", "/**/propertyOrdering/*", ("format",), "the last one follows from those before it"),
    Quiet("gemini", "/**/property_ordering/*", ("a",), "the last one follows from those before it"),
    Quiet("gemini", "/**/parameters/type", ("OBJECT",), "the only type that parameters can have"),
    Quiet("gemini", "/**/parametersJsonSchema/type", ("OBJECT", "object"), "the only type that parameters can have"),
    Quiet("gemini", "/generation*onfig/temperature", (1,), "the default, which a model that thinks has anyway"),
    Quiet("gemini", "/generationConfig/responseLogprobs", (True,), "logprobs beside it asks for the same"),
    Quiet("gemini", "/generationConfig/responseMimeType", ("application/json",), "the schema beside it says so"),
    Quiet("gemini", "/generation_config/response_mime_type", ("application/json",), "the schema beside it says so"),
    # Addresses and states of items that the vendor keeps; here every item is sent whole.
    Quiet("responses", "/input/*/id", (), "where the vendor keeps the item"),
    Quiet("responses", "/input/*/status", ("completed",), "items of a history are complete"),
)


def find_unexplained(client: str, target: str, body: dict[str, object], at_most: int | None = None) -> list[Vanished]:
    return [
        gone
        for gone in find_vanishing(client, target, body, at_most)
        if not any(quiet.covers(client, gone) for quiet in QUIET)
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", OWN)
def test_no_leaf_of_a_request_vanishes_quietly(name: str, target: str) -> None:
    client, file = OWN[name]
    assert find_unexplained(client, target, msgspec.json.decode(file.read_bytes())) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_default_written_out_is_no_loss(client: str, target: str) -> None:
    body = msgspec.json.decode((FIXTURES / "deletion" / f"{client}-defaults.json").read_bytes())
    found = outcome(client, target, body)
    assert isinstance(found, Built), found
    assert found.losses == frozenset()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LARGEST.values() else pytest.mark.rest) for name in CAPTURED]
)
def test_no_leaf_of_what_real_clients_send_vanishes_quietly(name: str) -> None:
    found = CAPTURED[name]
    assert found.protocol is not None
    for target in TARGETS:
        assert find_unexplained(found.protocol, target, found.json, MOST_OF_A_SHAPE) == []


@pytest.mark.rest
def test_every_exception_is_needed() -> None:
    requests = [(client, msgspec.json.decode(file.read_bytes())) for client, file in OWN.values()]
    gone = [
        (client, leaf)
        for client, body in requests
        for target in TARGETS
        for leaf in find_vanishing(client, target, body)
    ]
    idle = [quiet for quiet in QUIET if not any(quiet.covers(*leaf) for leaf in gone)]
    assert idle == []


COUNT = "/generationConfig/candidateCount"
REFUSED = {
    "chat": {
        "chat": {"/audio", "/modalities"},
        "responses": {"/n", "/audio"},
        "messages": {"/n", "/audio"},
        "gemini": {"/audio"},
    },
    "responses": {
        "chat": {"/previous_response_id", "/background", "/conversation"},
        "responses": {"/previous_response_id", "/background", "/conversation"},
        "messages": {"/previous_response_id", "/background", "/conversation"},
        "gemini": {"/previous_response_id", "/background", "/conversation"},
    },
    "messages": {name: {"/thread"} for name in TARGETS},
    "gemini": {
        name: {"/cachedContent", "/continuationToken"} | ({COUNT} if name in ("responses", "messages") else set())
        for name in TARGETS
    },
}
PLAIN: dict[str, dict[str, object]] = {
    "chat": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
    "responses": {"model": "m", "input": "x"},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
    "gemini": {"contents": [{"parts": [{"text": "x"}]}]},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_would_change_the_answer_is_refused_by_name(client: str, target: str) -> None:
    body = msgspec.json.decode((FIXTURES / "deletion" / f"{client}-refused.json").read_bytes())
    for field in REFUSED[client][target]:
        plain, top = PLAIN[client], field.split("/")[1]
        assert isinstance(outcome(client, target, plain), Built)
        found = outcome(client, target, {**plain, top: body[top]})
        assert isinstance(found, Turned)
        assert found.at == field
