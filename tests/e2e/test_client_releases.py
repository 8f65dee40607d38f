"""The last releases of three agents, with six upstreams that refuse what they do not know.

The requests are recorded (`tests/fixtures/releases`): the first of a conversation, and the next one, with the result of
a tool. Whatever a release sends, it is answered; a refusal costs at most three more requests, once.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from pydantic import ValidationError

from asking import send
from clients.sessions.recorded import RELEASES, RecordedRequest, list_sessions, read_description, read_requests
from fakes.kiro import FakeKiro, make_framed, tail, words
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import Running, provider_section, running
from rig import QUICK
from scripting import write_error, write_reply
from test_published_requests import check
from wire_json import JsonObject

MOST = 3  # more requests, after refusals
IMITATION = (
    '[providers.imitation]\nkind = "openai-compatible"\nprotocol = "messages"\nendpoint = "{}"\napi_key = "sk-fake"\n'
)
OWN = {"anthropic": "messages", "openai": "responses", "gemini": "gemini"}  # vendors
UPSTREAMS = (*OWN, "imitation", "strict", "kiro")
KNOWN = frozenset(
    (
        *("model", "messages", "system", "max_tokens", "stream", "tools", "tool_choice", "metadata", "stop_sequences"),
        *("temperature", "top_p", "top_k", "thinking", "output_config", "context_management"),
    )
)
TOOL_FIELDS = frozenset(("type", "name", "description", "input_schema", "cache_control"))
Object = Callable[[JsonObject], Answer | None]


def fit(protocol: str) -> Object:
    """Return what objects to a request that does not fit the vendor's published types."""

    def object_to(body: JsonObject) -> Answer | None:
        try:
            check(protocol, body)
        except ValidationError as misfit:
            return write_error(400, f"This is not a request: {misfit}"[:2000])
        return None

    return object_to


def imitate(body: JsonObject) -> Answer | None:
    """Object as a host that imitates Anthropic, to three things that Claude Code sends: no more are learned at once."""
    if any(turn["role"] == "system" for turn in body["messages"]):
        return write_error(400, "messages[1].role: unknown variant `system`, expected `user` or `assistant`")
    if body.get("thinking", {}).get("type") == "adaptive":
        return write_error(400, "adaptive thinking is not supported on this model")
    for name in body.keys() - KNOWN:
        return write_error(400, f"{name}: Extra inputs are not permitted")
    for number, tool in enumerate(body.get("tools", ())):
        for name in tool.keys() - TOOL_FIELDS:
            return write_error(400, f"tools.{number}.custom.{name}: Extra inputs are not permitted")
    return None


def forbid(body: JsonObject) -> Answer | None:
    """Object as Mistral: it knows the fields of its vendor only, and takes instructions at the beginning."""
    for before, after in pairwise(turn["role"] for turn in body["messages"]):
        if after == "system" or (before, after) == ("tool", "user"):
            return write_error(400, f"Unexpected role '{after}' after role '{before}'", "3230")
    extra = [name for name in ("max_completion_tokens", "reasoning_effort", "stream_options") if name in body]
    problems = [{"type": "extra_forbidden", "loc": ["body", name], "input": "x"} for name in extra]
    if problems:
        return Answer(msgspec.json.encode({"detail": problems}), 422, "application/json")
    return fit("chat")(body)


class Upstream(FakeUpstream):
    def __init__(self, protocol: str, object_to: Object) -> None:
        super().__init__(choose=self.choose_answer)
        self.protocol = protocol
        self.object_to = object_to
        self.refused: list[str] = []

    def choose_answer(self, request: ReceivedRequest) -> Answer:
        refusal = self.object_to(request.json)
        if refusal is not None:
            self.refused.append(refusal.body.decode())
            return refusal
        is_stream = request.json.get("stream") is True or "alt=sse" in request.path
        return write_reply(self.protocol, "Fine.", stream=is_stream)


@contextmanager
def start(directory: Path, protocol: str) -> Iterator[tuple[Running, Mapping[str, FakeUpstream]]]:
    """Start the upstreams; the client's own vendor takes whatever it sends."""
    fakes: dict[str, FakeUpstream] = {
        name: Upstream(own, (lambda body: None) if own == protocol else fit(own)) for name, own in OWN.items()
    }
    fakes |= {"imitation": Upstream("messages", imitate), "strict": Upstream("chat", forbid)}
    kiro = FakeKiro()
    kiro.replies = [make_framed(words("Fine."), tail())]
    with ExitStack() as stack:
        for fake in (*fakes.values(), kiro):
            stack.enter_context(fake)
        sections = [
            provider_section({"messages": "messages", "responses": "openai"}.get(own, own), fakes[name].url, name)
            for name, own in OWN.items()
        ]
        sections += [
            IMITATION.format(fakes["imitation"].url),
            provider_section("chat", fakes["strict"].url, "strict"),
            kiro.section(kiro.sign_in(directory / "kiro-auth-token.json"), "kiro"),
        ]
        gateway = stack.enter_context(running(QUICK + "\n".join(sections), directory))
        gateway.settle()
        yield gateway, {**fakes, "kiro": kiro}


def replay(gateway: Running, request: RecordedRequest, upstream: str) -> tuple[int, bytes]:
    """Send a recorded request to a model of this upstream."""
    body, path, model = bytes(request.body), request.path, "claude-sonnet-4.5" if upstream == "kiro" else None
    if "/models/" in path:
        path = re.sub(r"/models/([^:]+)", lambda found: f"/models/{upstream}/{model or found[1]}", path)
    else:
        named = msgspec.json.encode(request.json["model"]).decode()
        renamed = msgspec.json.encode(f"{upstream}/{model or request.json['model']}")
        body = body.replace(b'"model":' + named.encode(), b'"model":' + renamed, 1)
    reply = send(gateway, "POST", path, body, headers=dict(request.headers))
    return reply.status, reply.body


@pytest.mark.rest
@pytest.mark.parametrize("client", list_sessions(RELEASES))
def test_every_release_is_answered_by_every_upstream(client: str, tmp_path: Path) -> None:
    protocol, requests = read_description(client, RELEASES).protocol, list(read_requests(client, RELEASES))
    with start(tmp_path, protocol) as (gateway, fakes):
        for upstream in UPSTREAMS:
            fake = fakes[upstream]
            for request in requests:
                for most in (MOST, 0):  # the second time nothing is refused
                    before = len(fake.calls)
                    status, body = replay(gateway, request, upstream)
                    refused = getattr(fake, "refused", [])[-4:]
                    assert status == 200, (request.client, upstream, body, refused)
                    assert len(fake.calls) - before <= 1 + most, (request.client, upstream, refused)
            if OWN.get(upstream) == protocol:
                assert [call.body for call in fake.calls[::2]] == [bytes(request.body) for request in requests]
        assert [name for name, fake in fakes.items() if getattr(fake, "refused", [])]
