"""What the client tests proved comes in; docs/clients.md goes out, and is read again to be compared."""

from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from clients.install import PINS
from clients.rig import UPSTREAMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
NAMES = {"chat": "Chat", "responses": "Responses", "messages": "Messages", "kiro": "Kiro"}

# Each client: where its version is pinned (a package of our own lock where no table is named), and what it speaks.
CLIENTS: dict[str, tuple[str, str, str]] = {
    "Claude Code": ("claude-code", "@anthropic-ai/claude-code", "Messages"),
    "claude-agent-sdk": ("claude-agent", "claude-agent-sdk", "Messages"),
    "Codex": ("codex", "@openai/codex", "Responses"),
    "opencode": ("opencode", "opencode-ai", "Messages, Responses, Chat"),
    "aider": ("aider", "aider-chat", "Chat, Messages"),
    "llm": ("llm", "llm", "Chat, Responses, Messages"),
    "openai-python": ("", "openai", "Chat, Responses"),
    "anthropic-python": ("", "anthropic", "Messages"),
    "anthropic-python 1": ("anthropic-1", "anthropic", "Messages"),
    "openai-node": ("node-sdks", "openai", "Chat, Responses"),
    "@anthropic-ai/sdk": ("node-sdks", "@anthropic-ai/sdk", "Messages"),
    "Vercel AI SDK": ("node-sdks", "ai", "Responses, Chat, Messages"),
    "openai-agents": ("openai-agents", "openai-agents", "Chat, Responses"),
    "pydantic-ai": ("pydantic-ai", "pydantic-ai-slim[openai,anthropic]", "Chat, Responses, Messages"),
    "langchain": ("langchain", "langchain", "Chat, Responses, Messages"),
}
Proven = dict[tuple[str, str], set[str]]  # client, upstream -> capabilities
Proves = Callable[..., None]  # client, upstream, capabilities

HEAD = """# Clients

Written by `make clients-page` from what `make test-clients` proved; the tests fail when this page is stale. Every
client is the real one, installed from its registry in the version named here, and talks to the gateway over real
sockets; behind the gateway a fake upstream of each protocol plays a small agent script. What each pair of protocols
loses is in [compatibility.md](compatibility.md).

- **tools**: a conversation with tools runs to its end: files are written, results come back, the last text is right
- **whole**, **streamed**: with replies in one piece, with replies in a stream
- **edits**: the file that the reply describes is edited
- **freeform**: a tool that takes plain text under a grammar (`apply_patch`) works
- **late tools**: tools that come as an input item, in a namespace, work
- **fallback**: the WebSocket that it tries first is refused with 426, and it goes on at once
- **counts**: its questions about the size of its context are answered
- **recovers**: after 429, 529, an HTML 502, an error event, a dropped or reset connection, a clean end without
  terminator, and a stall, it asks again and finishes its work; or, being an SDK that never asks again in mid-stream,
  it raises
- **not fooled**: a reply that is cut off is never taken for a whole one
"""

NOTES = """
## What does not work

- **Vercel AI SDK** with its default `store: true` refers to earlier items by id (`item_reference`). Where the upstream
  speaks Responses the ids are its own and all is well; where the gateway translates, it keeps no items, and answers
  400 with the advice to send them. Set `providerOptions: { openai: { store: false } }`, as the tests do.
- **Kiro** may end its stream between two frames without its last events. The client then hears that the reply reached
  its length (`max_tokens`, `length`, `incomplete`): Codex reports it, Claude Code goes on by itself.
- **Claude Code** gives up after an error that the gateway has already asked about again (`retry.attempts`, 3): the
  error says `x-should-retry: false`. Set `retry.attempts = 1` to leave all patience to the client.
"""


def page(proven: Proven) -> str:
    head = ["| client | version | speaks | " + " | ".join(f"on {NAMES[name]}" for name in UPSTREAMS) + " |"]
    rows = [
        f"| {client} | {pinned(client)} | {CLIENTS[client][2]} | "
        + " | ".join(", ".join(sorted(proven.get((client, name), ()))) or "✗" for name in UPSTREAMS)
        + " |"
        for client in CLIENTS
    ]
    return "\n".join([HEAD, *head, "|-" * (3 + len(UPSTREAMS)) + "|", *rows, NOTES])


def pinned(client: str) -> str:
    table, package, _ = CLIENTS[client]
    return {**PINS["npm"], **PINS["python"]}[table][package] if table else version(package)


def read(text: str) -> Proven:
    """What a page claims."""
    claimed: Proven = defaultdict(set)
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in CLIENTS and len(cells) == 3 + len(UPSTREAMS):
            for name, cell in zip(UPSTREAMS, cells[3:], strict=True):
                claimed[cells[0], name] = set() if cell == "✗" else set(cell.split(", "))
    return claimed
