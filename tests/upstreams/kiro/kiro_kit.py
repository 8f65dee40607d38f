"""Credential files as Kiro's tools write them, and refreshers that renew them at a fake Kiro."""

import time
from collections.abc import Mapping
from pathlib import Path

import apsw
import msgspec
from msgspec.structs import replace

from dragoman.config.secret import SecretSource
from dragoman.config.settings import KiroProviderConfig
from dragoman.upstreams.credentials.credential import format_timestamp
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.kiro.credential import Credential, TokenIssuers
from dragoman.upstreams.kiro.credential_sources import find_source
from fakes.kiro import FakeKiro
from narrowing import expect
from upstreams.account_kit import RefresherRig


def token(name: str) -> str:
    """As long as a real one, and plainly none."""
    return f"aorFAKE-{name}-" + "0" * 120


def ide_file(path: Path, *, access: str = "", refresh: str = "", life_s: float = -60.0, **more: object) -> Path:
    """The IDE's file, whole, with an access token that lives so long."""
    table = {
        "accessToken": access or "aoaFAKE-old-access-token",
        "refreshToken": refresh or token("old"),
        "expiresAt": format_timestamp(time.time() + life_s),
        "authMethod": "social",
        "provider": "Google",
        "region": "us-east-1",
        **more,
    }
    path.write_bytes(msgspec.json.encode(table))
    return path


def read(path: Path) -> dict[str, object]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object])


def database(path: Path, rows: Mapping[str, object], state: Mapping[str, object] | None = None) -> Path:
    """kiro-cli's database with these rows in auth_kv, values as JSON."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "WAL")
    connection.execute("CREATE TABLE auth_kv (key TEXT PRIMARY KEY, value TEXT)")
    if state is not None:
        connection.execute("CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB)")
        for key, value in state.items():
            connection.execute("INSERT INTO state VALUES (?, ?)", (key, msgspec.json.encode(value)))
    for key, value in rows.items():
        connection.execute("INSERT INTO auth_kv VALUES (?, ?)", (key, msgspec.json.encode(value).decode()))
    connection.close()
    return path


def row(path: Path, key: str) -> dict[str, object]:
    connection = apsw.Connection(str(path))
    try:
        value = connection.execute("SELECT value FROM auth_kv WHERE key = ?", (key,)).fetchall()[0][0]
    finally:
        connection.close()
    return msgspec.json.decode(expect(str, value), type=dict[str, object])


def section(credentials: str | Path | None, **settings: object) -> KiroProviderConfig:
    secret = None if credentials is None else SecretSource(str(credentials), "providers.kiro.credentials")
    return replace(KiroProviderConfig(name="kiro", kind="kiro", credentials=secret), **settings)


class Rig(RefresherRig[Credential]):
    def __init__(self, fake: FakeKiro, config: KiroProviderConfig, environ: dict[str, str] | None = None) -> None:
        super().__init__()
        source, issuers = find_source(config, environ or {}), TokenIssuers(self.service, config.region, fake.root)
        self.refresher = CredentialRefresher(
            "kiro", source, issuers, RenewalTiming(self.clock, config.refresh_margin_s)
        )
