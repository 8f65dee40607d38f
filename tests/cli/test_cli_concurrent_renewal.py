"""Two hundred requests to four processes with an expired token: it is renewed once, and no request fails."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from asking import ask
from dragoman.upstreams.credentials.credential import format_timestamp
from fakes.codex import TOKEN, FakeCodex
from fakes.kiro import ARN, FakeKiro
from fakes.upstream import Answer, ReceivedRequest
from gateway import KEY
from shell import Served, Shell

REQUESTS = 200
AT_ONCE = 64
PROCESSES = 4


class StrictKiro(FakeKiro):
    """Revokes every token of the account if a refresh token is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: set[str] = set()
        self.refresh_delay_s = 0.3
        self.revoked = False

    def _answer(self, request: ReceivedRequest) -> Answer:
        if request.path == "/refreshToken":
            used = str(request.json["refreshToken"])
            if used in self.spent:
                self.revoked = True
                self.access.clear()
                self.refresh.clear()
            self.spent.add(used)
        return super()._answer(request)


class StrictCodex(FakeCodex):
    revoked = False

    def _answer(self, request: ReceivedRequest) -> Answer:
        if request.path == TOKEN and str(request.json.get("refresh_token")) in self.used:
            self.revoked = True
            self.access.clear()
            self.refresh.clear()
        return super()._answer(request)


def send_requests(served: Served, model: str) -> Counter[int]:
    """The status of every request."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return Counter(pool.map(lambda _: ask(served, "chat", model).status, range(REQUESTS)))


@pytest.mark.parametrize("kind", ["kiro", "codex"])
@pytest.mark.rest
def test_concurrent_requests_renew_an_expired_token_once(shell: Shell, kind: str) -> None:
    fake = StrictKiro() if kind == "kiro" else StrictCodex()
    with fake:
        path = shell.home / "account.json"
        path.write_bytes(msgspec.json.encode(_make_expired(fake)))
        config = shell.write("crowd.toml", fake.section(str(path)))
        model = "kiro/auto" if kind == "kiro" else "codex/gpt-5.5"
        served = shell.serve("--config", str(config), "--workers", str(PROCESSES), DRAGOMAN_API_KEY=KEY)
        with served:
            assert send_requests(served, model) == {200: REQUESTS}
            assert served.end() == 0
    assert not fake.revoked
    assert fake.counts["/refreshToken" if kind == "kiro" else TOKEN] == 1
    stored = msgspec.json.decode(path.read_bytes())
    kept = stored["refreshToken"] if kind == "kiro" else stored["tokens"]["refresh_token"]
    assert kept in fake.refresh


def _make_expired(fake: StrictKiro | StrictCodex) -> dict[str, object]:
    if isinstance(fake, StrictCodex):
        return fake.auth_file(-60)
    tokens = fake.issue()
    table = {"accessToken": tokens["accessToken"], "refreshToken": tokens["refreshToken"]}
    fake.access.clear()
    return {**table, "expiresAt": format_timestamp(time.time() - 60), "authMethod": "social", "profileArn": ARN}
