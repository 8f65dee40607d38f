"""What a model has read of a conversation, it reads again in every later request: thinking, images, parallel calls.

The client keeps the history itself, as it got the replies. Every pair of protocols, and after a failover and back.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import msgspec
import pytest

from asking import Reply, ask
from laws import assert_prefixes_stay
from rig import UPSTREAMS, Rig, run_rig
from scripting import write_error
from scripting.replies import Part, ScriptedReply, Stop, Text, Thinking, ToolCall
from translate.caching.simulator import read_chat, read_gemini, read_messages, read_responses
from translate.caching.test_forms import PIXEL
from wire_json import Json, JsonObject

READERS = {"chat": read_chat, "responses": read_responses, "messages": read_messages, "gemini": read_gemini}
SETTINGS = "[retry]\nattempts = 2\nbase_s = 0.01\n"
PAIR = '[[models]]\nname = "{0}-{1}"\nto = ["{0}/claude-opus-5", "{1}/claude-opus-5"]\n'
FAILOVERS = [("messages", "chat"), ("gemini", "messages"), ("responses", "gemini"), ("chat", "gemini")]
SEAL = "c2VhbGVk"


def make_round(number: int) -> ScriptedReply:
    """Return a reply: it thinks, and calls tools, one or three at once, or says something."""
    parts: list[Part] = [Thinking(f"Thought {number}.", f"{SEAL}{number}AA")]
    if number % 3 == 2:
        return ScriptedReply((*parts, Text(f"Answer {number}.")))
    places = range(1 + 2 * (number % 2))
    calls = [ToolCall(f"call_{number}_{place}", "look", f'{{"at": "{place}"}}') for place in places]
    return ScriptedReply((*parts, Text(f"Let me see {number}."), *calls), Stop.TOOL)


ROUNDS = [make_round(number) for number in range(9)]


class Client:
    """One that plays back the replies as it got them."""

    def __init__(self, protocol: str, model: str) -> None:
        self.protocol = protocol
        self.model = model
        self.history: list[Json] = []

    def ask(self, rig: Rig, number: int, text: str) -> None:
        """Send the results of the calls before, or what the user says."""
        self.history += self._write_results() or [self._write_user(number, text)]
        reply = ask(rig, self.protocol, self.model, headers={"x-session-id": self.model + text}, **self._fields())
        assert reply.status == 200, reply.body
        self._keep(reply)

    def _fields(self) -> JsonObject:
        schema = {"type": "object", "properties": {"at": {"type": "string"}}}
        tool: JsonObject = {"name": "look", "description": "Look.", "parameters": schema}
        match self.protocol:
            case "chat":
                tools: list[Json] = [{"type": "function", "function": tool}]
                return {"messages": [{"role": "system", "content": "Be brief."}, *self.history], "tools": tools}
            case "responses":
                include = ["reasoning.encrypted_content"]
                own: JsonObject = {"store": False, "include": include, "instructions": "Be brief."}
                return {**own, "input": self.history, "tools": [{"type": "function", **tool}]}
            case "messages":
                del tool["parameters"]
                thinking = {"type": "adaptive"}
                own = {"system": "Be brief.", "max_tokens": 9000, "thinking": thinking}
                return {**own, "messages": self.history, "tools": [{**tool, "input_schema": schema}]}
        instructions: JsonObject = {"systemInstruction": {"parts": [{"text": "Be brief."}]}}
        return {**instructions, "contents": self.history, "tools": [{"functionDeclarations": [tool]}]}

    def _write_user(self, number: int, text: str) -> JsonObject:
        link = f"data:image/png;base64,{PIXEL}"
        question = f"Question {number} about {text}"
        match self.protocol:
            case "chat":
                content: list[Json] = [{"type": "text", "text": question}]
                content += [{"type": "image_url", "image_url": {"url": link}}] if number == 0 else []
            case "responses":
                content = [{"type": "input_text", "text": question}]
                content += [{"type": "input_image", "image_url": link, "detail": "auto"}] if number == 0 else []
            case "messages":
                source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
                content = [{"type": "text", "text": question}]
                content += [{"type": "image", "source": source}] if number == 0 else []
            case _:
                parts: list[Json] = [{"text": question}]
                parts += [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}] if number == 0 else []
                return {"role": "user", "parts": parts}
        return {"role": "user", "content": content}

    def _write_results(self) -> list[Json]:
        """Return the results of the calls of the newest reply; none if it has none."""
        match self.protocol:
            case "chat":
                calls = self.history[-1].get("tool_calls") if self.history else None
                return [{"role": "tool", "tool_call_id": call["id"], "content": "Seen."} for call in calls or ()]
            case "responses":
                newest: list[Json] = []
                for item in reversed(self.history):
                    if item.get("type") != "function_call":
                        break
                    newest.insert(0, item)
                output = {"type": "function_call_output", "output": "Seen."}
                return [{**output, "call_id": item["call_id"]} for item in newest]
            case "messages":
                blocks = self.history[-1]["content"] if self.history else []
                uses = [block for block in blocks if block["type"] == "tool_use"]
                found = [{"type": "tool_result", "tool_use_id": use["id"], "content": "Seen."} for use in uses]
                return [{"role": "user", "content": found}] if found else []
        parts = self.history[-1]["parts"] if self.history else []
        called = [part["functionCall"] for part in parts if "functionCall" in part]
        shown = [{"functionResponse": {**pick(call), "response": {"output": "Seen."}}} for call in called]
        return [{"role": "user", "parts": shown}] if shown else []

    def _keep(self, reply: Reply) -> None:
        match self.protocol:
            case "chat":
                self.history.append(reply.json["choices"][0]["message"])
            case "responses":
                self.history += reply.json["output"]
            case "messages":
                self.history.append({"role": "assistant", "content": reply.json["content"]})
            case _:
                self.history.append(reply.json["candidates"][0]["content"])


def pick(call: JsonObject) -> JsonObject:
    return {key: call[key] for key in ("id", "name") if key in call}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    models = "".join(PAIR.format(*pair) for pair in FAILOVERS)
    with run_rig(tmp_path_factory.mktemp("rig"), SETTINGS + models) as rig:
        yield rig


def list_sent(rig: Rig, upstream: str) -> Sequence[list[bytes]]:
    bodies = [msgspec.json.decode(call.body) for call in rig.calls(upstream)]
    return [[block.content for block in READERS[upstream](body)] for body in bodies]


@pytest.mark.parametrize(("client", "upstream"), list(product(UPSTREAMS, UPSTREAMS)))
def test_each_request_begins_with_what_the_one_before_had(rig: Rig, client: str, upstream: str) -> None:
    talker = Client(client, f"{upstream}/claude-opus-5")
    rig.play(upstream, *ROUNDS, stream=False)
    for number in range(len(ROUNDS)):
        talker.ask(rig, number, upstream)
    sent = list_sent(rig, upstream)
    assert len(sent) == len(ROUNDS)
    assert_prefixes_stay(sent)
    if upstream != "chat":
        assert f"{SEAL}0AA" in rig.calls(upstream)[-1].body.decode(), "the upstream gets its thinking back"


@pytest.mark.parametrize("client", UPSTREAMS)
@pytest.mark.parametrize(("first", "second"), FAILOVERS)
@pytest.mark.parametrize("away", [range(3, 6), range(4, 5)], ids=["a whole turn", "in the middle of its calls"])
def test_after_a_failover_and_back_each_upstream_reads_again_what_it_has_read(
    rig: Rig, client: str, first: str, second: str, away: range
) -> None:
    talker = Client(client, f"{first}-{second}")
    down = write_error(529, "Overloaded.")
    served: dict[str, list[list[bytes]]] = {first: [], second: []}
    for number, scripted in enumerate(ROUNDS):
        up, other = (second, first) if number in away else (first, second)
        rig.play(other, down)
        rig.play(up, scripted, stream=False)
        talker.ask(rig, number, first)
        served[up] += list_sent(rig, up)[-1:]
    assert [len(sent) for sent in served.values()] == [9 - len(away), len(away)]
    for sent in served.values():
        assert_prefixes_stay(sent)
