"""An upstream that rejects a part of a request gets it again without that, once, and never again with it.

Each case is a real rejection, in the words of the server that wrote it, played by a server that really rejects it.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from asking import EXPLAIN, Reply, ask, make_body, send
from e2e.rejecting import Refuses, any_of, has, later_system, neighbours, user_after_tool
from e2e.rejection_cases import (
    CALLED,
    CALLED_IN_MESSAGES,
    CASES,
    CLAUDE_TOOL,
    EXTRA,
    MID_SYSTEM,
    SIGNED,
    TOOL,
    USER,
    Case,
)
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import Running, running
from rig import QUICK
from scripting import write_reply
from wire_json import Json, JsonObject


class Strict:
    """A server that rejects what the case says, in its words, and answers everything else."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.is_upgraded = False

    def answer(self, request: ReceivedRequest) -> Answer:
        case = self.case
        if case.refuses(request) and not self.is_upgraded:
            if case.status == 200 and case.stream:
                event = b"event: error\ndata: " + msgspec.json.encode(self.error()) + b"\n\n"
                return Answer(event, 200, "text/event-stream")
            return Answer(msgspec.json.encode(self.error()), case.status, "application/json")
        return write_reply(case.upstream, "Fine.", stream=bool(request.json.get("stream")))

    def error(self) -> JsonObject:
        words = self.case.words
        if not isinstance(words, str):
            return words
        return {"type": "error", "error": {"type": "invalid_request_error", "message": words}}


@contextmanager
def playing(case: Case, directory: Path) -> Iterator[tuple[Running, FakeUpstream, Strict]]:
    server = Strict(case)
    with FakeUpstream(choose=server.answer) as fake:
        section = f'[providers.up]\nkind = "{case.kind}"\nendpoint = "{fake.url}"\napi_key = "sk-fake-upstream"\n'
        if case.kind == "openai-compatible":
            section += f'protocol = "{case.upstream}"\n'
        with running(QUICK + section, directory) as gateway:
            yield gateway, fake, server


def request(gateway: Running, case: Case, **more: str) -> Reply:
    headers = {**EXPLAIN, **case.headers, **{name.replace("_", "-"): value for name, value in more.items()}}
    return ask(gateway, case.client, f"up/{case.model}", headers=headers, stream=case.stream, **case.fields)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rejection_costs_one_request_once(case: Case, tmp_path: Path) -> None:
    with playing(case, tmp_path) as (gateway, fake, _):
        first = request(gateway, case)
        assert (first.status, len(fake.calls)) == (200, 2), first.body
        again = request(gateway, case)
        assert (again.status, len(fake.calls)) == (200, 3 + case.later), again.body
        assert again.headers["x-dragoman-loss"] != "0"
        if case.path:
            assert case.path in [path for path, _ in again.losses]
        assert all(is_in_request(case, path) for path, how in again.losses if how != "invented"), again.losses
        assert all(learned.path for learned in gateway.app.gateway.runtime.learned_quirks.list_all())


def is_in_request(case: Case, path: str) -> bool:
    """Whether a path begins with a field of the client's request, or is that of a header."""
    sent = make_body(case.client, "m", stream=case.stream) | case.fields
    steps = path.split("/")
    return path == "" or steps[1] in ("headers", *sent)


@pytest.mark.parametrize("field", ["message", "detail", "Message"])
@pytest.mark.parametrize("client", ["messages", "chat"])
def test_an_error_that_comes_in_place_of_a_reply_is_learned_from(client: str, field: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.number == "11")
    case = replace(case, client=client, words={field: case.words}, status=200)
    with playing(case, tmp_path) as (gateway, fake, _):
        for count in (2, 3):
            assert (request(gateway, case).status, len(fake.calls)) == (200, count)


PASSED = [case for case in CASES if case.client == case.upstream and case.later == 0]


@pytest.mark.parametrize("case", PASSED, ids=str)
def test_a_strict_request_is_sent_in_full_and_gets_the_error_as_it_is(case: Case, tmp_path: Path) -> None:
    with playing(case, tmp_path) as (gateway, fake, server):
        assert request(gateway, case).status == 200
        refused = request(gateway, case, x_dragoman_strict="1")
        assert refused.status >= 400 or case.status == 200
        assert len(fake.calls) == 3
        if case.status not in (200, 500) and case.client != "gemini" and "error" in server.error():
            assert refused.json == server.error()
        assert case.refuses(fake.calls[-1])


