"""What a client does after an error: the failures of an upstream, and how each client is run with them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from clients import claude_code, codex
from clients.driven import DRIVERS, NOTE, outcomes
from clients.faults import CUTS, refusal
from clients.install import native
from clients.node_sdks import drive
from clients.rig import Ran, Rig
from fakes.agent import AgentRequest, ChangeAnswer, Use
from fakes.upstream import Answer
from gateway import KEY

WRONG_KEY = "dgm_a-key-that-nobody-has-made"
ATTEMPTS = 3  # the gateway's own, by default
FOR_EVER = 1000
PATIENCE_S = 300.0
# The gateway's own retries, which are others' subject, take little time here.
SETTINGS = "[retry]\nbase_s = 0.05\n"
COMMAND = "echo hello-from-tool > out.txt && cat out.txt"
PINGS = {"messages": b'event: ping\ndata: {"type": "ping"}\n\n'}


@dataclass(frozen=True)
class Trouble:
    """How an upstream fails, for how many requests, and whether a retry helps."""

    fault: Callable[[str, Answer], Answer]
    times: int  # requests of the gateway
    passes: bool = True  # else the client need not retry
    key: str = KEY

    def change(self, upstream: str) -> ChangeAnswer:
        def change(answer: Answer, request: AgentRequest, before: int) -> Answer:
            return self.fault(upstream, answer) if before < self.times else answer

        return change


def _pings(upstream: str, answer: Answer) -> Answer:
    """A minute of nothing but signs of life, and then the reply."""
    return replace(answer, signs=12, sign=PINGS.get(upstream, b": alive\n\n"), sign_pause_s=5.0)


LIMITED = (b"rate_limit_error", b"rate_limit_error")
TROUBLES: dict[str, Trouble] = {
    "401": Trouble(lambda _, answer: answer, 0, passes=False, key=WRONG_KEY),
    "402": Trouble(refusal(402, (b"insufficient_quota", b"billing_error")), FOR_EVER, passes=False),
    "403": Trouble(refusal(403, (b"permission_error", b"permission_error")), FOR_EVER, passes=False),
    "429 short": Trouble(refusal(429, LIMITED, ("retry-after", "1")), ATTEMPTS),
    "429 long": Trouble(refusal(429, LIMITED, ("retry-after", "10")), 1),
    "502": Trouble(refusal(401, (b"authentication_error", b"authentication_error")), FOR_EVER, passes=False),
    "529": Trouble(refusal(529, (b"server_error", b"overloaded_error")), ATTEMPTS),
    "overload in mid-stream": Trouble(CUTS["overload"], 1),
    "60 s of pings": Trouble(_pings, 1),
}


@dataclass(frozen=True)
class Asker:
    """How a client is run, on an upstream of another protocol than its own."""

    upstream: str
    use: Use
    ask: Callable[[Rig, Path, Path, str], bool]  # rig, its directory, node, key -> whether its work was done


def _claude_code(rig: Rig, directory: Path, node: Path, key: str) -> bool:
    ran = claude_code.ask(rig, directory, "Write a file.", ANTHROPIC_AUTH_TOKEN=key)
    return ran.code == 0 and claude_code.result(ran)["result"] == "Finished. The last tool said: hello-from-tool"


def _codex(rig: Rig, directory: Path, node: Path, key: str) -> bool:
    ran = codex.ask(rig, directory, "Write a file.", patience_s=PATIENCE_S, key=key)
    return ran.code == 0 and codex.is_complete(ran) and "hello-from-tool" in codex.list_messages(ran)[-1]


def _opencode(rig: Rig, directory: Path, node: Path, key: str) -> bool:
    options = {"baseURL": f"{rig.url}/v1", "apiKey": key}
    models = {"some-model": {"name": "some-model"}}
    gateway = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    config = {"$schema": "https://opencode.ai/config.json", "provider": {"gateway": gateway}, "autoupdate": False}
    folder = rig.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_bytes(msgspec.json.encode(config))
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    arguments = ("run", "--format", "json", "--title", "a title", "-m", "gateway/some-model", "--auto", "Write a file.")
    binary = native(directory, "opencode-*/bin/opencode")
    return "Finished. The last tool said" in rig.run(binary, *arguments, patience_s=PATIENCE_S, env=quiet).out


def _python(driver: str, way: str) -> Callable[[Rig, Path, Path, str], bool]:
    def ask(rig: Rig, directory: Path, node: Path, key: str) -> bool:
        return _is_done(rig.run(sys.executable, DRIVERS / driver, way, env={"GATEWAY_KEY": key}), way)

    return ask


def _node(driver: str, way: str) -> Callable[[Rig, Path, Path, str], bool]:
    def ask(rig: Rig, directory: Path, node: Path, key: str) -> bool:
        return _is_done(drive(rig, node, directory, driver, way, env={"GATEWAY_KEY": key}), way)

    return ask


def _is_done(ran: Ran, way: str) -> bool:
    return outcomes(ran)[way].text.startswith("Finished")


ASKERS: Mapping[str, Asker] = {
    "Claude Code": Asker("chat", Use("Bash", {"command": COMMAND, "description": "write a file"}), _claude_code),
    "Codex": Asker("messages", Use("exec_command", {"cmd": COMMAND}), _codex),
    "opencode": Asker("messages", Use("bash", {"command": COMMAND, "description": "write a file"}), _opencode),
    "openai-python": Asker("messages", NOTE, _python("openai_python.py", "chat-stream")),
    "anthropic-python": Asker("chat", NOTE, _python("anthropic_python.py", "messages-stream")),
    "openai-node": Asker("messages", NOTE, _node("openai_node.mjs", "chat-stream")),
    "@anthropic-ai/sdk": Asker("chat", NOTE, _node("anthropic_node.mjs", "messages-stream")),
}
SDKS = tuple(ASKERS)[3:]
# Of versions.toml; what has none is among our own test dependencies.
TABLES = {
    "Claude Code": "claude-code",
    "Codex": "codex",
    "opencode": "opencode",
    "openai-node": "node-sdks",
    "@anthropic-ai/sdk": "node-sdks",
}


def requests_made(rig: Rig) -> int:
    """Return how often the client has requested a reply."""
    return sum(method == "POST" for method, _ in rig.door.requests)
