"""Credentials in a store that several processes renew at a fake Kiro: rigs with a store each, and a way to look in."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from dragoman.store import Store, open_store
from dragoman.store.audit import make_audit_row
from dragoman.store.sealed_credentials import SealedCredential
from dragoman.store.sealing import VARIABLE
from dragoman.upstreams.credentials.credential import Table
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.credentials.stored import (
    StoredCredentials,
    make_stored_credentials,
    open_row,
    seal_table,
)
from dragoman.upstreams.kiro.credential import Credential, TokenIssuers
from dragoman.upstreams.kiro.credential_sources import find_source
from fakes.kiro import FakeKiro
from upstreams.account_kit import RefresherRig
from upstreams.kiro.kiro_kit import section

NAME = "team"
KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
OTHER_KEY = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
ENVIRON: Mapping[str, str] = {VARIABLE: KEY}
AUDIT = make_audit_row("accounts.push", NAME)


class StoredRig(RefresherRig[Credential]):
    """A process as far as a credential in the store is concerned."""

    def __init__(self, fake: FakeKiro, store: Store, url: str, environ: Mapping[str, str] = ENVIRON) -> None:
        super().__init__()
        self.stored = make_stored_credentials(store, url, environ)
        config = section(f"store:{NAME}")
        source, issuers = find_source(config, {}, self.stored), TokenIssuers(self.service, config.region, fake.root)
        self.refresher = CredentialRefresher("kiro", source, issuers, RenewalTiming(self.clock, 600.0))


@asynccontextmanager
async def open_rig(fake: FakeKiro, url: str, environ: Mapping[str, str] = ENVIRON) -> AsyncIterator[StoredRig]:
    async with await open_store(url) as store, StoredRig(fake, store, url, environ) as rig:
        yield rig


def expired(fake: FakeKiro) -> Table:
    """Return a login whose access token has expired."""
    tokens = fake.issue()
    fake.access.clear()
    return {"authMethod": "social", "refreshToken": tokens["refreshToken"], "accessToken": tokens["accessToken"]}


async def put(stored: StoredCredentials, table: Table, kind: str = "kiro") -> None:
    sealer = stored.make_sealer(NAME)
    row = SealedCredential(NAME, kind, 0, b"", 1000)
    await stored.store.put_sealed(row, lambda version: seal_table(sealer, NAME, version, table), AUDIT)


async def look(stored: StoredCredentials) -> tuple[int, Table]:
    """Return the version that is stored, and what is in it."""
    row = await stored.read(NAME)
    return row.version, open_row(row, row.kind, stored.make_sealer(NAME))
