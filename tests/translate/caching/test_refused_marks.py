"""A host that refuses marks in some places gets them on the block before, from its first refusal on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import EXPLAIN, PATHS, send
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import Running, provider_section
from rig import ONCE
from scripting import write_error, write_reply
from translate.caching.agent import prose
from wire_json import Json, JsonObject

STRICT = {"x-dragoman-strict": "1"}
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES: list[Json] = [
    {"role": "user", "content": prose(2000, "word")},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
]


class Host:
    """An upstream that refuses marks on some blocks, in Anthropic's words."""

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def answer(self, request: ReceivedRequest) -> Answer:
        for place, kind in list_marks(request.json):
            if kind == self.refused:
                return write_error(400, f"{place}.cache_control: Extra inputs are not permitted")
        return write_reply("messages", "Yes.", stream=False)


def list_marks(body: JsonObject) -> list[tuple[str, str]]:
    """Return the place of each mark, and what it is on."""
    found = [(f"tools.{number}.custom", "tools", tool) for number, tool in enumerate(body.get("tools", ()))]
    system = body.get("system", ())
    found += [(f"system.{number}", "system", block) for number, block in enumerate(system) if isinstance(system, list)]
    for number, message in enumerate(body["messages"]):
        blocks = message["content"] if isinstance(message["content"], list) else []
        found += [(f"messages.{number}.content.{at}.{one['type']}", one["type"], one) for at, one in enumerate(blocks)]
    return [(place, kind) for place, kind, block in found if "cache_control" in block]


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


def run(fake: FakeUpstream, directory: Path, refused: str) -> Running:
    fake.choose = Host(refused).answer
    compatible = '"openai-compatible"\nprotocol = "messages"'
    section = provider_section("messages", fake.url).replace('"anthropic"', compatible)
    return Running(ONCE + section, directory)


@pytest.mark.parametrize("headers", [{}, STRICT], ids=["any", "strict"])
@pytest.mark.parametrize(
    ("refused", "then"),
    [
        ("tool_result", ["tools", "text", "tool_use"]),
        ("tools", ["text", "tool_result"]),
        ("text", ["tools", "tool_result"]),
    ],
)
def test_a_refused_place_is_learnt_and_the_block_before_marked(
    fake: FakeUpstream, tmp_path: Path, refused: str, then: list[str], headers: dict[str, str]
) -> None:
    body = {"model": "up/m", "max_tokens": 9, "messages": MESSAGES, "tools": [TOOL]}
    with run(fake, tmp_path, refused) as gateway:
        for number, calls in enumerate((2, 3)):
            reply = send(gateway, "POST", PATHS["chat"], body, headers={**headers, **EXPLAIN})
            assert reply.status == 200, reply.body
            assert reply.losses == []
            assert len(fake.calls) == calls
            kinds = [kind for _, kind in list_marks(fake.calls[-1].json)]
            assert kinds
            assert refused not in kinds
            if number == 0:
                assert sorted(kinds) == sorted(then)


def test_a_clients_own_mark_moves_too(fake: FakeUpstream, tmp_path: Path) -> None:
    part = {"type": "text", "text": "42", "prompt_cache_breakpoint": {"mode": "explicit"}}
    messages = [*MESSAGES[:2], {"role": "tool", "tool_call_id": "c1", "content": [part]}]
    body = {"model": "up/m", "max_tokens": 9, "messages": messages, "prompt_cache_options": {"mode": "explicit"}}
    with run(fake, tmp_path, "tool_result") as gateway:
        assert send(gateway, "POST", PATHS["chat"], body).status == 200
        assert list_marks(fake.calls[-1].json) == [("messages.1.content.0.tool_use", "tool_use")]


@pytest.mark.parametrize(("headers", "status", "calls"), [({}, 200, 2), (STRICT, 400, 1)], ids=["any", "strict"])
def test_bytes_that_pass_lose_the_refused_marks_alone_and_strict_ones_none(
    fake: FakeUpstream, tmp_path: Path, headers: dict[str, str], status: int, calls: int
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "42", **mark}
    blocks = [[{"type": "text", "text": "Hi", **mark}], [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]]
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": part} for role, part in zip(roles, [*blocks, [result]], strict=True)]
    body = {"model": "m", "max_tokens": 9, "messages": turns}
    with run(fake, tmp_path, "tool_result") as gateway:
        reply = send(gateway, "POST", PATHS["messages"], {**body, "model": "up/m"}, headers={**headers, **EXPLAIN})
        assert reply.status == status, reply.body
        assert len(fake.calls) == calls
        if status == 200:
            assert reply.losses == [("/messages/2/content/0/cache_control", "dropped")]
            assert [kind for _, kind in list_marks(fake.calls[-1].json)] == ["text"]
