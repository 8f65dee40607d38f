"""A full run with a unique secret for every provider and vendors that repeat it: it appears in no output or file."""

import gzip
import json
import secrets
import stat
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException
from itertools import product
from pathlib import Path
from urllib.parse import quote

import apsw
import msgspec
import pytest
import zstandard

from asking import PATHS, make_body
from cli.leaky_vendors import MODES, LeakyCodex, LeakyCopilot, LeakyGoogle, LeakyKiro, Vendor
from dragoman.upstreams.credentials.credential import format_timestamp
from fakes.google import write_user_file
from fakes.kiro import ARN
from fakes.service import json_answer
from fakes.upstream import FakeUpstream
from shell import Shell

WAYS = tuple(product(PATHS, (False, True))) * 2  # a client and whether it streams; from anywhere on, all six follow
KEYS = ("SEARCH_KEY", "ANT_KEY", "TENANT", "POOL_KEY", "KIRO_REFRESH", "GOOG_KEY", "DRAGOMAN_API_KEY")
KEPT_BACK = {"absent-proxy", "DRAGOMAN_API_KEY", "kfile-access", "koidc-access", "codex-id"}  # no vendor's business
ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass
class Canaries:
    """Secrets with characters that URLs, JSON and base64 encode, and without a known prefix."""

    sung: dict[str, str] = field(default_factory=dict)

    def new(self, name: str, beginning: str = "") -> str:
        self.sung[name] = f"{beginning}Canary/{name}+{secrets.token_hex(12)}=&x"
        return self.sung[name]

    def find_in(self, text: bytes) -> list[str]:
        return [name for name, secret in self.sung.items() if any(form in text for form in forms(secret))]


@cache
def forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    written = {raw, quote(secret).encode(), quote(secret, safe="").encode(), json.dumps(secret)[1:-1].encode()}
    written.add(json.dumps(secret)[1:-1].replace("/", r"\/").encode())
    for before in range(3):  # base64 depends on where in its text the secret stands
        for encode in (b64encode, urlsafe_b64encode):
            text = encode(b"\0" * before + raw)
            written.add(text[4 if before else 0 : -4])
    return written


Gossip = Vendor | LeakyKiro | LeakyCodex | LeakyCopilot | LeakyGoogle


@dataclass
class Vendors:
    """All vendors, and a shell with one gateway that is configured for all of them."""

    shell: Shell
    canaries: Canaries
    vendors: list[Gossip]
    toml: str
    environ: dict[str, str]
    kiro: LeakyKiro
    codex: LeakyCodex
    copilot: LeakyCopilot
    google: LeakyGoogle
    collector: FakeUpstream

    def turn(self, mode: str) -> None:
        for vendor in self.vendors:
            vendor.mode = mode
        if mode == "refresh":  # what was issued is refused, so that it must be renewed
            self.kiro.access.clear()
            self.codex.access.clear()
            self.copilot.sessions.clear()
            self.google.valid.intersection_update({self.canaries.sung["GOOG_KEY"]})

    def list_received(self) -> set[str]:
        """Return the canaries that some vendor received: the others prove nothing."""
        everyone = [*self.vendors, self.collector]
        headers = [value for vendor in everyone for request in vendor.requests for value in request.headers.values()]
        bodies = [request.body for vendor in self.vendors for request in vendor.requests]
        return set(self.canaries.find_in(b"\n".join([*bodies, *(value.encode() for value in headers)])))

    def list_issued(self) -> set[str]:
        """Return the tokens that the vendors issued."""
        return (
            self.kiro.access
            | self.kiro.refresh
            | self.codex.access
            | self.codex.refresh
            | self.copilot.sessions
            | {*self.google.issued}
        )


MODELS = (
    *("ant/m", "oai/m", "loc/m", "pool/m", "proxied/m", "nowhere/m", "codex/gpt-5.5", "copilot/gpt-4.1", "echo/echo"),
    *("copilot/claude-sonnet-4.5", "kfile/auto", "kenv/auto", "kkey/auto", "kdb/auto", "koidc/auto"),
    *("goog/gemini-3.5-flash", "vertex/gemini-3.5-flash"),
)