def test_bytes_that_pass_differ_only_in_what_was_rejected(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.number == "5")
    body = (
        b'{ "model":"up/m" ,"max_tokens": 9, "unknown" : [1.0, 1e3],\n"tools":[{"name":"a","defer_loading":true,'
        b'"input_schema":{"type":"object"}} , {"name":"b","input_schema":{},"defer_\\u006coading":false}],'
        b'"messages":[{"role":"user","content":"defer_loading \\u00e9"}]}'
    )
    with playing(case, tmp_path) as (gateway, fake, _):
        for _ in range(2):
            assert send_bytes(gateway, body).headers["x-dragoman-loss"] == "2"
    expected = body.replace(b'"defer_loading":true,', b"").replace(b',"defer_\\u006coading":false', b"")
    assert [call.body for call in fake.calls[1:]] == [expected.replace(b"up/m", b"m")] * 2
    assert fake.calls[0].body == body.replace(b"up/m", b"m")


def send_bytes(gateway: Running, body: bytes, **headers: str) -> Reply:
    return send(gateway, "POST", "/v1/messages", body, headers={**EXPLAIN, **headers})


@pytest.mark.parametrize(
    ("kind", "client", "words", "fields"),
    [
        (
            "anthropic",
            "messages",
            f"tools.0.custom.defer_loading: {EXTRA}",
            {"tools": [CLAUDE_TOOL | {"defer_loading": True}]},
        ),
        (
            "openai",
            "chat",
            "Unsupported parameter: 'temperature' is not supported with this model.",
            {"temperature": 1},
        ),
        ("openai", "responses", "Unknown parameter: 'verbosity'.", {"verbosity": "low", "store": False}),
    ],
)
def test_the_vendors_own_error_passes_as_it_is(
    kind: str, client: str, words: str, fields: JsonObject, tmp_path: Path
) -> None:
    case = Case("own", client, client, words, lambda request: True, fields, kind=kind)
    with playing(case, tmp_path) as (gateway, fake, server):
        refused = request(gateway, case)
        assert (refused.status, refused.json, len(fake.calls)) == (400, server.error(), 1)


def test_three_faults_at_once_take_three_more_requests_and_are_learnt_together(tmp_path: Path) -> None:
    faults: JsonObject = {"a1": "a1", "b1": "b1", "c1": "c1"}

    def choose(received: ReceivedRequest) -> Answer:
        for name in faults:
            if name in received.json:
                error = {"error": {"message": f"Unsupported parameter: '{name}'"}}
                return Answer(msgspec.json.encode(error), 400, "application/json")
        return write_reply("chat", "Fine.", stream=False)

    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{}"\napi_key = "sk-fake"\n'
    with FakeUpstream(choose=choose) as fake, running(section.format(fake.url), tmp_path) as gateway:
        assert ask(gateway, "chat", "up/m", **faults).status == 200
        assert len(fake.calls) == 4
        assert ask(gateway, "chat", "up/m", **faults).status == 200
        assert len(fake.calls) == 5
        four = ask(gateway, "chat", "up/other", **faults, d1="x")
        assert four.status == 200, "the fourth is none of its faults"
        faults["d1"] = "d1"
        refused = ask(gateway, "chat", "up/third", **faults)
        assert (refused.status, refused.json["error"]["message"]) == (400, "Unsupported parameter: 'a1'")
        assert ask(gateway, "chat", "up/third", a1="x").status == 200
        assert "a1" in fake.calls[-2].json, "nothing was learned from a call that failed"


def test_a_host_that_rejects_everything_gets_three_more_requests_and_its_client_the_first_error(tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(8)]
    fields: JsonObject = dict.fromkeys(names, "v")

    def choose(received: ReceivedRequest) -> Answer:
        left = [name for name in names if name in received.json]
        error = {"error": {"message": f"Unsupported parameter: '{left[0] if left else 'model'}'"}}
        return Answer(msgspec.json.encode(error), 400, "application/json")

    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{}"\napi_key = "sk-fake"\n'
    with FakeUpstream(choose=choose) as fake, running(section.format(fake.url), tmp_path) as gateway:
        for calls in (4, 8):
            refused = ask(gateway, "chat", "up/m", **fields)
            assert (refused.status, refused.json["error"]["message"]) == (400, "Unsupported parameter: 'x0'")
            assert len(fake.calls) == calls
        assert gateway.app.gateway.runtime.learned_quirks.list_all() == []


def test_several_fields_that_one_error_forbids_are_left_out_at_once(tmp_path: Path) -> None:
    names = ("user", "verbosity", "service_tier")
    problems = [{"type": "extra_forbidden", "loc": ["body", name], "input": "x"} for name in names]
    case = Case("21", "chat", "chat", {"detail": problems}, any_of(*map(has, names)), dict.fromkeys(names, "low"), 422)
    with playing(case, tmp_path) as (gateway, fake, _):
        assert request(gateway, case).status == 200
        assert len(fake.calls) == 2


