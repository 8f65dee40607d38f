"""Bodies and headers that clients send: packed ones are read, bombs are refused cheaply, nothing is smuggled on."""

import gzip
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zstandard

from raw_http import Answered, ask, post, request_bytes
from rig import FEW_PAIRS, ONCE, PATHS, PROTOCOLS, Rig, run_rig, walk

MEBIBYTE = 1 << 20
CHEAP_S = 0.5
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
}

REPEATED = ["x-odd", "anthropic-version", "anthropic-beta", "content-type", "authorization", "x-dragoman-explain"]
clients = pytest.mark.parametrize("client", PROTOCOLS)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), ONCE + "[server]\nmax_body_mb = 1\n") as shared:
        yield shared


def body_of(client: str, model: str, text: str = "Go on.", **fields: object) -> bytes:
    user = [{"role": "user", "content": text}]
    response = {"input": user} if client == "responses" else {"messages": user}
    return msgspec.json.encode({"model": model, "max_tokens": 9, **response, **fields})


def script_text(rig: Rig, upstream: str) -> None:
    rig.play(upstream, "The reply.", stream=False)


def measure_request(rig: Rig, client: str, upstream: str, body: bytes, *fields: str) -> tuple[Answered, float]:
    """The answer, and the seconds of CPU that it cost this process: a busy machine does not lengthen them."""
    script_text(rig, upstream)
    started = time.process_time()
    answer = post(rig.gateway.port, PATHS[client], body, *fields)
    return answer, time.process_time() - started


def check_cheap(rig: Rig, client: str, upstream: str, body: bytes, *fields: str, within_s: float = CHEAP_S) -> Answered:
    """At least once: meanwhile the garbage of all earlier tests may be collected, which takes its time."""
    tries: list[tuple[Answered, float]] = []
    while not tries or (tries[-1][1] >= within_s and len(tries) < 3):
        tries.append(measure_request(rig, client, upstream, body, *fields))
    assert tries[-1][1] < within_s, [seconds for _, seconds in tries]
    return tries[-1][0]


def assert_refused(client: str, answer: Answered, status: int) -> None:
    assert answer.status == status, answer.body[:300]
    body = msgspec.json.decode(answer.body)
    if client == "messages":
        assert body["type"] == "error"
        assert body["error"]["type"] == ("request_too_large" if status == 413 else "invalid_request_error")
    else:
        assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("client", "coding", "upstream"), walk([PROTOCOLS, PACKERS], [PROTOCOLS]))
def test_a_packed_body_is_read(rig: Rig, client: str, upstream: str, coding: str) -> None:
    body = body_of(client, rig.model(upstream))
    answer, _ = measure_request(rig, client, upstream, PACKERS[coding](body), f"content-encoding: {coding}")
    assert answer.status == 200, answer.body
    call = rig.fakes[upstream].calls[-1]
    assert "content-encoding" not in call.headers
    assert b"Go on." in call.body
    if client == upstream:
        assert call.body == body.replace(upstream.encode() + b"/", b"", 1)


@clients
@pytest.mark.parametrize("coding", [*PACKERS, "br", "lzw"])
def test_a_badly_packed_body_is_a_bad_request(rig: Rig, client: str, coding: str) -> None:
    answer, _ = measure_request(rig, client, "chat", b"not packed at all", f"content-encoding: {coding}")
    assert_refused(client, answer, 400)


@pytest.mark.parametrize(("coding", "client"), walk([PACKERS], [PROTOCOLS]))
def test_a_zip_bomb_is_refused_cheaply(rig: Rig, client: str, coding: str) -> None:
    bomb = PACKERS[coding](body_of(client, "chat/m", "0" * (64 * MEBIBYTE)))
    assert len(bomb) < MEBIBYTE
    answer = check_cheap(rig, client, "chat", bomb, f"content-encoding: {coding}")
    assert_refused(client, answer, 413)


@clients
def test_a_large_body_is_refused_in_the_protocols_shape(rig: Rig, client: str) -> None:
    answer, _ = measure_request(rig, client, "chat", body_of(client, "chat/m", "0" * (MEBIBYTE + 1)))
    assert_refused(client, answer, 413)
    assert "max_body_mb" in answer.body.decode()
    assert rig.fakes["chat"].calls == []


