"""A gateway in front of a fake Kiro, ChatGPT backend or Copilot with a signed-in account, and the SDKs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import anthropic
import msgspec
import openai

from e2e.cases import request_for
from fakes.codex import FakeCodex
from fakes.copilot import EDITOR_TOKEN, FakeCopilot
from fakes.kiro import FakeKiro
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, running
from rig import QUICK
from sdk_replies import Broke, Kwargs, Reply, Sdk
from sdk_replies_gemini import STREAMS, WHOLE

F = TypeVar("F", bound=FakeUpstream)
KIRO_MODEL = "kiro/claude-sonnet-4-5-20250929"


@dataclass
class AccountRig(Generic[F]):
    gateway: Running
    fake: F
    sdk: Sdk
    file: Path
    model: str

    def ask(self, client: str, streamed: bool = False, model: str | None = None) -> Reply:
        """Return what the client's SDK reads, or the exception that it raises."""
        listen = STREAMS[client][-1] if streamed else WHOLE[client]
        try:
            return listen(self.sdk, request_for(client, model or self.model))
        except (openai.APIError, anthropic.APIError) as error:
            return Broke("", error)


class KiroRig(AccountRig[FakeKiro]):
    def play(self, *replies: Answer) -> None:
        """Prepare what chat requests are answered with from now on."""
        self.fake.replies, self.fake.played = list(replies), 0
        self.fake.counts.clear()
        self.fake.requests.clear()


@contextmanager
def run_kiro(
    directory: Path, life_s: float = 7200, prepare: Callable[[FakeKiro], None] | None = None, settings: str = ""
) -> Iterator[KiroRig]:
    """Two providers at one fake: `kiro`, and `plain`, which asks for no rest of a cut call.

    `prepare` has its way with the fake before the gateway starts.
    """
    file = directory / "kiro-auth-token.json"
    with FakeKiro() as fake:
        fake.sign_in(file, life_s)
        if prepare is not None:
            prepare(fake)
        sections = fake.section(str(file)) + fake.section(str(file), "plain", repair_truncation=False)
        with run_gateway(settings + "\n" + sections, directory) as (gateway, sdk):
            yield KiroRig(gateway, fake, sdk, file, KIRO_MODEL)


@contextmanager
def run_codex(directory: Path, life_s: float = 7200, settings: str = "") -> Iterator[AccountRig[FakeCodex]]:
    file = directory / "account.json"
    fake = FakeCodex()
    with fake:
        file.write_bytes(msgspec.json.encode(fake.auth_file(life_s)))
        with run_gateway(settings + fake.section(str(file)), directory) as (gateway, sdk):
            gateway.settle()
            yield AccountRig(gateway, fake, sdk, file, "codex/gpt-5.5")


@contextmanager
def run_copilot(directory: Path, token: str = EDITOR_TOKEN, settings: str = "") -> Iterator[AccountRig[FakeCopilot]]:
    file = directory / "account.json"
    fake = FakeCopilot()
    with fake:
        file.write_bytes(msgspec.json.encode({"github.com:Iv1.fake": {"oauth_token": token, "user": "fake"}}))
        with run_gateway(settings + fake.section(str(file)), directory) as (gateway, sdk):
            gateway.settle()
            yield AccountRig(gateway, fake, sdk, file, "copilot/gpt-4.1")


@contextmanager
def run_gateway(toml: str, directory: Path) -> Iterator[tuple[Running, Sdk]]:
    with ExitStack() as stack:
        gateway = stack.enter_context(running(QUICK + toml, directory))
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield gateway, sdk


def request_every_way(rig: KiroRig, client: str, request: Kwargs) -> list[Reply]:
    """The same request whole and through every way of streaming that this client's SDK has."""
    return [listen(rig.sdk, request) for listen in (WHOLE[client], *STREAMS[client])]
