"""One gateway in front of fake upstreams, one for each protocol, and the ways to ask it.

This is how a test starts a gateway with upstreams: `run_rig` names the upstreams and the settings, `play` says what an
upstream answers, `ask` and `sdk` ask, `calls` is what an upstream was asked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import asking
from asking import CLIENTS, NO_HEADERS, PATHS, Reply
from fakes.kiro import FakeKiro
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running
from scripting import ENCODERS, Scripted, write_reply

if TYPE_CHECKING:
    from sdk_replies import Sdk

__all__ = [
    "ALL_UPSTREAMS",
    "CLIENTS",
    "CROSSED",
    "ENCODERS",
    "FEW_PAIRS",
    "ONCE",
    "PATHS",
    "PROTOCOLS",
    "QUICK",
    "UPSTREAMS",
]
__all__ += ["Rig", "run_rig", "walk"]
PROTOCOLS = ("chat", "responses", "messages")
UPSTREAMS = (*PROTOCOLS, "gemini")
ALL_UPSTREAMS = (*UPSTREAMS, "kiro")  # Kiro has no clients, and is always translated
# Each client with an upstream of its own protocol and of another one: enough where what is proved takes its time.
CROSSED = [("chat", "messages"), ("responses", "chat"), ("messages", "responses")]
FEW_PAIRS = [*((name, name) for name in PROTOCOLS), *CROSSED]
ONCE = "[retry]\nattempts = 1\n"
QUICK = "[retry]\nattempts = 3\nbase_s = 0.01\n"
NO_OPTIONS: Mapping[str, str] = {}
MODELS = {"kiro": "claude-sonnet-4.5", "messages": "claude-opus-4-6"}


def walk(axes: Sequence[Iterable[object]], turning: Sequence[Collection[object]]) -> list[object]:
    """Return the product of all axes as parameters.

    `make test` has each combination of `axes` once, with the values of the `turning` axes in turns; the other rows are
    left to `make test-rest`.
    """
    rows: list[object] = []
    for fixed in product(*map(enumerate, axes)):
        numbers = [number for number, _ in fixed]
        for others in product(*map(enumerate, turning)):
            is_turn = all(
                number == (sum(numbers) + place * numbers[0]) % len(axis)
                for place, ((number, _), axis) in enumerate(zip(others, turning, strict=True))
            )
            values = [value for _, value in (*fixed, *others)]
            rows.append(pytest.param(*values, marks=() if is_turn else pytest.mark.rest))
    return rows


@dataclass
class Rig:
    gateway: Running
    fakes: Mapping[str, FakeUpstream]
    directory: Path = field(default_factory=Path)

    @property
    def port(self) -> int:
        return self.gateway.port

    @cached_property
    def sdk(self) -> "Sdk":
        """The SDKs, imported by tests that need them: that takes a second."""
        from sdk_replies import Sdk

        return Sdk(self.gateway.url, KEY)

    def play(self, upstream: str, *answers: Answer | Scripted, stream: bool = True) -> FakeUpstream:
        """Prepare the upstream's next answers, and forget its requests so far."""
        fake = self.fakes[upstream]
        fake.requests.clear()
        protocol = "responses" if upstream == "openai" else upstream
        prepared = [
            answer if isinstance(answer, Answer) else write_reply(protocol, answer, stream=stream) for answer in answers
        ]
        if isinstance(fake, FakeKiro):
            fake.replies, fake.played = prepared, 0
            fake.counts.clear()
        else:
            fake.answers = prepared
        return fake

    def play_models(self, upstream: str, answers: Mapping[str, Answer]) -> FakeUpstream:
        """Let the name of a model choose the upstream's answer, for requests that are sent at the same time."""
        fake = self.fakes[upstream]
        fake.requests.clear()
        fake.choose = lambda request: answers[str(request.json["model"])]
        return fake

    def model(self, upstream: str) -> str:
        return f"{upstream}/{MODELS.get(upstream, 'vendor-model')}"

    def calls(self, upstream: str) -> list[ReceivedRequest]:
        """Return the requests for a reply, as the upstream got them."""
        calls = self.fakes[upstream].calls
        return [request for request in calls if upstream != "kiro" or b"conversationState" in request.body]

    def ask(
        self,
        client: str,
        upstream: str,
        text: str = "Hello",
        *,
        stream: bool = False,
        key: str | None = KEY,
        headers: Mapping[str, str] = NO_HEADERS,
        **fields: object,
    ) -> Reply:
        """Ask an upstream's model in a client's protocol; `fields` are added to the body."""
        model = self.model(upstream)
        return asking.ask(self, client, model, text, stream=stream, key=key, headers=headers, **fields)

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = KEY,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Reply:
        return asking.send(self, method, path, body, key=key, headers=headers)

    def close(self) -> None:
        if "sdk" in self.__dict__:
            self.sdk.close()


@contextmanager
def run_rig(
    directory: Path,
    settings: str = ONCE,
    models: tuple[str, ...] = (),
    *,
    upstreams: Sequence[str] = UPSTREAMS,
    keys: Sequence[str] = (),
    options: Mapping[str, str] = NO_OPTIONS,
) -> Iterator[Rig]:
    """Start the upstreams and a gateway with a provider for each, named as its protocol.

    `upstreams` may also name `openai`, which speaks Responses and Chat, and `kiro`, with a signed-in account.
    `keys` are the names of client keys in a store, which the gateway has only then. `options` are further lines of the
    sections of some upstreams.
    """
    # Where one attempt is all, a kept connection that ends just then would be it.
    keep = not settings.startswith(ONCE)
    with ExitStack() as stack:
        fakes: dict[str, FakeUpstream] = {}
        sections = [settings]
        for name in upstreams:
            if name == "kiro":
                kiro = FakeKiro()
                kiro.keep_alive = keep
                fakes[name] = stack.enter_context(kiro)
                section = kiro.section(kiro.sign_in(directory / "kiro-auth-token.json"), name)
                sections.append(section + options.get(name, ""))
            else:
                fakes[name] = stack.enter_context(FakeUpstream(models=models, keep_alive=keep))
                sections.append(provider_section(name, fakes[name].url, name) + options.get(name, ""))
        gateway = stack.enter_context(running("\n".join(sections), directory, stored=keys))
        rig = Rig(gateway, fakes, directory)
        stack.callback(rig.close)
        yield rig