@pytest.fixture
def vendors(shell: Shell) -> Iterator[Vendors]:
    canaries = Canaries()
    with ExitStack() as stack:
        vendor, proxy = stack.enter_context(Vendor()), stack.enter_context(Vendor())
        kiro, codex, copilot, google = LeakyKiro(), LeakyCodex(), LeakyCopilot(), LeakyGoogle()
        for fake in (kiro, codex, copilot, google):
            stack.enter_context(fake)
        environ = {name: canaries.new(name) for name in KEYS}
        environ["KIRO_KEY"] = canaries.new("KIRO_KEY", "ksk_")
        toml = [
            '[debug]\ncapture = "all"\ndirectory = "captures"\n[retry]\nattempts = 2\nbase_s = 0.001\n',
            f'[providers.ant]\nkind = "anthropic"\nendpoint = "{vendor.url}"\napi_key = "env:ANT_KEY"\n',
            f'[providers.oai]\nkind = "openai"\nendpoint = "{vendor.url}"\napi_key = "file:oai.key"\n',
            *_compatible(canaries, vendor, proxy),
            *_kiro(shell, canaries, kiro, environ),
            codex.section(_codex(shell, canaries, codex)),
            copilot.section(_copilot(shell, canaries, copilot), auth="exchange"),
            f'[providers.goog]\nkind = "gemini"\nendpoint = "{google.root}"\napi_key = "env:GOOG_KEY"\n',
            google.section(_google(shell, canaries)),
            '[providers.echo]\nkind = "echo"\n',
            f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{vendor.url}"\napi_key = "env:SEARCH_KEY"\n',
        ]
        shell.write("oai.key", canaries.new("oai"))
        collector = stack.enter_context(FakeUpstream(choose=lambda request: json_answer(request.headers, 401)))
        bearer = f"Bearer {canaries.new('collector')}"
        environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={quote(bearer, safe='')}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        vendors: list[Gossip] = [vendor, proxy, kiro, codex, copilot, google]
        google.valid = {environ["GOOG_KEY"]}
        yield Vendors(shell, canaries, vendors, "\n".join(toml), environ, kiro, codex, copilot, google, collector)


def _compatible(canaries: Canaries, vendor: Vendor, proxy: Vendor) -> list[str]:
    """Providers with headers of their own, behind a leaky proxy, and behind one that does not respond."""
    kind = 'kind = "openai-compatible"\n'
    team, password, other = canaries.new("team"), canaries.new("proxy"), canaries.new("absent-proxy")
    return [
        f'[providers.loc]\n{kind}endpoint = "{vendor.url}"\napi_key = "{canaries.new("loc")}"\n'
        f'headers = {{ x-team = "{team}", x-tenant = "env:TENANT" }}\n',
        f'[providers.pool]\n{kind}endpoint = "{vendor.url}"\n'
        f'api_key = ["env:POOL_KEY", "{canaries.new("pool")}", "{canaries.new("third")}"]\n',
        f'[providers.proxied]\n{kind}endpoint = "http://upstream.test/v1"\n'
        f'proxy = "http://someone:{quote(password, safe="")}@127.0.0.1:{proxy.port}"\n',
        f'[providers.nowhere]\n{kind}endpoint = "https://upstream.test/v1"\n'
        f'proxy = "https://someone:{quote(other, safe="")}@127.0.0.1:1"\n',
    ]


def _kiro(shell: Shell, canaries: Canaries, kiro: LeakyKiro, environ: dict[str, str]) -> list[str]:
    """The five forms that a Kiro credential has."""
    ended, lives = format_timestamp(time.time() - 60), format_timestamp(time.time() + 7200)
    table: dict[str, object] = {"authMethod": "social", "profileArn": ARN, "expiresAt": ended}
    table |= {"accessToken": canaries.new("kfile-access"), "refreshToken": canaries.new("kfile-refresh") + "0" * 120}
    shell.write("kfile.json", msgspec.json.encode(table).decode())
    oidc = {"accessToken": canaries.new("koidc-access"), "refreshToken": canaries.new("koidc-refresh") + "0" * 120}
    client = {"clientId": "fake-client", "clientSecret": "fake-client-secret"}
    shell.write("koidc.json", msgspec.json.encode({**table, **oidc, **client, "authMethod": "IdC"}).decode())
    row = {"access_token": canaries.new("kdb-access"), "refresh_token": canaries.new("kdb-refresh") + "0" * 120}
    with apsw.Connection(str(shell.home / "kdb.sqlite3")) as database:
        database.execute("CREATE TABLE auth_kv (key TEXT PRIMARY KEY, value TEXT)")
        token = msgspec.json.encode({**row, "expires_at": lives}).decode()
        database.execute("INSERT INTO auth_kv VALUES ('kirocli:social:token', ?)", (token,))
    database.close()
    kiro.access |= {canaries.sung["kdb-access"], environ["KIRO_KEY"]}
    kiro.refresh |= {str(each["refreshToken"]) for each in (table, oidc)} | {row["refresh_token"]}
    environ["KIRO_REFRESH"] += "0" * 120  # a shorter one is taken for truncated, and never sent
    kiro.refresh.add(environ["KIRO_REFRESH"])
    named = {"kfile": "kfile.json", "koidc": "koidc.json", "kdb": "kdb.sqlite3"}
    places = {name: str(shell.home / file) for name, file in named.items()}
    places |= {"kenv": "env:KIRO_REFRESH", "kkey": "env:KIRO_KEY"}
    return [kiro.section(place, name) for name, place in places.items()]


