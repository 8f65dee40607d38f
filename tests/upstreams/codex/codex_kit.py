"""Refreshers of ChatGPT credentials at a fake issuer, and files as `codex login` writes them."""

from pathlib import Path

import msgspec

from dragoman.upstreams.codex.credential import AuthForm, Credential, TokenIssuer
from dragoman.upstreams.credentials.credential import JsonSource
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from fakes.codex import CLIENT_ID, FakeCodex
from upstreams.account_kit import RefresherRig

MARGIN_S = 300.0


def write_file(path: Path, table: dict[str, object]) -> Path:
    path.write_bytes(msgspec.json.encode(table))
    return path


def read(path: Path) -> dict[str, object]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object])


def tokens(table: dict[str, object]) -> dict[str, str]:
    return msgspec.convert(table["tokens"], dict[str, str])


class Rig(RefresherRig[Credential]):
    def __init__(self, fake: FakeCodex, path: Path) -> None:
        super().__init__()
        issuer = TokenIssuer(self.service, fake.root, CLIENT_ID)
        self.refresher = CredentialRefresher(
            "codex", lambda: JsonSource(path, AuthForm()), issuer, RenewalTiming(self.clock, MARGIN_S)
        )
