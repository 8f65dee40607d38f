"""A gateway in front of a fake Kiro with a signed-in account, and the SDKs that talk to it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes.kiro import FakeKiro
from fakes.upstream import Answer
from gateway import KEY, Running, running
from sdk_replies import Broke, Halted, Kwargs, Sdk, SdkReply
from sdk_replies_gemini import STREAMS, WHOLE

CLIENTS = ("chat", "responses", "messages")
QUICK = "[retry]\nattempts = 3\nbase_s = 0.01\n"
MODEL = "kiro/claude-sonnet-4-5-20250929"


@dataclass
class KiroRig:
    gateway: Running
    fake: FakeKiro
    sdk: Sdk
    file: Path

    def play(self, *replies: Answer) -> None:
        """Prepares what chat requests are answered with from now on."""
        self.fake.replies, self.fake.played = list(replies), 0
        self.fake.counts.clear()
        self.fake.requests.clear()

    def sign_in(self, life_s: float = 7200) -> None:
        """A new pair of tokens in the file, living so long."""
        self.fake.sign_in(self.file, life_s)


@contextmanager
def kiro_rigged(
    directory: Path,
    life_s: float = 7200,
    prepare: Callable[[FakeKiro], None] | None = None,
    settings: str = "",
) -> Iterator[KiroRig]:
    """Two providers at one fake: `kiro`, and `plain`, which asks for no rest of a cut call.

    `prepare` has its way with the fake before the gateway starts.
    """
    file = directory / "kiro-auth-token.json"
    with ExitStack() as stack:
        fake = stack.enter_context(FakeKiro())
        fake.sign_in(file, life_s)
        if prepare is not None:
            prepare(fake)
        plain = fake.section(str(file), "plain", repair_truncation=False)
        toml = "\n".join([settings, QUICK, fake.section(str(file)), plain])
        gateway = stack.enter_context(running(toml, directory))
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield KiroRig(gateway, fake, sdk, file)


def request_every_way(rig: KiroRig, client: str, request: Kwargs) -> list[SdkReply | Broke | Halted]:
    """The same request whole and through every way of streaming that this client's SDK has."""
    reply: list[SdkReply | Broke | Halted] = [WHOLE[client](rig.sdk, request)]
    return reply + [listen(rig.sdk, request) for listen in STREAMS[client]]
