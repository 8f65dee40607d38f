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
Reactions = dict[tuple[str, str], str]  # client, trouble -> how often it asked, and whether that was enough

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
- **recovers**: after 429, 529, an HTML 502, an error event, an overload in mid-stream, a dropped or reset connection,
  a clean end without terminator, and a stall, it asks again and finishes its work; or, being an SDK that never asks
  again in mid-stream, it raises
- **not fooled**: a reply that is cut off is never taken for a whole one
"""

AFTER_ERRORS = """
## After an error

How many requests each client made for one reply, and whether its work was done (✓) or it reported the error (✗). The
gateway had its default settings but for shorter pauses between its own retries, and translated for every client.

- **401**: the client key is wrong. **402**: the upstream's allowance is spent. **403**: the model is not allowed.
  **502**: the upstream refuses the gateway's own credential. No retry mends these, and the error says
  `x-should-retry: false`; by these counts, Codex and opencode retry some of them all the same.
- **429 short**: a rate limit with `retry-after: 1`, also at the gateway's own three attempts. **429 long**: with
  `retry-after: 10`, which is longer than the gateway waits. **529**: an overload, also at all three attempts. Then all
  is well.
- **overload in mid-stream**: an error event after some words, once; SDKs leave it to their callers to ask again.
- **60 s of pings**: a minute of nothing but signs of life before the first token.
"""
TROUBLES = (
    *("401", "402", "403", "429 short", "429 long", "502", "529"),
    *("overload in mid-stream", "60 s of pings"),
)

NOTES = """
## What does not work

- **Vercel AI SDK** with its default `store: true` refers to earlier items by id (`item_reference`). Where the upstream
  speaks Responses the ids are its own and all is well; where the gateway translates, it keeps no items, and answers
  400 with the advice to send them. Set `providerOptions: { openai: { store: false } }`, as the tests do.
- **Kiro** may end its stream between two frames without its last events. The client then hears that the reply reached
  its length (`max_tokens`, `length`, `incomplete`): Codex reports it, Claude Code goes on by itself.
- **Codex** gives up where a Responses upstream itself says `server_is_overloaded` in mid-stream: that passes unchanged.
  An overload from any other upstream is told in words that it retries.
"""


def page(proven: Proven, reactions: Reactions) -> str:
    head = ["| client | version | speaks | " + " | ".join(f"on {NAMES[name]}" for name in UPSTREAMS) + " |"]
    rows = [
        f"| {client} | {pinned(client)} | {CLIENTS[client][2]} | "
        + " | ".join(", ".join(sorted(proven.get((client, name), ()))) or "✗" for name in UPSTREAMS)
        + " |"
        for client in CLIENTS
    ]
    table = [*head, "|-" * (3 + len(UPSTREAMS)) + "|", *rows]
    return "\n".join([HEAD, *table, AFTER_ERRORS, *_reaction_table(reactions), NOTES])


def _reaction_table(reactions: Reactions) -> list[str]:
    clients = [client for client in CLIENTS if any(name == client for name, _ in reactions)]
    rows = [
        f"| {client} | " + " | ".join(reactions.get((client, trouble), "") for trouble in TROUBLES) + " |"
        for client in clients
    ]
    return ["| client | " + " | ".join(TROUBLES) + " |", "|-" * (1 + len(TROUBLES)) + "|", *rows]


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


def read_reactions(text: str) -> Reactions:
    """What a page says of clients after an error."""
    found: Reactions = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in CLIENTS and len(cells) == 1 + len(TROUBLES):
            found |= {(cells[0], trouble): cell for trouble, cell in zip(TROUBLES, cells[1:], strict=True)}
    return found
