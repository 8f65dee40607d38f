"""The survival cases: what each sends, and which bounds it must keep."""

import gzip
import json
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from bench.survival.clients import METRICS, ask, ask_all, connect, request
from bench.survival.gateway import Gateway
from bench.survival.sockets import CONTINUATION, PING, TEXT, chain_contexts, fill_lanes, flood_socket, open_one_by_one
from bench.survival.tenants import add_tenants, fill_audit, fill_tags, get, wait_in_line
from bench.survival.upstream import PAGE_URL
from dragoman.net.limits import raise_open_files_limit

STALL_S = 0.05  # by which the 99th percentile of other streams' events may be late
STRANGE_KEYS = 2_200_000
STALLED_READERS = 100
FAST_STREAMS, FAST_S = 100, 8.0
IDLE_CONNECTIONS = 8_192  # as many as the gateway takes at all
ADDRESSES = 200
BUDGET = "max_buffered_mb = 64"
CAPTURES = '[debug]\ncapture = "all"\ndirectory = "DIRECTORY/captures"'
LINE = "[limits]\ntokens_per_day = 2000\nwait_s = 60"
WEBHOOK = '[limits]\ntokens_per_day = 1000000\nwait_s = 0.5\nwebhook = "http://127.0.0.1:UPSTREAM/silent"'
MOST_GROWN_MB = 20.0  # between the first thousand requests and the last

Run = Callable[[Gateway], str]


@dataclass(frozen=True)
class Case:
    """`prepare` makes what is to be sent; the function it returns sends it and returns a summary of the answers."""

    name: str
    prepare: Callable[[], Run]
    most_kept_mb: float = 64.0
    most_peak_mb: float = 250.0
    most_p99_s: float = STALL_S
    patience_s: float = 60.0
    settings: str = ""  # further lines of [server]
    most_seconds: float = 600.0
    expected: str = ""  # how the answers must begin
    is_later: bool = False  # of what the commit to compare with does not have


def body(model: str, content: object, **fields: object) -> bytes:
    turns = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "max_tokens": 9, "messages": turns, **fields}).encode()


def summarize(statuses: list[int]) -> str:
    return ", ".join(f"{statuses.count(status)} x {status or 'no answer'}" for status in sorted(set(statuses)))


def send_all(requests: list[bytes], at_once: int) -> Run:
    return lambda gateway: summarize(ask_all(gateway.port, requests, at_once))


def send_failing(count: int, size: int) -> Run:
    return send_all([request("messages", body("chat/fail", "x" * size))] * count, 8)


def send_parked(model: str, count: int, size: int, *, stream: bool) -> Run:
    """Send requests whose replies are kept for a client that comes back."""
    data = body(f"chat/{model}", "x" * size, stream=stream)
    keys = (f"idempotency-key: {number}" if number % 2 else "x-dragoman-park: 1" for number in range(count))
    return send_all([request("messages", data, key) for key in keys], 8)


def send_stored(count: int, size: int) -> Run:
    """Send requests whose responses are stored, and which the console lists afterwards."""
    data = json.dumps({"model": "chat/ok", "input": "x" * size}).encode()
    return send_all([request("responses", data)] * count, 4)


def send_mixed(first: int, count: int, size: int) -> Run:
    """Send requests and failures of every kind, and compare the memory after the first ones with that at the end."""
    content, idle_s = "x" * size, 5.0
    makers: list[Callable[[int], bytes]] = [
        lambda number: request("messages", body("chat/ok", content)),
        lambda number: request("messages", body("chat/fail", content)),
        lambda number: request("messages", body("chat/cut", content, stream=True)),
        lambda number: request("chat", body("chat/ok", content), "x-dragoman-park: 1"),
        lambda number: request("messages", body("chat/cut", content, stream=True), "x-dragoman-park: 1"),
        lambda number: request("messages", body("chat/fail", content), f"idempotency-key: {number}"),
        lambda number: request("messages", body("chat/ok", content)[:-1]),  # not JSON
        lambda number: request("count", body("chat/ok", content)),
        lambda number: request(
            "responses", json.dumps({"model": "chat/ok", "input": content, "store": False}).encode()
        ),
        lambda number: request("responses", json.dumps({"model": "chat/ok", "input": content}).encode()),
    ]

    def run(gateway: Gateway) -> str:
        def send(number: int) -> int:
            return ask(gateway.port, makers[number % len(makers)](number))[0]

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(send, range(first)))
            early = gateway.resident_mb()
            statuses += pool.map(send, range(first, count))
        time.sleep(idle_s)
        grown = gateway.resident_mb() - early
        return f"{'flat' if grown <= MOST_GROWN_MB else 'grown'}, {grown:+.0f} MB, {summarize(statuses)}"

    return run


