"""The suite llm-comply, which judges replies by the vendors' published schemas, over upstreams of every protocol.

`LLM_COMPLY` names the command of llm-comply 0.5.0: `python -m venv DIR && DIR/bin/pip install llm-comply==0.5.0`.
"""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY
from rig import ALL_UPSTREAMS, ONCE, run_rig
from scripting import write_reply
from scripting.replies import Part, Text, ToolCall
from wire_json import JsonObject

# By format: where its paths begin, how many tests it has besides those for models of certain names, its protocol.
FORMATS = {
    "anthropic": ("/v1", 8, "messages"),
    "openai-chat": ("/v1", 8, "chat"),
    "open-responses": ("/v1", 12, "responses"),
    "google-genai": ("", 9, "gemini"),
}
CALL = ToolCall("call_1", "get_weather", '{"location": "San Francisco"}')
MODELS = {"echo": "echo", "kiro": "kiro/claude-sonnet-4.5"}


PAIRS = [
    (format, upstream)
    for format, (_, _, client) in FORMATS.items()
    for upstream in ("echo", *ALL_UPSTREAMS)
    if upstream != client  # whose bytes pass
]


@pytest.mark.parametrize(("format", "upstream"), PAIRS)
def test_every_test_of_the_suite_passes(format: str, upstream: str, tmp_path: Path) -> None:
    start, count, _ = FORMATS[format]
    model = MODELS.get(upstream, f"{upstream}/m")
    with run_rig(tmp_path, f'{ONCE}[providers.echo]\nkind = "echo"\n', upstreams=ALL_UPSTREAMS) as rig:
        for name, fake in rig.fakes.items():
            prepare(name, fake)
        place = ["-u", f"{rig.gateway.url}{start}", "-k", KEY, "-m", model]
        command = [os.environ["LLM_COMPLY"], "--format", format, *place, "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    report = msgspec.json.decode(ran.stdout, type=JsonObject)
    print(report["summary"])
    failed = [one for one in report["results"] if one["status"] == "failed"]
    assert not failed, msgspec.json.encode(failed).decode()
    assert report["summary"]["passed"] >= count


def prepare(upstream: str, fake: FakeUpstream) -> None:
    """Have the upstream call the tool that it is offered, else reply with text."""

    def answer(request: ReceivedRequest) -> Answer | None:
        if request.method != "POST" or (upstream == "kiro" and b"conversationState" not in request.body):
            return None
        parts: list[Part] = [CALL] if b"get_weather" in request.body else [Text("Yes.")]
        stream = bool(request.json.get("stream")) or "stream" in request.path.lower()
        return write_reply(upstream, parts, stream=stream)

    fake.intercept = answer