NEVER: list[tuple[str, JsonObject]] = [
    ("max_tokens", {"max_tokens": 9}),
    ("stop", {"stop": ["x"]}),
    ("tools", {"tools": [TOOL]}),
    ("tools.0", {"tools": [TOOL]}),
    ("tools.0.function", {"tools": [TOOL]}),
    ("messages", {}),
    ("messages.0", {}),
    ("messages.0.content", {}),
    ("messages[0].content[0].image_url", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]}]}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("n", {"n": 1}),
    ("service_tier", {"service_tier": "flex"}),
    ("metadata.temperature", {"metadata": {"temperature": "1"}}),
    ("user_id", {"metadata": {"user_id": "1"}}),
    ("look", {"tools": [TOOL]}),
    ("tools.0.function.parameters.properties", {"tools": [TOOL]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), NEVER, ids=[path for path, _ in NEVER])
def test_what_must_not_be_left_out_is_not_whatever_the_error_says(
    path: str, fields: JsonObject, tmp_path: Path
) -> None:
    for words in (f"{path}: {EXTRA}", f"Unsupported parameter: '{path}'"):
        case = Case("never", "chat", "chat", words, lambda request: True, fields)
        with playing(case, tmp_path) as (gateway, fake, server):
            refused = request(gateway, case)
            assert (refused.status, refused.json, len(fake.calls)) == (400, server.error(), 1)


SENTENCES = [case.words for case in CASES if isinstance(case.words, str)]
FRAMES = (
    "Could not fetch image '{}'",
    'The text "{}" is too long',
    "messages.3: {}",
    "Invalid content: {}",
    "input `{}` is not allowed. {}",
    "{} was flagged by our safety system",
    "The model said: {}\n{}",
)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.rest)])
def test_errors_that_quote_a_user_teach_nothing(count: int, tmp_path: Path) -> None:
    draw = random.Random(7)
    messages = iter(draw.choice(FRAMES).replace("{}", draw.choice(SENTENCES)) for _ in range(count))
    fields: JsonObject = {
        "messages": [
            *MID_SYSTEM,
            {"role": "assistant", "content": "A", "reasoning_content": "x"},
            {"role": "developer", "content": "d"},
        ],
        "temperature": 0.5,
        "reasoning_effort": "xhigh",
        "thinking": {"type": "enabled"},
        "tools": [TOOL],
        "tool_choice": "required",
    }

    def choose(received: ReceivedRequest) -> Answer:
        body = {"error": {"message": next(messages), "type": "invalid_request_error"}}
        return Answer(msgspec.json.encode(body), draw.choice((400, 422)), "application/json")

    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{}"\napi_key = "sk-fake"\n'
    with FakeUpstream(choose=choose) as fake, running(section.format(fake.url), tmp_path) as gateway:
        for number in range(count):
            assert ask(gateway, "chat", "up/m", **fields).status in (400, 422)
            assert len(fake.calls) == number + 1, fake.calls[-1].body
        assert gateway.app.gateway.runtime.learned_quirks.list_known_to("") == {}


@contextmanager
def playing_to_a_pool(case: Case, directory: Path) -> Iterator[tuple[Running, FakeUpstream, Strict]]:
    """Anthropic with two credentials, where a session may have moved away from its reasoning."""
    server = Strict(case)
    with FakeUpstream(choose=server.answer) as fake:
        keys = '["sk-fake-1", "sk-fake-2"]'
        section = f'[providers.up]\nkind = "anthropic"\nendpoint = "{fake.url}"\napi_key = {keys}\n'
        with running(section, directory) as gateway:
            yield gateway, fake, server


UNSIGNED = "messages.1.content.0: Invalid `signature` in `thinking` block"


@pytest.mark.parametrize(
    ("words", "block"),
    [
        (UNSIGNED, {"type": "text", "text": UNSIGNED}),
        (f"messages.3: the text '{UNSIGNED}' is too long", SIGNED),
        (f"Invalid content: {UNSIGNED}", SIGNED),
        ("The text about thinking, which is bound to a different court, is too long", SIGNED),
    ],
)
def test_only_the_vendors_own_sentence_about_reasoning_that_was_sent_repeats_a_request(
    words: str, block: JsonObject, tmp_path: Path
) -> None:
    turns: list[JsonObject] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "Go on."},
    ]
    case = Case("12", "messages", "messages", words, lambda request: True, {"messages": turns})
    with playing_to_a_pool(case, tmp_path) as (gateway, fake, _):
        assert (request(gateway, case).status, len(fake.calls)) == (400, 1)


def test_a_strict_request_is_not_repeated_without_its_reasoning(tmp_path: Path) -> None:
    turns: list[JsonObject] = [USER, {"role": "assistant", "content": [SIGNED, {"type": "text", "text": "A"}]}, USER]
    case = Case("12", "messages", "messages", UNSIGNED, lambda request: True, {"messages": turns})
    with playing_to_a_pool(case, tmp_path) as (gateway, fake, server):
        refused = request(gateway, case, x_dragoman_strict="1")
        assert (refused.status, refused.json, len(fake.calls)) == (400, server.error(), 1)


