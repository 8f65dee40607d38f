"""The scripted agent of a recorded session: what the user says, which files the model reads, and what it answers."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec

from clients.sessions.recorded import RecordedReply, RecordedRequest, ScriptedCall
from fakes.agent import Reply, Tool
from fakes.agent import ToolCall as FreeformCall
from fakes.agents import responses
from fakes.upstream import Answer, ReceivedRequest
from scripting import make_reply, write_reply
from scripting.replies import Part, Text, Thinking, Tokens, ToolCall

# For each turn of the user, how many files the model reads at once, round by round; then it answers.
TURNS: tuple[tuple[int, ...], ...] = ((1, 3), (2,), (12, 1), (), (4, 1, 1), (1,), (6, 2), (1, 1), (8,), (1,))
FILES = sum(map(sum, TURNS))
FILE_LINES = 68
WORDS = (
    *("account", "batch", "cursor", "delta", "entry", "filter", "group", "header", "index", "journal", "kernel"),
    *("ledger", "margin", "number", "offset", "parcel", "quota", "record", "sample", "token", "update", "vector"),
)
PROMPTS = (
    "Read the first modules and explain how records are filtered.",
    "Which of the next two modules owns the journal?",
    "Compare the next dozen modules, then look at the one that differs most.",
    "Summarise what we know so far in three sentences.",
    "Follow the calls through the next modules, one after another.",
    "Is the quota checked anywhere else?",
    "Read the modules about parcels, then those two that import them.",
    "Check the margins step by step.",
    "Read all remaining modules of the batch.",
    "Read the last module and conclude.",
)
ITEM_ID = re.compile(rb'"(msg|rs|fc)_(\d+)"')
GEMINI_CALL_ID = re.compile(rb'("functionCall": \{)"id": "[^"]*", ')
RESPONSE_ID = re.compile(rb'"(msg_01fake|resp_fake|chatcmpl-fake|fake)1?"')


MAP_PROMPTS = (  # each names functions of the modules, so that a map of the repository is another one every time
    "Explain how record and filter work together.",
    "Which of the modules own journal and ledger?",
    "Compare batch with parcel.",
    "Summarise what account, quota and margin do.",
    "Follow cursor through token and kernel.",
)


def make_project(directory: Path, lines: int = FILE_LINES, *, defines_functions: bool = False) -> None:
    """Write the files that the model reads, of so many lines each, and commit them."""
    (directory / "src").mkdir(parents=True)
    for number in range(1, FILES + 1):
        text = write_functions(number) if defines_functions else write_module(number, lines)
        (directory / name_file(number)).write_text(text)
    (directory / "README.md").write_text("# Ledger\n\nKeeps records of parcels.\n")
    identity = {"NAME": "Dev", "EMAIL": "dev@example.com", "DATE": "2026-11-01T12:00:00Z"}
    env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in identity.items()}
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "Begin the ledger")):
        subprocess.run(["git", *words], cwd=directory, env={**os.environ, **env, "HOME": str(directory)}, check=True)


def name_file(number: int) -> str:
    return f"src/module_{number:02}.py"


def write_module(number: int, count: int) -> str:
    random = Random(number)
    lines = [f'"""Module {number}."""', ""]
    for line in range(count):
        first, second, third = (random.choice(WORDS) for _ in range(3))
        lines.append(
            f"{first}_{line} = {second}({random.randrange(10_000)}, {third}={random.randrange(100)})  # {first}"
        )
    return "\n".join(lines) + "\n"


def write_functions(number: int) -> str:
    """Return a module whose functions call those of others by their names."""
    random = Random(number)
    parts = [f'"""Module {number}."""\n']
    for name in random.sample(WORDS, 9):
        arguments = ", ".join(f"{word}_{random.randrange(1000)}: int" for word in random.sample(WORDS, 4))
        calls = " + ".join(f"{word}({random.randrange(100)})" for word in random.sample(WORDS, 3))
        parts.append(f"\ndef {name}({arguments}) -> int:\n    return {calls}\n")
    return "\n".join(parts)


@dataclass(frozen=True)
class ReadTool:
    """How a client's model reads files: the tool's name, and its arguments for the path of a file."""

    name: str
    write_arguments: Callable[[str], str]
    is_freeform: bool = False  # one call of plain text reads all files of a round


@dataclass
class ScriptedUpstream:
    """Answers the requests of one client by the script, and records them."""

    client: str
    protocol: str
    tool: ReadTool | None  # None: the client offers none
    project: Path
    turns: tuple[tuple[int, ...], ...] = TURNS
    prompts: tuple[str, ...] = PROMPTS
    turn: int = 0
    recorded: list[RecordedRequest] = field(default_factory=list)
    _rounds: list[int] = field(default_factory=list)  # left in this turn
    _files_read: int = 0
    _is_answered: bool = True
    _started: float = 0.0

    def list_prompts(self) -> Iterator[str]:
        """Yield what the user says, each time the turn before has come to its end; fails if it has not."""
        for turn, rounds in enumerate(self.turns, 1):
            self.turn, self._rounds, self._is_answered = turn, list(rounds), False
            yield self.prompts[turn - 1]
            assert self._is_answered, f"turn {turn} of {self.client} was not answered"

    def __call__(self, received: ReceivedRequest) -> Answer:
        now = time.monotonic()
        self._started = self._started or now
        is_side = self.tool is not None and f'"name":"{self.tool.name}"'.encode() not in received.body
        reply = RecordedReply("Reading a ledger") if is_side else self._continue(thinks=self._wants_thinking(received))
        self.recorded.append(
            RecordedRequest(
                client=self.client,
                number=len(self.recorded) + 1,
                at_s=round(now - self._started, 3),
                turn=self.turn,
                is_side=is_side,
                path=received.path,
                headers=received.fields,
                body=msgspec.Raw(received.body),
                reply=reply,
            )
        )
        return self._write(reply, received)

    def _continue(self, *, thinks: bool) -> RecordedReply:
        """Return the next round of calls, or the answer that ends the turn."""
        thinking = f"Turn {self.turn}: {len(self._rounds)} rounds are left." if thinks else ""
        if not self._rounds:
            assert not self._is_answered, f"{self.client} went on after the end of turn {self.turn}"
            self._is_answered = True
            return RecordedReply(f"That was turn {self.turn}: the modules agree.", thinking)
        count, first = self._rounds.pop(0), self._files_read + 1
        self._files_read += count
        paths = [str(self.project / name_file(number)) for number in range(first, first + count)]
        text = f"I will read {count} of the modules, from number {first} on."
        return RecordedReply(text, thinking, self._write_calls(paths, first))

    def _write_calls(self, paths: list[str], first: int) -> tuple[ScriptedCall, ...]:
        tool = self.tool
        assert tool is not None
        if tool.is_freeform:
            return (ScriptedCall(f"call_{first:04}", tool.name, tool.write_arguments(" ".join(paths))),)
        return tuple(
            ScriptedCall(f"call_{number:04}", tool.name, tool.write_arguments(path))
            for number, path in enumerate(paths, first)
        )

    def _wants_thinking(self, received: ReceivedRequest) -> bool:
        fields = {"messages": "thinking", "responses": "reasoning", "gemini": "generationConfig"}
        return fields.get(self.protocol) in received.json

    def _write(self, reply: RecordedReply, received: ReceivedRequest) -> Answer:
        number = len(self.recorded)
        tokens = Tokens(input=len(received.body) // 4, output=100)
        if self.tool is not None and self.tool.is_freeform and reply.calls:
            return Answer(responses.stream(_make_freeform(reply, number, tokens)))
        is_stream = "stream=" in received.path or "alt=sse" in received.path or received.json.get("stream") is True
        made = replace(make_reply(_list_parts(reply, f"seal{number:04}==", self.protocol)), tokens=tokens)
        answer = write_reply(self.protocol, made, stream=is_stream)
        return replace(answer, body=_number_ids(answer.body, number))


def _list_parts(reply: RecordedReply, seal: str, protocol: str) -> list[Part]:
    calls = [ToolCall(call.id, call.tool, call.arguments) for call in reply.calls]
    if not reply.thinking:
        return [Text(reply.text), *calls]
    if protocol == "gemini" and calls:  # signs the first call of a step
        return [Thinking(reply.thinking), Text(reply.text), Thinking("", seal), *calls]
    return [Thinking(reply.thinking, seal), Text(reply.text), *calls]


def _make_freeform(reply: RecordedReply, number: int, tokens: Tokens) -> Reply:
    call = FreeformCall(reply.calls[0].id, Tool(reply.calls[0].tool, freeform=True), reply.calls[0].arguments)
    return Reply(number, "scripted", reply.text, reply.thinking, call, tokens.input, tokens.output)


def _number_ids(body: bytes, number: int) -> bytes:
    """Give each reply ids of its own, as vendors do, and Gemini's calls none; the encoders write the same for all."""
    body = GEMINI_CALL_ID.sub(rb"\1", body)
    body = ITEM_ID.sub(rb'"\g<1>_%04d_\g<2>"' % number, body)
    return RESPONSE_ID.sub(rb'"\g<1>%04d"' % number, body)