@pytest.mark.parametrize(
    ("client", "field", "upstream", "opening"),
    walk([PROTOCOLS, ["input", "messages", "unknown"]], [PROTOCOLS, [b"[", b'{"a":']]),
)
def test_a_depth_bomb_is_refused_cheaply(rig: Rig, client: str, upstream: str, opening: bytes, field: str) -> None:
    bomb = b'{"model":"%b/m","max_tokens":1,"%b":' % (upstream.encode(), field.encode()) + opening * 50_000
    answer = check_cheap(rig, client, upstream, bomb)
    assert_refused(client, answer, 400)
    assert rig.fakes[upstream].calls == []


@pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)
def test_a_well_formed_depth_bomb_is_harmless(rig: Rig, client: str, upstream: str) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    bomb = body_of(client, rig.model(upstream)).removesuffix(b"}") + b',"unknown":' + deep + b"}"
    answer = check_cheap(rig, client, upstream, bomb)
    assert_refused(client, answer, 400)


@pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)
def test_fifty_thousand_unknown_fields_are_cheap(rig: Rig, client: str, upstream: str) -> None:
    strange = {f"f{n}": n for n in range(50_000)}
    body = body_of(client, rig.model(upstream), "Go on.", **strange)
    assert check_cheap(rig, client, upstream, body, within_s=2 * CHEAP_S).status == 200


@pytest.mark.parametrize(("client", "name", "upstream"), walk([PROTOCOLS, REPEATED], [PROTOCOLS]))
def test_two_equal_headers_are_harmless(rig: Rig, client: str, upstream: str, name: str) -> None:
    value = "Bearer dgm_fake-client-key-for-tests-only" if name == "authorization" else "1"
    answer, _ = measure_request(
        rig, client, upstream, body_of(client, rig.model(upstream)), f"{name}: {value}", f"{name}: {value}"
    )
    assert answer.status == 200
    sent = [field for field, _ in rig.fakes[upstream].calls[-1].fields]
    assert sent.count(name) <= 1


INJECTIONS = ["a\r\nset-cookie: evil=1", "a\nx-evil: 1", "a\x00b", "a\r\n\r\nHTTP/1.1 200 OK", "ü\u2028"]


@pytest.mark.parametrize(("client", "model", "upstream"), walk([PROTOCOLS, INJECTIONS], [PROTOCOLS]))
def test_no_line_break_of_a_model_name_reaches_a_header(rig: Rig, client: str, upstream: str, model: str) -> None:
    answer, _ = measure_request(rig, client, upstream, body_of(client, f"{upstream}/{model}"), "x-dragoman-explain: 1")
    names = {name for name, _ in answer.headers}
    assert not names & {"set-cookie", "x-evil"}
    assert answer.status in (200, 400, 404)
    for call in rig.fakes[upstream].calls:
        assert not {name for name, _ in call.fields} & {"set-cookie", "x-evil"}
        assert msgspec.json.decode(call.body)["model"] == model


@clients
@pytest.mark.parametrize("value", [b"a\rb", b"a\x00b", b"a\nb", b" folded\r\n more"], ids=["CR", "NUL", "LF", "fold"])
def test_a_control_character_in_a_header_is_refused(rig: Rig, client: str, value: bytes) -> None:
    script_text(rig, "chat")
    data = request_bytes(PATHS[client], body_of(client, "chat/m"), "anthropic-beta: @")
    answer = ask(rig.gateway.port, data.replace(b"@", value, 1))
    assert answer.status == 400
    assert rig.fakes["chat"].calls == []


@clients
@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"x"', b"{", b'{"model":"chat/m"', b"\xff\xfe", b'{"model":1}', b'{"model":""}', b"{}"],
    ids=lambda body: body.decode("latin-1") or "nothing",
)
def test_a_body_that_is_not_a_request_is_rejected(rig: Rig, client: str, body: bytes) -> None:
    answer, _ = measure_request(rig, client, "chat", body)
    assert_refused(client, answer, 400)
