"""One gateway in front of fake upstreams, one per protocol, and the SDKs that talk to it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from e2e import encode_chat, encode_gemini, encode_messages, encode_responses
from e2e.sdk_replies import Sdk
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, provider_section, running

PROTOCOLS = ("chat", "responses", "messages")
CLIENTS = UPSTREAMS = (*PROTOCOLS, "gemini")
ENCODERS: dict[str, ModuleType] = {
    "chat": encode_chat,
    "responses": encode_responses,
    "messages": encode_messages,
    "gemini": encode_gemini,
}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
# Each client with an upstream of its own protocol and of another one: enough where what is proved takes its time.
CROSSED = [("chat", "messages"), ("responses", "chat"), ("messages", "responses")]
FEW_PAIRS = [*((name, name) for name in PROTOCOLS), *CROSSED]
ONCE = "[retry]\nattempts = 1\n"


@dataclass
class Rig:
    gateway: Running
    fakes: dict[str, FakeUpstream]
    sdk: Sdk

    def play(self, upstream: str, *answers: Answer) -> FakeUpstream:
        """Prepare the upstream's next answers, and forget its requests so far."""
        fake = self.fakes[upstream]
        fake.requests.clear()
        fake.answers = list(answers)
        return fake

    def model(self, upstream: str) -> str:
        return f"{upstream}/vendor-model"


@contextmanager
def run_rig(directory: Path, settings: str = ONCE, models: tuple[str, ...] = ()) -> Iterator[Rig]:
    with ExitStack() as stack:
        # Where one attempt is all, a kept connection that ends just then would be it.
        keep = settings != ONCE
        fakes = {name: stack.enter_context(FakeUpstream(models=models, keep_alive=keep)) for name in UPSTREAMS}
        sections = [provider_section(name, fake.url, name) for name, fake in fakes.items()]
        gateway = stack.enter_context(running("\n".join([settings, *sections]), directory))
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield Rig(gateway, fakes, sdk)
