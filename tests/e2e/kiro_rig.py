"""A gateway in front of a fake Kiro with a signed-in account, and the SDKs that talk to it."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dragoman.accounts.credential import format_timestamp
from e2e.sdk_replies import Broke, Halted, Kwargs, Sdk, SdkReply
from e2e.sdk_replies_gemini import STREAMS, WHOLE
from fakes.kiro import ARN, FakeKiro
from fakes.upstream import Answer
from gateway import KEY, Running, running

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
        tokens = self.fake.issue()
        sign(self.file, str(tokens["accessToken"]), str(tokens["refreshToken"]), life_s)


def sign(file: Path, access: str, refresh: str, life_s: float) -> None:
    table = {
        "accessToken": access,
        "refreshToken": refresh,
        "expiresAt": format_timestamp(time.time() + life_s),
        "authMethod": "social",
        "profileArn": ARN,
    }
    file.write_bytes(msgspec.json.encode(table))


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
        tokens = fake.issue()
        sign(file, str(tokens["accessToken"]), str(tokens["refreshToken"]), life_s)
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