def send_bombs() -> Run:
    packed = gzip.compress(b'{"model": "chat/ok", "x": "' + b"0" * (1 << 30), 1)
    bomb = request("chat", packed, "content-encoding: gzip")
    answered = request("messages", body("chat/bomb", "Hello."))
    return send_all([bomb] * 20 + [answered] * 20, 8)


def send_messages() -> Run:
    turns = b",".join([b'{"role": "user", "content": "x"}'] * 600_000)
    data = b'{"model": "messages/message", "max_tokens": 9, "messages": [%b]}' % turns
    return send_all([request("chat", data)], 1)


def send_keys(*fields: str) -> Run:
    keys = b",".join(b'"k%d":1' % number for number in range(STRANGE_KEYS))
    start = b'{"model": "messages/message", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],'
    data = request("chat", start + keys + b"}", *fields)

    def run(gateway: Gateway) -> str:
        status, size = ask(gateway.port, data)
        return f"{summarize([status])}, {size / 1e6:.1f} MB"

    return run


def send_words() -> Run:
    text = "".join(f"word{number % 50_000} and more, " for number in range(30_000_000 // 19))
    return send_all([request("count", body("messages/ok", text)), request("messages", body("chat/ok", text))], 1)


def stream_calls(count: int) -> Run:
    return send_all([request("messages", body(f"chat/calls-{count}", "Call.", stream=True))], 1)


def ask_large() -> Run:
    return send_all([request("messages", body("chat/large", "Write."))] * 8, 8)


def stall_readers(gateway: Gateway) -> str:
    data = request("messages", body("chat/flood", "Write.", stream=True))
    before = gateway.resident_mb()
    with ExitStack() as stack:
        for _ in range(STALLED_READERS):
            sock = stack.enter_context(connect(gateway.port, receive_bytes=1 << 16))
            sock.sendall(data)
        time.sleep(8.0)
        each = (gateway.resident_mb() - before) * 1e3 / STALLED_READERS
    time.sleep(1.0)
    return f"{each:.0f} KB each"


def read_fast(gateway: Gateway) -> str:
    """Read many streams at once that are written as fast as the gateway reads them."""
    data, size, end = request("messages", body("chat/flood", "Write.", stream=True)), 0, time.monotonic() + FAST_S
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(FAST_STREAMS):
            sock = stack.enter_context(connect(gateway.port))
            sock.sendall(data)
            selector.register(sock, selectors.EVENT_READ, sock)
        while time.monotonic() < end:
            for key, _ in selector.select(1.0):
                size += len(key.data.recv(1 << 20))
    return f"{size / 1e6 / FAST_S:.0f} MB a second"


def crowd(gateway: Gateway) -> str:
    """Take every connection with clients that send nothing, from many addresses, then ask with a key.

    They leave one after the other: thousands that leave in the same millisecond cost the system itself 70 ms.
    """
    raise_open_files_limit(IDLE_CONNECTIONS + 256)
    statuses, slowest = [], 0.0
    with ExitStack() as stack:
        for number in range(IDLE_CONNECTIONS):
            source = f"127.0.1.{number % ADDRESSES + 1}"
            stack.callback(leave, connect(gateway.port, source=source))
        for _ in range(20):
            began = time.monotonic()
            statuses.append(ask(gateway.port, request("messages", body("chat/ok", "Hello.")))[0])
            slowest = max(slowest, time.monotonic() - began)
    return f"{summarize(statuses)}, slowest {slowest * 1e3:.0f} ms"


def leave(sock: socket.socket) -> None:
    sock.close()
    time.sleep(0.0005)


def trickle(model: str) -> Run:
    def run(gateway: Gateway) -> str:
        began = time.monotonic()
        try:
            with connect(gateway.port, 45.0) as sock:
                sock.sendall(request("messages", body(f"chat/{model}", "Write.")))
                status = sock.recv(1 << 16)[9:12].decode()
        except TimeoutError:
            return "no answer after 45 s"
        return f"{status} after {time.monotonic() - began:.0f} s"

    return run


def fetch_pages() -> Run:
    """Let models fetch hostile pages, and ask for the metrics, which need a thread of their own."""
    tool = {"type": "web_fetch_20250910", "name": "web_fetch"}
    fetching = request("messages", body("chat/fetch", f"Read {PAGE_URL}", tools=[tool]))

    def run(gateway: Gateway) -> str:
        with ThreadPoolExecutor(1) as pool:
            fetched = pool.submit(ask_all, gateway.port, [fetching] * 8, 8)
            time.sleep(2.0)
            began = time.monotonic()
            ask(gateway.port, METRICS)
            waited = time.monotonic() - began
            return f"{summarize(fetched.result())}, metrics after {waited * 1e3:.0f} ms"

    return run


def search_prose() -> Run:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    return send_all([request("messages", body("chat/search", "Pandas?", tools=[tool]))] * 4, 4)


def send_schema(schema: dict[str, object]) -> Run:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return send_all([request("chat", body("gemini/ok", "Hi.", tools=[tool]))] * 2, 1)


def make_circle(types: int) -> dict[str, object]:
    """Types that all refer to each other, with a description beside each reference."""
    properties = {f"p{at}": {"$ref": f"#/$defs/T{at}", "description": "d"} for at in range(types)}
    defs = {f"T{at}": {"type": "object", "properties": properties} for at in range(types)}
    return {"type": "object", "properties": properties, "$defs": defs}


def make_enums(size: int) -> dict[str, object]:
    return {"type": "object", "oneOf": [{"enum": [*range(size)]}, {"enum": [*range(size, 2 * size)]}]}


def reverse_responses(size: int) -> Run:
    """Parallel calls of a Gemini client whose responses come in reverse order."""
    calls = [{"functionCall": {"id": f"c{at}", "name": "f", "args": {}}} for at in range(size)]
    parts = [{"functionResponse": {"id": f"c{at}", "name": "f", "response": {}}} for at in reversed(range(size))]
    contents = [{"role": "model", "parts": calls}, {"role": "user", "parts": parts}]
    return send_all([request("gemini", json.dumps({"contents": contents}).encode())] * 2, 1)


def send_sessions(count: int, turns: int) -> Run:
    """Send a conversation of so many messages in each of many sessions, with names as long as a header may be."""
    data = json.dumps(
        {"model": "messages/message", "messages": [{"role": "user", "content": str(turn)} for turn in range(turns)]}
    ).encode()
    names = (f"{number:030000d}" for number in range(count))
    return send_all([request("chat", data, f"x-claude-code-session-id: {name}") for name in names], 4)


def send_tags(count: int) -> Run:
    """Send requests with 10,000 tags each."""
    tags = [",".join(f"{(number * 7 + tag) % 99}" for tag in range(10_000)) for number in range(count)]
    return send_all([request("messages", body("chat/ok", "Hello."), f"x-dragoman-tags: {given}") for given in tags], 4)


def send_refused_fields(count: int) -> Run:
    """Send requests with 100 fields that no other has; the upstream refuses them all."""
    fields = [{f"f{number * 100 + field}": 1 for field in range(100)} for number in range(count)]
    return send_all([request("chat", body("chat/teach", "x" * 100_000, **extra)) for extra in fields], 4)


def spend_limit() -> Run:
    """Spend most of a limit, and a webhook that does not answer is to hear of it."""
    return send_all([request("messages", body("chat/ok", "word " * 100_000))] * 20, 2)


def explain_cache() -> Run:
    """Ask why a prompt cache had less, of two captured requests of 7 MB that differ in the middle."""
    texts = ("x" * 3_500_000 + word + "y" * 3_500_000 for word in ("one", "two"))
    data = [request("messages", body("chat/ok", text), "x-claude-code-session-id: long") for text in texts]

    def run(gateway: Gateway) -> str:
        sent = summarize(ask_all(gateway.port, data, 1))
        time.sleep(2.0)  # until they are written
        statuses = [get(gateway, "/api/v1/requests/last/cache")[0] for _ in range(3)]
        return f"{sent}, why {summarize(statuses)}"

    return run


PACKED = request("messages", body("chat/packed", "Write.", stream=True))


def send_tiny_chunks(count: int) -> Run:
    """Send bodies in chunks of five bytes, which are no JSON."""
    head = request("messages", b"", "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
    return send_all([head + b"5\r\nhello\r\n" * count + b"0\r\n\r\n"] * 4, 4)


def do_nothing(gateway: Gateway) -> str:
    time.sleep(5.0)
    return "nothing"


CASES = (
    Case("nothing: what this machine adds", lambda: do_nothing),
    Case("1,000 failed requests of 1 MB", lambda: send_failing(1_000, 1_000_000)),
    Case("20 failed requests of 20 MB", lambda: send_failing(20, 20_000_000), most_peak_mb=800),  # eight at once
    Case("400 resumable requests of 1 MB", lambda: send_parked("ok", 400, 1_000_000, stream=False)),
    Case(
        "20 failed resumable requests of 20 MB",
        lambda: send_parked("fail", 20, 20_000_000, stream=False),
        most_peak_mb=800,
    ),
    Case(  # 128 MB of them may be kept
        "1,000 parked replies of 1 MB",
        lambda: send_parked("megabyte", 1_000, 10, stream=True),
        most_kept_mb=200,
        most_peak_mb=300,
        expected="1000 x 200",
    ),
    Case("60 stored responses of 4 MB", lambda: send_stored(60, 4_000_000), most_peak_mb=250, expected="60 x 200"),
    Case("10,000 mixed requests of 1 MB", lambda: send_mixed(1_000, 10_000, 1_000_000), expected="flat"),
    Case("40 gzip bombs, sent and answered", send_bombs, most_peak_mb=600),
    Case("4 packed streams of 20 MB", lambda: send_all([PACKED] * 4, 4), expected="4 x 200"),
    Case("4 bodies of 200,000 tiny chunks", lambda: send_tiny_chunks(200_000), expected="4 x 400"),
    Case("600,000 messages", send_messages),
    Case("2.2 million unknown keys", send_keys),
    Case("2.2 million unknown keys, strict", lambda: send_keys("x-dragoman-strict: 1")),
    Case("30 MB of words, counted and sent", send_words),
    Case("5,000 calls in one stream", lambda: stream_calls(5_000)),
    Case("100,000 calls in one stream", lambda: stream_calls(100_000)),
    Case("8 replies of 250 MB at once", ask_large, most_peak_mb=800),
    Case("8 pages in punycode fetched", fetch_pages, most_seconds=60, expected="8 x 200"),
    Case("20,000 titles in a search's prose", search_prose, most_seconds=30, expected="4 x 200"),
    Case("7 types that refer to each other", lambda: send_schema(make_circle(7)), most_seconds=10, expected="2 x 200"),
    Case("oneOf of 80,000 numbers", lambda: send_schema(make_enums(40_000)), most_seconds=10, expected="2 x 200"),
    Case("6,000 responses in reverse", lambda: reverse_responses(6_000), most_seconds=10, expected="2 x 200"),
    Case("100 stalled readers", lambda: stall_readers, most_peak_mb=STALLED_READERS * 0.256),
    Case("100 streams as fast as they are read", lambda: read_fast),
    Case("8,192 idle connections without a key", lambda: crowd, most_seconds=60, expected="20 x 200"),
    Case("80,000 pings of a WebSocket", lambda: flood_socket(PING, 80_000), expected="closed with 1008"),
    Case("500,000 pings of a WebSocket", lambda: flood_socket(PING, 500_000), expected="closed with 1008"),
    Case("500,000 fragments of one letter", lambda: flood_socket(CONTINUATION, 500_000), expected="closed with 1008"),
    Case("50,000 empty messages of a WebSocket", lambda: flood_socket(TEXT, 50_000)),
    Case("32 lanes of 8 MB, budget 64 MB", fill_lanes, settings=BUDGET, expected="8 answered"),
    Case("a chain of 40 times 10 MB, budget 64 MB", chain_contexts, settings=BUDGET, expected="6 answered"),
    Case("140 WebSockets of 8 MB, one by one", open_one_by_one, settings=BUDGET, expected="140 answered"),
    Case("1,500 sessions of 4,000 messages", lambda: send_sessions(1_500, 4_000), expected="1500 x 200"),
    Case("200 requests with 10,000 tags", lambda: send_tags(200), expected="200 x 200"),
    Case("10,000 fields that are refused", lambda: send_refused_fields(100)),
    Case("20 errors of 1 MB with fields", lambda: send_all([request("chat", body("chat/forbid-1", "Hi."))] * 20, 4)),
    Case("20 errors of 16 MB with fields", lambda: send_all([request("chat", body("chat/forbid-16", "Hi."))] * 20, 4)),
    Case(
        "1,001 requests wait in line and leave",
        lambda: wait_in_line,
        settings=LINE,
        expected="metrics 200",
        is_later=True,
    ),
    Case("a webhook that never answers", spend_limit, settings=WEBHOOK, is_later=True),
    Case(
        "why a cache missed, of 7 MB", explain_cache, settings=CAPTURES, expected="2 x 200, why 3 x 200", is_later=True
    ),
    Case("10,000 rows of the audit log", lambda: fill_audit, expected="3 x 200", is_later=True),
    Case("100,000 values of a tag", lambda: fill_tags, expected="3 x 413", is_later=True),
    Case(
        "100,000 keys with limits, 1,000 teams",
        lambda: add_tenants,
        most_kept_mb=400,
        most_peak_mb=900,
        expected="4 x 200",
        is_later=True,
    ),
    Case("JSON reply trickled, time-outs 2 s", lambda: trickle("trickle-json"), patience_s=2.0, most_seconds=30),
    Case("error body trickled, time-outs 2 s", lambda: trickle("trickle-error"), patience_s=2.0, most_seconds=40),
)
