"""Write docs/clients.md from the results of the client tests, and read it back to compare it with them."""

from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from clients.install import PINS
from clients.rig import ALL_UPSTREAMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
NAMES = {"chat": "Chat", "responses": "Responses", "messages": "Messages", "kiro": "Kiro", "gemini": "Gemini"}

# Each client: where its version is pinned (a package of our own lock where no table is named), and its protocols.
CLIENTS: dict[str, tuple[str, str, str]] = {
    "Claude Code": ("claude-code", "@anthropic-ai/claude-code", "Messages"),
    "claude-agent-sdk": ("claude-agent", "claude-agent-sdk", "Messages"),
    "Codex": ("codex", "@openai/codex", "Responses"),
    "Gemini CLI": ("gemini-cli", "@google/gemini-cli", "Gemini"),
    "opencode": ("opencode", "opencode-ai", "Messages, Responses, Chat"),
    "aider": ("aider", "aider-chat", "Chat, Messages"),
    "llm": ("llm", "llm", "Chat, Responses, Messages"),
    "openai-python": ("", "openai", "Chat, Responses"),
    "anthropic-python": ("", "anthropic", "Messages"),
    "google-genai": ("", "google-genai", "Gemini"),
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
Reactions = dict[tuple[str, str], str]  # client, trouble -> how many requests it made, and whether its work was done

HEAD = """# Clients

Which real client works on which upstream. `make clients-page` writes this page from the results of
`make test-clients`; a test fails when it is stale. Each client is installed from its registry in the version below
and talks to the gateway over real sockets. Behind the gateway, a fake upstream of each protocol plays a small agent
script. [compatibility.md](compatibility.md) lists what each pair of protocols loses.

- **tools**: a conversation with tools runs to its end: files are written, results come back, the last text is right
- **whole**, **streamed**: with replies in one piece, with streamed replies
- **edits**: the file that the reply describes is edited
- **freeform**: a tool that takes plain text under a grammar (`apply_patch`) works
- **late tools**: tools that arrive as an input item, in a namespace, work
- **WebSocket**: all its requests of a run go over one WebSocket, each with only what is new
- **state**: it leaves its history to the server and refers to it by ids (of responses, conversations or items); the
  upstream keeps nothing
- **web search**: its web search runs where the upstream has none, because the gateway runs it
- **counts**: its token counts are answered
- **recovers**: after 429, 529, an HTML 502, an error event, an overload in the middle of a stream, a dropped or reset
  connection, a clean end without a terminator, and a stall, it retries and finishes its work. An SDK that never
  retries a started stream raises instead
- **detects cuts**: it never takes a reply that was cut off for a complete one
"""

AFTER_ERRORS = """
## After an error

The number of requests that each client made for one reply, and whether its work was done (✓) or it reported the error
(✗). The gateway had its default settings, except for shorter waits between its own retries, and translated for every
client.

- **401**: the client key is wrong. **402**: the upstream's allowance is spent. **403**: the model is not allowed.
  **502**: the upstream rejects the gateway's own credential. A retry does not help, and the error has
  `x-should-retry: false`. Codex and opencode retry some of them anyway.
- The table has one upstream for each client. **Codex** on a Responses upstream, whose errors pass as they came, asks
  six times after a 402 too.
- **Gemini CLI** ends after one request with 401 and 403. After a **502** it asks ten times, for four minutes, and then
  shows `[object Object]`. Stop it with Ctrl-C; `dragoman doctor` says which credential was rejected.
- **429 short**: a rate limit with `retry-after: 1`, at each of the gateway's own three attempts. **429 long**: with
  `retry-after: 10`, which is longer than the gateway waits. **529**: an overload, at all three attempts. The next
  request succeeds.
- **overload in mid-stream**: an error event after some words, once. SDKs leave the retry to their callers.
- **60 s of pings**: only pings for a minute before the first token.
"""
TROUBLES = (
    *("401", "402", "403", "429 short", "429 long", "502", "529"),
    *("overload in mid-stream", "60 s of pings"),
)

NOTES = """
## What does not work

- **Kiro** may end its stream between two frames without its last events. The client then gets a reply that reached
  its length limit (`max_tokens`, `length`, `incomplete`). Codex reports it, Claude Code continues by itself.
- **Codex** gives up if a Responses upstream itself sends `server_is_overloaded` in the middle of a stream: that
  passes unchanged. An overload from any other upstream becomes an error that Codex retries.
- **Claude Code** in auto mode, which is its default, says once a day that "this session isn't eligible" because your
  requests go through the gateway, and to ask your gateway to implement
  `https://code.claude.com/docs/en/auto-mode-classifier-billing`. Continue: auto mode works. The free check runs on
  Anthropic's own servers; here, the requests that check an action go to your upstream and are paid for like all others.
"""


def page(proven: Proven, reactions: Reactions) -> str:
    head = ["| client | version | protocols | " + " | ".join(f"on {NAMES[name]}" for name in ALL_UPSTREAMS) + " |"]
    rows = [
        f"| {client} | {find_version(client)} | {CLIENTS[client][2]} | "
        + " | ".join(", ".join(sorted(proven.get((client, name), ()))) or "✗" for name in ALL_UPSTREAMS)
        + " |"
        for client in CLIENTS
    ]
    table = [*head, "|-" * (3 + len(ALL_UPSTREAMS)) + "|", *rows]
    return "\n".join([HEAD, *table, AFTER_ERRORS, *_reaction_table(reactions), NOTES])


def _reaction_table(reactions: Reactions) -> list[str]:
    clients = [client for client in CLIENTS if any(name == client for name, _ in reactions)]
    rows = [
        f"| {client} | " + " | ".join(reactions.get((client, trouble), "") for trouble in TROUBLES) + " |"
        for client in clients
    ]
    return ["| client | " + " | ".join(TROUBLES) + " |", "|-" * (1 + len(TROUBLES)) + "|", *rows]


def find_version(client: str) -> str:
    table, package, _ = CLIENTS[client]
    return {**PINS["npm"], **PINS["python"]}[table][package] if table else version(package)


def read(text: str) -> Proven:
    """Return the capabilities that a page lists."""
    claimed: Proven = defaultdict(set)
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in CLIENTS and len(cells) == 3 + len(ALL_UPSTREAMS):
            for name, cell in zip(ALL_UPSTREAMS, cells[3:], strict=True):
                claimed[cells[0], name] = set() if cell == "✗" else set(cell.split(", "))
    return claimed


def read_reactions(text: str) -> Reactions:
    """Return what a page lists of clients after an error."""
    found: Reactions = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in CLIENTS and len(cells) == 1 + len(TROUBLES):
            found |= {(cells[0], trouble): cell for trouble, cell in zip(TROUBLES, cells[1:], strict=True)}
    return found
