"""Requests to a gateway with echo, so that the console has something to show."""

import msgspec

import asking
from fakes.upstream import Answer, Gate
from gateway import KEY, Running
from scripting import write_reply
from scripting.replies import Text
from waiting import wait_until

ECHO = '[providers.echo]\nkind = "echo"\n'
PRICED = """
[[prices]]
model = "echo/*"
input = 3.0
output = 15.0
"""


def make_capturing_config(directory: object) -> str:
    """Return a configuration with echo that captures every request."""
    routes = '[[models]]\nname = "claude-*"\nto = ["echo/echo"]\n'
    return f'{ECHO}{PRICED}[debug]\ncapture = "all"\ndirectory = "{directory}"\n{routes}'


def write_words(count: int, gate: Gate) -> Answer:
    """Return a Chat stream with an event for each of the words w0, w1, …; what is behind the gate waits for it."""
    return write_reply("chat", [Text(f"w{number} ") for number in range(count)], cut=200, gate=gate)


def ask(
    gateway: Running,
    text: str = "What is a dragoman?",
    model: str = "echo",
    request_id: str = "",
    key: str = KEY,
    agent: str = "claude-cli/2.1",
    **fields: object,
) -> int:
    """Send a streamed Messages request, with these fields too, and return the status of the response."""
    headers = {"user-agent": agent, **({"x-request-id": request_id} if request_id else {})}
    return asking.ask(gateway, "messages", model, text, stream=True, key=key, headers=headers, **fields).status


def own_id(gateway: Running, client_request_id: str) -> str:
    """Return the gateway's id of a request that its client calls so, as soon as there is such a request."""
    found: list[str] = []

    def is_there() -> bool:
        data = asking.send(gateway, "GET", "/api/v1/feed").body
        events = [msgspec.json.decode(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]
        rows = [row for event in events for row in event.get("rows", ())]
        found.extend(row["request_id"] for row in rows if row["client_request_id"] == client_request_id)
        found.extend(one.request_id for one in gateway.outcomes if one.client_request_id == client_request_id)
        return bool(found)

    wait_until(is_there)
    return found[-1]