def _codex(shell: Shell, canaries: Canaries, codex: LeakyCodex) -> str:
    table = codex.auth_file(7200)
    tokens = table["tokens"]
    assert isinstance(tokens, dict)
    canaries.sung["codex-access"], canaries.sung["codex-id"] = tokens["access_token"], tokens["id_token"]
    tokens["refresh_token"] = canaries.new("codex-refresh")
    codex.refresh.add(tokens["refresh_token"])
    return str(shell.write("codex.json", msgspec.json.encode(table).decode()))


def _google(shell: Shell, canaries: Canaries) -> str:
    secrets = {"refresh_token": canaries.new("google-refresh"), "client_secret": canaries.new("google-client")}
    file = write_user_file(shell.home / "adc.json", **secrets)
    file.chmod(0o600)
    return str(file)


def _copilot(shell: Shell, canaries: Canaries, copilot: LeakyCopilot) -> str:
    token = canaries.new("github")
    copilot.github = {token}
    return str(shell.write("apps.json", msgspec.json.encode({"github.com:Iv1.fake": {"oauth_token": token}}).decode()))


@pytest.mark.rest
@pytest.mark.parametrize("ways_at_once", [1, 6])
def test_no_secret_leaves_in_any_form(vendors: Vendors, ways_at_once: int) -> None:
    shell, canaries = vendors.shell, vendors.canaries
    path = shell.write("vendors.toml", vendors.toml)
    at = ("--config", str(path))
    shell.environ |= vendors.environ
    outputs: dict[str, bytes] = {}
    with shell.serve(*at, "--verbose", "--log-json") as served:
        shell.write("vendors.toml", f"[server]\nport = {served.port}\n{vendors.toml}")
        for number, mode in enumerate(MODES):
            vendors.turn(mode)
            ways = WAYS[number % 6 :][:ways_at_once]
            for name, answer in send_all_requests(served.port, vendors.environ, ways):
                outputs[f"{mode} {name}"] = answer
        vendors.turn("good")
        outputs |= {f"`dragoman {line}`": text for line, text in run_commands(shell, at)}
        assert served.end() == 0
    for number, token in enumerate(vendors.list_issued()):
        canaries.sung[f"issued {number}"] = token
    outputs |= {f"span {number}": unpack(request.body) for number, request in enumerate(vendors.collector.requests)}
    outputs |= {"stdout": served.out.encode(), "stderr": served.err.encode(), **created_files(shell.home)}
    leaks = {where: found for where, text in outputs.items() if (found := canaries.find_in(text))}
    assert leaks == {}
    assert {name for name in canaries.sung if "issued" not in name} - vendors.list_received() == KEPT_BACK
    assert b"web_search_tool_result" in outputs["good search"]
    assert b"Hello" in b"".join(outputs.values())  # some requests were answered
    assert len([where for where in outputs if "captures" in where]) > len(MODELS)


