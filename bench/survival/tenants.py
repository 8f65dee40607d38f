"""The survival cases of very many keys, teams, limits, tags and rows of the audit log, and of requests that wait."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from http.client import HTTPConnection

import apsw
from msgspec.structs import astuple

from bench.survival.clients import connect, request
from bench.survival.gateway import KEY, Gateway
from dragoman.config.limits import Limits, encode_limits
from dragoman.store.audit import AuditRow, hash_audit_row
from dragoman.store.client_keys import COLUMNS, KeyId, KeyRow
from dragoman.store.usage_rows import first_id

KEYS, TEAMS, USERS = 100_000, 1_000, 50_000
AUDIT_ROWS = 10_000
TAGGED_ROWS = 100_000
WAITING = 1_001
TURNS = [{"role": "user", "content": "Hello."}]
READ_S = 3.0  # within which the gateway reads keys that were added to its store
USAGE_COLUMNS = "id, time_ms, request_id, key, client, client_protocol, upstream_protocol, provider, model"

Run = Callable[[Gateway], str]
Rows = Iterable[tuple[object, ...]]


def insert(gateway: Gateway, statement: str, rows: Rows) -> None:
    """Write rows into the store beside the gateway, a thousand at a time."""
    connection = apsw.Connection(str(gateway.database))
    connection.set_busy_timeout(60_000)
    waiting = list(rows)
    for start in range(0, len(waiting), 1000):
        with connection:
            connection.executemany(statement, waiting[start : start + 1000])
    connection.close()


def get(gateway: Gateway, path: str) -> tuple[int, bytes]:
    opened = HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    opened.request("GET", path, headers={"authorization": f"Bearer {KEY}"})
    answer = opened.getresponse()
    body = answer.read()
    opened.close()
    return answer.status, body


def ask_many(gateway: Gateway, *paths: str) -> str:
    """Read each path, one after the other; return the statuses and the time of the slowest."""
    statuses, slowest = [], 0.0
    for path in paths:
        began = time.monotonic()
        statuses.append(get(gateway, path)[0])
        slowest = max(slowest, time.monotonic() - began)
    return f"{len(statuses)} x {'/'.join(map(str, sorted(set(statuses))))}, slowest {slowest:.1f} s"


def add_tenants(gateway: Gateway) -> str:
    """Add keys with limits of their own, users and teams to the store, and list them."""
    limits = encode_limits(Limits(usd_per_day=10**9))
    places = ", ".join("?" * (len(COLUMNS.split(",")) + 1))
    keys = [make_key(number) for number in range(KEYS)]
    insert(
        gateway,
        f"INSERT INTO client_keys ({COLUMNS}, digest) VALUES ({places})",  # noqa: S608 - our own names
        [(*astuple(key), key.id.encode().rjust(32, b"\0")) for key in keys],
    )
    insert(
        gateway,
        "INSERT INTO teams (name, members, models, providers, created_at, version) VALUES (?, '[]', '[]', '[]', 0, 1)",
        [(f"team-{number}",) for number in range(TEAMS)],
    )
    put = "INSERT INTO limits (scope, name, amounts, version) VALUES (?, ?, ?, 1)"
    insert(gateway, put, [("key", key.id, limits) for key in keys] + [("user", "*", limits)])
    time.sleep(READ_S)
    listed = ("limits", "limits?effective=1&scope=user", "teams", "keys?limit=100")
    return ask_many(gateway, *(f"/api/v1/{path}" for path in listed))


def make_key(number: int) -> KeyRow:
    user, team = f"user-{number % USERS}", "" if number % 2 else f"team-{number % TEAMS}"
    return KeyRow(KeyId(f"key_{number:08x}"), f"key {number}", "dgm_xxxx", "xxxx", 0, None, None, user=user, team=team)


def fill_audit(gateway: Gateway) -> str:
    """Add rows to the audit log, list what is not in it, and verify all of it."""
    rows: list[AuditRow] = []
    for number in range(1, AUDIT_ROWS + 1):
        previous = hash_audit_row(rows[-1] if rows else None)
        rows.append(AuditRow(number, "key_1", "keys.create", "x" * 200, "127.0.0.1", "{}", number, previous))
    statement = "INSERT INTO audit (time_ms, actor, action, subject, address, detail, number, previous)"
    insert(gateway, f"{statement} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(astuple, rows))
    return ask_many(gateway, "/api/v1/audit/verify", "/api/v1/audit?actor=nobody", "/api/v1/audit?limit=100")


def fill_tags(gateway: Gateway) -> str:
    """Add usage rows that have a tag with another value each, and sum them up by it."""
    now_ms = int(time.time() * 1000)
    times = [now_ms - number * 60_000 for number in range(TAGGED_ROWS)]
    rows = [
        (first_id(at)[:8] + number.to_bytes(8, "big"), at, f"req_{number}", f"a=1,job={number}", number % 99)
        for number, at in enumerate(times)
    ]
    statement = f"""
        INSERT INTO usage ({USAGE_COLUMNS}, requested_model, stream, duration_ms, outcome, losses,
            attempts, tags, input_tokens)
        VALUES (?1, ?2, ?3, 'environment', 'client', 'chat', 'chat', 'chat', 'm', 'm', 0, 1, 'ok', 0,
            1, ?4, ?5)
    """  # noqa: S608 - our own names
    insert(gateway, statement, rows)
    return ask_many(gateway, *(f"/api/v1/usage?by=tag:job&step={step}" for step in ("all", "hour", "quarter")))


def wait_in_line(gateway: Gateway) -> str:
    """Send requests that wait for what another one has reserved of a limit; then all clients leave."""
    first, data = (
        request("messages", json.dumps({"max_tokens": 1500, "messages": TURNS, **fields}).encode())
        for fields in ({"model": "chat/pace", "stream": True}, {"model": "chat/ok"})
    )
    with ExitStack() as stack:
        holder = stack.enter_context(connect(gateway.port))
        holder.sendall(first)
        holder.recv(1)
        for _ in range(WAITING):
            stack.enter_context(connect(gateway.port)).sendall(data)
        time.sleep(2.0)
        began = time.monotonic()
        status = get(gateway, "/metrics")[0]
        waited = time.monotonic() - began
    time.sleep(1.0)
    return f"metrics {status} after {waited * 1e3:.0f} ms"
