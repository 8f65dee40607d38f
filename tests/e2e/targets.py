"""Upstreams of five kinds behind one gateway, each of which replies with its name or fails in its own way."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import fakes.codex as codex
import fakes.kiro as kiro
from e2e.faults import Fault, refusal
from fakes.codex import FakeCodex
from fakes.eventstream import exception
from fakes.kiro import FakeKiro, sign
from fakes.service import json_answer, stream
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running
from rig import ENCODERS, PROTOCOLS
from scripting.replies import ScriptedReply, Text
from sdk_replies import Sdk

ROUTES: dict[str, tuple[str, ...]] = {
    "by key": ("chat/one", "messages/two", "responses/three"),
    "by account": ("kiro/claude-sonnet-4.5", "codex/gpt-5.5", "chat/one"),
}


@dataclass
class Site:
    """One target. `plays` sets its answers, of which the last is repeated, and forgets its requests so far."""

    target: str
    play: Callable[..., None]
    requests: Callable[[], list[ReceivedRequest]]

    @property
    def kind(self) -> str:
        return self.target.partition("/")[0]

    @property
    def name(self) -> str:
        return f"I am {self.kind}, and no other."

    def answers(self, streamed: bool) -> Answer:
        """Return a complete reply."""
        if self.kind == "kiro":
            return kiro.make_framed(kiro.words(self.name[:7]), kiro.words(self.name[7:]), kiro.tail())
        if self.kind == "codex":
            return codex.reply(self.name)
        encoder, scripted = ENCODERS[self.kind], ScriptedReply((Text(self.name),))
        return (
            Answer(encoder.encode_stream(scripted))
            if streamed
            else Answer(encoder.encode_whole(scripted), content_type="application/json")
        )

    def make_error(self, fault: Fault) -> Answer:
        """Return an error answer."""
        if self.kind == "kiro":
            answer = json_answer({"message": fault.message}, fault.status)
            return replace(answer, headers=fault.headers)
        return refusal("responses" if self.kind == "codex" else self.kind, fault)

    def is_out_of_quota(self, streamed: bool) -> Answer:
        """Return an error under a good status."""
        response = {"message": "Your quota is used up.", "type": "insufficient_quota", "code": "insufficient_quota"}
        match self.kind:
            case "kiro":
                return kiro.make_framed(exception("ServiceQuotaExceededException", {"message": response["message"]}))
            case "codex":
                failed = {**codex.snapshot("failed"), "error": {**response, "code": "usage_limit_reached"}}
                return stream(
                    *codex.number_events(codex.make_created(), {"type": "response.failed", "response": failed})
                )
            case "messages":
                error: dict[str, object] = {"type": "error", "error": {**response, "type": "billing_error"}}
                return stream(error) if streamed else json_answer(error)
            case _:
                body = msgspec.json.encode({"error": {**response, "param": None}})
                return (
                    Answer(b"data: %b\n\n" % body) if streamed else json_answer({"error": {**response, "param": None}})
                )

    def make_reset(self, streamed: bool, after: str) -> Answer:
        """A reply that is reset just after these words; "" is before the first of them."""
        body = self.answers(streamed).body
        kept = body[: body.index(after.encode()) + len(after)] if after else body[:1]
        if after and self.kind == "kiro":
            kept = kiro.words(after)
        elif after and streamed:
            kept = body[: body.index(b"\n\n", len(kept)) + 2]
        return replace(self.answers(streamed), body=kept, end=End.RESET)


@dataclass
class Targets:
    gateway: Running
    sdk: Sdk
    sites: dict[str, Site]

    def on(self, route: str) -> list[Site]:
        return [self.sites[target] for target in ROUTES[route]]

    def counts(self, route: str) -> list[int]:
        return [len(site.requests()) for site in self.on(route)]


@contextmanager
def run_targets(directory: Path, settings: str) -> Iterator[Targets]:
    with ExitStack() as stack:
        keyed = {name: stack.enter_context(FakeUpstream()) for name in PROTOCOLS}
        aws = FakeKiro()
        chatgpt = FakeCodex()
        stack.enter_context(aws)
        stack.enter_context(chatgpt)
        tokens = aws.issue()
        sign(directory / "kiro.json", str(tokens["accessToken"]), str(tokens["refreshToken"]), 7200)
        (directory / "codex.json").write_bytes(msgspec.json.encode(chatgpt.auth_file(7200)))
        sections = [provider_section(name, fake.url, name) for name, fake in keyed.items()]
        sections += [aws.section(str(directory / "kiro.json")), chatgpt.section(str(directory / "codex.json"))]
        routes = [
            f"[[models]]\nname = {msgspec.json.encode(name).decode()}\nto = {msgspec.json.encode(to).decode()}\n"
            for name, to in ROUTES.items()
        ]
        gateway = stack.enter_context(running("\n".join([settings, *sections, *routes]), directory))
        gateway.settle()
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        sites = [_make_site(target, keyed[target.partition("/")[0]]) for target in ROUTES["by key"]]
        sites += [_kiro(aws), _codex(chatgpt)]
        yield Targets(gateway, sdk, {site.target: site for site in sites})


def _make_site(target: str, fake: FakeUpstream) -> Site:
    def play(*answers: Answer) -> None:
        fake.requests.clear()
        fake.answers = list(answers)

    return Site(target, play, lambda: fake.calls)


def _kiro(fake: FakeKiro) -> Site:
    def play(*answers: Answer) -> None:
        fake.requests.clear()
        fake.replies, fake.played = list(answers), 0

    return Site(ROUTES["by account"][0], play, lambda: fake.chats)


def _codex(fake: FakeCodex) -> Site:
    return Site(ROUTES["by account"][1], fake.play, lambda: fake.at(codex.RESPONSES))