@pytest.mark.parametrize("status", [401, 403, 404, 413, 429])
def test_no_other_status_teaches_anything(status: int, tmp_path: Path) -> None:
    case = Case(
        "never", "chat", "chat", "Unsupported parameter: 'verbosity'", has("verbosity"), {"verbosity": "low"}, status
    )
    with playing(case, tmp_path) as (gateway, fake, _):
        assert request(gateway, case).status >= 400
        assert all("verbosity" in call.json for call in fake.calls)


LATER = ("System message must be at the beginning.", later_system)
AFTER_TOOL = ("Unexpected role 'user' after role 'tool'", user_after_tool)
ALTERNATE = (
    "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
    neighbours,
)


@pytest.mark.parametrize("client", ["chat", pytest.param("messages", marks=pytest.mark.rest)])
@pytest.mark.parametrize(
    ("faults", "most"),
    [([LATER], 1), ([LATER, AFTER_TOOL], 2), ([LATER, ALTERNATE], 2)],
    ids=["qwen", "mistral", "alternating"],
)
def test_strict_templates_get_a_stable_front_of_the_prompt_over_thirty_turns(
    faults: list[tuple[str, Refuses]], most: int, client: str, tmp_path: Path
) -> None:
    """user, system, assistant, tool, system: accepted, and each request extends the one before."""

    def choose(received: ReceivedRequest) -> Answer:
        for words, refuses in faults:
            if refuses(received):
                return Answer(msgspec.json.encode({"error": {"message": words}}), 400, "application/json")
        return write_reply("chat", "Fine.", stream=False)

    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{}"\napi_key = "sk-fake"\n'
    called = CALLED[1:] if client == "chat" else CALLED_IN_MESSAGES
    messages: list[JsonObject] = []
    previous: list[Json] = []
    with FakeUpstream(choose=choose) as fake, running(section.format(fake.url), tmp_path) as gateway:
        for number in range(30):
            messages += [
                {"role": "user", "content": f"Question {number}"},
                {"role": "system", "content": f"Now {number}"},
            ]
            messages += [*called, {"role": "system", "content": f"Seen {number}"}]
            before = len(fake.calls)
            assert ask(gateway, client, "up/m", messages=messages).status == 200
            assert len(fake.calls) - before <= (1 + most if number == 0 else 1), number
            sent = fake.calls[-1].json["messages"]
            assert sent[: len(previous)] == previous
            previous = sent
            messages.append({"role": "assistant", "content": f"Answer {number}"})
    text = "\n".join(str(turn.get("content")) for turn in previous)
    assert all(f"<system>\\nNow {number}" in text or f"<system>\nNow {number}" in text for number in range(30))


def test_a_rule_of_one_key_changes_no_other_keys_bytes_and_ends_by_command(tmp_path: Path) -> None:
    case = Case("24", "chat", "chat", "Unsupported parameter: 'seed'", has("seed"), {"seed": 1})
    with playing(case, tmp_path) as (gateway, fake, server):
        assert request(gateway, case).status == 200
        server.is_upgraded = True
        assert request(gateway, case).status == 200
        assert "seed" not in fake.calls[-1].json
        gateway.app.gateway.runtime.learned_quirks.forget("up")
        assert request(gateway, case).status == 200
        assert "seed" in fake.calls[-1].json, "an upgraded server gets its field back"


@pytest.mark.parametrize(
    ("quirks", "model", "is_known"),
    [
        ("vllm", "Qwen/Qwen3.6-35B-A3B", True),
        ("ollama", "qwen3.8:27b", True),
        ("llama.cpp", "qwen3.5-9b", True),
        ("vllm", "llama-4", False),
        ("deepseek", "qwen3.8", False),
        ("leading_system", "any", True),
    ],
)
def test_where_instructions_must_lead_is_known_for_some_models(
    quirks: str, model: str, is_known: bool, tmp_path: Path
) -> None:
    section = '[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{}"\napi_key = "sk-fake"\n'
    with (
        FakeUpstream([write_reply("chat", "Fine.", stream=False)]) as fake,
        running(section.format(fake.url) + f'quirks = "{quirks}"\n', tmp_path) as gateway,
    ):
        reply = ask(gateway, "messages", f"up/{model}", messages=MID_SYSTEM, headers=EXPLAIN)
        assert later_system(fake.calls[0]) is not is_known
        assert (("/messages/1", "approximated") in reply.losses) is is_known
        ask(gateway, "chat", f"up/{model}", messages=MID_SYSTEM)
        assert later_system(fake.calls[1]), "a Chat client's bytes pass until they are rejected"
