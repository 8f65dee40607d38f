"""A gateway in front of a fake ChatGPT backend or a fake Copilot with a signed-in account, and the SDKs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from fakes.codex import FakeCodex
from fakes.copilot import EDITOR_TOKEN, FakeCopilot
from fakes.service import FakeService
from gateway import KEY, Running, running
from sdk_replies import Sdk

F = TypeVar("F", bound=FakeService)

QUICK = "[retry]\nattempts = 3\nbase_s = 0.01\n"


@dataclass
class AccountRig(Generic[F]):
    gateway: Running
    fake: F
    sdk: Sdk
    file: Path


@contextmanager
def codex_rigged(directory: Path, life_s: float = 7200, settings: str = "") -> Iterator[AccountRig[FakeCodex]]:
    def sign_in(fake: FakeCodex, file: Path) -> None:
        file.write_bytes(msgspec.json.encode(fake.auth_file(life_s)))

    with _run_rig(FakeCodex(), directory, sign_in, settings) as rig:
        yield rig


@contextmanager
def copilot_rigged(directory: Path, token: str = EDITOR_TOKEN, settings: str = "") -> Iterator[AccountRig[FakeCopilot]]:
    def sign_in(fake: FakeCopilot, file: Path) -> None:
        file.write_bytes(msgspec.json.encode({"github.com:Iv1.fake": {"oauth_token": token, "user": "fake"}}))

    with _run_rig(FakeCopilot(), directory, sign_in, settings) as rig:
        yield rig


@contextmanager
def _run_rig(made: F, directory: Path, sign_in: Callable[[F, Path], None], settings: str) -> Iterator[AccountRig[F]]:
    file = directory / "account.json"
    with ExitStack() as stack:
        fake = stack.enter_context(made)
        sign_in(made, file)
        gateway = stack.enter_context(running(settings + QUICK + made.section(str(file)), directory))
        gateway.settle()
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        assert fake is made
        yield AccountRig(gateway, made, sdk, file)
