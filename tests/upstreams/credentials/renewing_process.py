"""Renew a credential in the store, in a process of its own.

`python renewing_process.py URL ROOT obey` reads lines with the seconds by which its clock is ahead from then on, and
prints the token that a request gets. With `fork` it starts a child at each line, which renews again and again: it
prints `replied` when it has the issuer's reply, and `stored N` once that is stored, N microseconds later.
"""

import asyncio
import os
import signal
import sys
import time

from dragoman.config.secret import SecretSource
from dragoman.config.settings import KiroProviderConfig
from dragoman.net.client import DialOptions, HttpClient
from dragoman.store import open_store
from dragoman.translate.hub.failure import RequestError
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceClient
from dragoman.upstreams.credentials.stored import StoredCredentials, make_stored_credentials
from dragoman.upstreams.kiro.credential import Credential, TokenIssuers
from dragoman.upstreams.kiro.credential_sources import find_source

CONFIG = KiroProviderConfig(name="kiro", kind="kiro", credentials=SecretSource("store:team"))


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class TellingIssuers(TokenIssuers):
    """Says when the reply of the issuer has arrived."""

    replied_at = 0.0

    async def renew(self, old: Credential) -> Credential:
        fresh = await super().renew(old)
        self.replied_at = time.monotonic()
        say("replied")
        return fresh


class Process:
    def __init__(self, url: str, root: str) -> None:
        self._url = url
        self._root = root
        self._ahead_s = 0.0

    async def obey(self) -> None:
        async with await open_store(self._url) as store:
            await store.find_sealed("team")
            refresher, _ = self._make_refresher(make_stored_credentials(store, self._url, os.environ))
            say("ready")
            while line := await asyncio.to_thread(sys.stdin.readline):
                self._ahead_s = float(line)
                try:
                    say((await refresher.get()).access_token)
                except RequestError as refused:
                    say("refused", refused.failure.message)

    async def renew_forever(self) -> None:
        async with await open_store(self._url) as store:
            refresher, issuers = self._make_refresher(make_stored_credentials(store, self._url, os.environ))
            while True:
                try:
                    credential = await refresher.get()
                except RequestError as refused:
                    say("refused", refused.failure.message)
                    continue
                if issuers.replied_at:
                    say("stored", round((time.monotonic() - issuers.replied_at) * 1e6))
                    issuers.replied_at = 0.0
                self._ahead_s = credential.expires_at - time.time() + 1

    def _make_refresher(self, stored: StoredCredentials) -> tuple[CredentialRefresher[Credential], TellingIssuers]:
        clock = ServerClock(lambda: time.time() + self._ahead_s)
        service = ServiceClient(HttpClient().send, DialOptions(), clock, ())
        issuers = TellingIssuers(service, CONFIG.region, self._root)
        find = find_source(CONFIG, {}, stored)
        return CredentialRefresher("kiro", find, issuers, RenewalTiming(clock, 600.0)), issuers


def fork_at_each_line(process: Process) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            say("begins", os.getpid())
            asyncio.run(process.renew_forever())


def main() -> None:
    url, root, mode = sys.argv[1:]
    process = Process(url, root)
    if mode == "obey":
        asyncio.run(process.obey())
    else:
        fork_at_each_line(process)


if __name__ == "__main__":
    main()