def send_all_requests(
    port: int, environ: dict[str, str], ways: Sequence[tuple[str, bool]]
) -> Iterator[tuple[str, bytes]]:
    """Send a request to every model in each of these ways, and one of each other kind; yield the whole responses."""
    key = environ["DRAGOMAN_API_KEY"]
    for model, (client, streamed) in product(MODELS, ways):
        body = make_body(client, model, stream=streamed)
        yield f"{model} {client} {streamed}", ask(port, "POST", PATHS[client], key, body)
    search = {"model": "loc/m", "stream": True, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
    search["tools"] = [{"type": "web_search_20250305", "name": "web_search"}]
    yield "search", ask(port, "POST", PATHS["messages"], key, search)
    yield "count", ask(port, "POST", "/v1/messages/count_tokens", key, {"model": "ant/m", "messages": []})
    for path in ("/", "/health", "/ready", "/metrics", "/v1/models", "/v1/models/ant/m", "/v1/models/none"):
        yield path, ask(port, "GET", path, key)
    yield "a wrong key", ask(port, "GET", "/v1/models", key[:-2])
    yield "a wrong key in the query", ask(port, "GET", f"/v1/models?key={quote(key[:-2], safe='')}", "")
    yield "no such model", ask(port, "POST", PATHS["chat"], key, {"model": "none", "messages": []})


def ask(port: int, method: str, path: str, key: str, body: object = None) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        head = {"authorization": f"Bearer {key}", "content-type": "application/json", "x-dragoman-explain": "1"}
        connection.request(method, path, None if body is None else msgspec.json.encode(body), head)
        answer = connection.getresponse()
        fields = "".join(f"{name}: {value}\r\n" for name, value in answer.getheaders())
        try:
            return f"{answer.status}\r\n{fields}\r\n".encode() + answer.read()
        except HTTPException as cut:
            return fields.encode() + repr(cut).encode()
    finally:
        connection.close()


def run_commands(shell: Shell, at: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    lines = (
        *("config show", "config show --json", "config check", "models", "models --json", "doctor", "doctor --json"),
        *("providers list", "providers list --json", "status", "status --json"),
        *("usage", "usage --json", "keys list", "keys list --json", "doctor loc", "connect codex", "capture list"),
    )
    for line in lines:
        done = shell.run(*line.split(), *at)
        yield line, (done.out + done.err).encode()


def created_files(home: Path) -> dict[str, bytes]:
    """Return every file that the gateway created; those with credentials are readable by their owner alone."""
    given = {
        "vendors.toml",
        "dragoman.toml",
        "oai.key",
        "kfile.json",
        "koidc.json",
        "kdb.sqlite3",
        "codex.json",
        "apps.json",
        "adc.json",
    }
    found: dict[str, bytes] = {}
    for path in sorted(path for path in home.rglob("*") if path.is_file()):
        if path.name.startswith("kiro-") or path.name.removesuffix("-wal").removesuffix("-shm") in given:
            assert path.name in given or stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
            continue
        found[str(path.relative_to(home))] = unpack(path.read_bytes())
    return found


def unpack(data: bytes) -> bytes:
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(ZSTD):
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


@pytest.mark.rest
def test_a_store_and_a_shared_memory_that_cannot_be_reached_are_named_without_their_passwords(shell: Shell) -> None:
    canaries = Canaries()
    store, shared, key = canaries.new("store"), canaries.new("shared"), canaries.new("client")
    url = f"postgresql://someone:{quote(store, safe='')}@127.0.0.1:1/db"
    toml = f'[store]\nurl = "{url}"\nshared = "redis://:{quote(shared, safe="")}@127.0.0.1:1/0"\n'
    path = shell.write("vendors.toml", toml + '[providers.echo]\nkind = "echo"\n')
    shell.environ["DRAGOMAN_API_KEY"] = key
    outputs = {}
    with shell.serve("--config", str(path), "--verbose") as served:
        outputs["chat"] = ask(served.port, "POST", PATHS["chat"], key, make_body("chat", "echo/echo"))
        outputs |= dict(run_commands(shell, ("--config", str(path))))
        served.end()
    outputs |= {"stdout": served.out.encode(), "stderr": served.err.encode()}
    assert {where: found for where, text in outputs.items() if (found := canaries.find_in(text))} == {}


def test_a_leaked_canary_is_found() -> None:
    canaries = Canaries()
    secret = canaries.new("one")
    for text in (secret, quote(secret, safe=""), json.dumps({"a": secret}), b64encode(f"a:{secret}".encode()).decode()):
        assert canaries.find_in(f"xx{text}yy".encode()) == ["one"], text
    assert canaries.find_in(b"nothing of the kind") == []
