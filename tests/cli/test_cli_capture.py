"""`dragoman capture` and `dragoman replay` as processes."""

import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import anthropic
import msgspec
import pytest
from msgspec.structs import replace

from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.recorded_services import config_for_upstream
from dragoman.proxy.capture.files import CaptureBounds, CaptureDirectory, read_capture, to_json
from dragoman.proxy.capture.format import Capture, utc_text
from gateway import KEY, running
from shell import Shell
from waiting import wait_until

FIXTURE = Path(__file__).parents[1] / "fixtures" / "captures" / "kiro-cut-call.json"
FILES = {
    "request_body.json",
    "kiro_request_body.json",
    "response_stream_raw.txt",
    "kiro_request_body_2.json",
    "response_stream_raw_2.txt",
    "response_stream_modified.txt",
}


def capture(**changes: object) -> Capture:
    return replace(read_capture(FIXTURE.read_bytes()), **changes)


@pytest.fixture
def kept(shell: Shell) -> CaptureDirectory:
    captures = CaptureDirectory(shell.home / "captures", CaptureBounds(100, 1 << 30, 86_400.0))
    shell.write("dragoman.toml", '[debug]\ndirectory = "captures"\n')
    return captures


def test_an_empty_list_of_captures_explains_how_to_get_some(shell: Shell, kept: CaptureDirectory) -> None:
    done = shell.run("capture", "list")
    assert (done.code, done.out) == (0, "")
    assert "debug.capture" in done.err
    assert shell.run("capture", "list", "--json").json == []
    assert shell.run("capture", "show", "last").code == 1


def test_a_capture_is_found_by_its_id_or_either_end_of_it(shell: Shell, kept: CaptureDirectory) -> None:
    for number in range(3):
        kept.write(capture(request_id=f"req_beef{number}", time=utc_text(1_794_700_000.0 + number)))
    listed = shell.run("capture", "list", "--json").json
    assert isinstance(listed, list)
    assert [one["request_id"] for one in listed] == ["req_beef0", "req_beef1", "req_beef2"]
    assert {"route", "outcome", "size", "client", "protocols", "time", "duration_ms"} <= set(listed[0])
    assert (listed[0]["client_protocol"], listed[0]["upstream_protocol"]) == ("messages", "kiro")
    for which, found in {"last": "req_beef2", "req_beef1": "req_beef1", "beef0": "req_beef0"}.items():
        assert shell.run("capture", "show", which).out.startswith(found)
    for which in ("req_", "nothing-like-it"):
        done = shell.run("capture", "show", which)
        assert (done.code, done.out) == (1, "")
        assert which in done.err


def test_the_newest_of_two_captures_with_one_id_is_chosen(shell: Shell, kept: CaptureDirectory) -> None:
    kept.write(capture(request_id="mine", time=utc_text(1_794_700_000.0)))
    kept.write(capture(request_id="mine", time=utc_text(1_794_700_001.0), requested_model="the-newer-one"))
    assert "the-newer-one" in shell.run("capture", "show", "mine").out


def test_the_full_timeline_leaves_nothing_out_and_json_is_the_capture_itself(
    shell: Shell, kept: CaptureDirectory
) -> None:
    kept.write(capture())
    assert "…" not in shell.run("capture", "show", "last", "--full").out
    assert read_capture(shell.run("capture", "show", "last", "--json").out.encode()) == capture()


def test_control_sequences_of_a_model_are_not_printed(shell: Shell, kept: CaptureDirectory) -> None:
    moments = tuple(
        replace(moment, event=moment.event.replace("I will", "\\u001b[31mred")) for moment in capture().events
    )
    kept.write(capture(events=moments, requested_model="\x1b[2Jgone"))
    for words in (("last",), ("last", "--full")):
        assert "\x1b" not in shell.run("capture", "show", *words).out


def test_an_export_has_the_names_that_older_gateways_gave(shell: Shell, kept: CaptureDirectory) -> None:
    kept.write(capture())
    done = shell.run("capture", "export", "last", "out")
    assert done.code == 0
    assert {file.name for file in (shell.home / "out").iterdir()} == FILES
    question = capture().upstream_requests[0]
    assert question.response is not None
    raw = b"".join(chunk.data for chunk in question.response.chunks)
    assert (shell.home / "out" / "response_stream_raw.txt").read_bytes() == raw
    request = msgspec.json.decode((shell.home / "out" / "kiro_request_body.json").read_bytes())
    assert request == msgspec.json.decode(question.body)


def test_a_request_to_another_upstream_is_exported_by_its_name(shell: Shell, kept: CaptureDirectory) -> None:
    question = replace(capture().upstream_requests[0], kind="openai-compatible", route="local/qwen-3")
    kept.write(capture(upstream_requests=(question,)))
    assert shell.run("capture", "export", "last", "out").code == 0
    assert (shell.home / "out" / "local_request_body.json").exists()


def test_a_file_that_is_not_a_capture_is_an_error(shell: Shell) -> None:
    for text in ("{}", "nonsense", "dragoman capture 99 {}\nrest"):
        shell.write("odd", text)
        done = shell.run("replay", "odd")
        assert (done.code, done.out) == (1, "")
        assert "odd" in done.err


@pytest.mark.rest
def test_the_exit_code_of_a_replay_shows_whether_anything_differs(shell: Shell) -> None:
    assert shell.run("replay", str(FIXTURE)).code == 0
    shell.write("edited.json", FIXTURE.read_text().replace(" write it.", " write them."))
    done = shell.run("replay", "edited.json")
    assert done.code == 1
    assert done.out.endswith("different\n")
    report = shell.run("replay", "edited.json", "--json")
    assert report.code == 1
    assert isinstance(report.json, dict)
    assert report.json["same"] is False


@pytest.mark.parametrize("count", [3000, pytest.param(30_000, marks=pytest.mark.rest)])
def test_two_long_repetitive_replies_are_compared_quickly(count: int) -> None:
    first, *_, last = capture().events
    same = [replace(first, event=f'{{"n":{number % 3}}}') for number in range(count)]
    then = capture(events=(first, *same, first))
    began = time.process_time()
    for changed in (same, [last, *same, last], [*same, last], same[1:]):
        now = capture(events=(last, *changed, last))
        [part] = [part for part in compare_captures(then, now) if part.changes]
        assert part.name == "hub events"
        assert {change.was != change.now for change in part.changes} == {True}
        assert part.changes[0].place == "event 1"
    assert compare_captures(then, then)[1].changes == ()
    assert time.process_time() - began < 20  # minutes, if every line is looked for everywhere


def test_an_incomplete_capture_is_not_replayed(shell: Shell, kept: CaptureDirectory) -> None:
    kept.write(capture(truncated=("sent",)))
    done = shell.run("replay", "last")
    assert done.code == 1
    assert "incomplete" in done.err
    assert "not kept" in shell.run("capture", "show", "last").out


def test_a_fixture_expects_the_current_result(shell: Shell) -> None:
    shell.write("edited.json", FIXTURE.read_text().replace(" write it.", " write them."))
    assert shell.run("replay", "edited.json", "--as-fixture", "renewed.json").code == 0
    assert shell.run("replay", "renewed.json").code == 0
    renewed = read_capture((shell.home / "renewed.json").read_bytes())
    assert [part for part in compare_captures(capture(), renewed) if part.changes] == []
    assert renewed.upstream_requests[0].response == capture().upstream_requests[0].response


@contextmanager
def serve_replay(shell: Shell, file: str) -> Iterator[str]:
    """Yield the section that a replayed upstream prints, while it listens."""
    process = shell.start("replay", file, "--serve")
    try:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "\n"))  # what it says, to the empty line
        yield "".join(iter(process.stdout.readline, "\n"))
        assert len(lines) == 1
    finally:
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


def test_a_replayed_upstream_names_a_port_that_is_in_use_and_what_to_do(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shell.run("replay", str(FIXTURE), "--serve", "--port", str(port))
    assert done.code == 1
    assert f"127.0.0.1:{port} is in use by another program. Choose another --port" in done.err
    assert shell.run("replay", str(FIXTURE), "--serve", "--port", "70000").code == 2


def test_a_capture_of_echo_has_no_upstream_to_serve(shell: Shell) -> None:
    request = replace(capture().upstream_requests[0], kind="echo", protocol="native")
    echoed = replace(capture(), upstream_protocol="native", upstream_requests=(request,))
    shell.write("echoed.json", to_json(echoed).decode())
    done = shell.run("replay", "echoed.json", "--serve")
    assert (done.code, done.out) == (1, "")
    assert "answered by echo" in done.err


def connect_to(section: str) -> HTTPConnection:
    found = re.search(r"http://127\.0\.0\.1:(\d+)", section)
    assert found is not None
    return HTTPConnection("127.0.0.1", int(found[1]), timeout=20)


def test_a_replayed_upstream_sends_the_same_bytes_at_the_same_pace(shell: Shell) -> None:
    with serve_replay(shell, str(FIXTURE)) as section:
        for method, path in (("GET", "/v1/models"), ("POST", "/ListAvailableProfiles")):
            connection = connect_to(section)
            connection.request(method, path)
            assert connection.getresponse().status == 404
            connection.close()
        for question in capture().upstream_requests * 2:
            assert question.response is not None
            began = time.monotonic()
            connection = connect_to(section)
            connection.request("POST", "/generateAssistantResponse", b"{}")
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.getheader("content-type") == "application/vnd.amazon.eventstream"
            assert answer.read() == b"".join(chunk.data for chunk in question.response.chunks)
            assert time.monotonic() - began >= (question.response.ended_at - question.at) * 0.9
            connection.close()


def test_a_gateway_with_the_printed_section_gets_the_recorded_reply_and_needs_no_account(
    shell: Shell, tmp_path: Path
) -> None:
    with serve_replay(shell, str(FIXTURE)) as section, running(section, tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0)
        message = client.messages.create(
            model="replayed/claude-sonnet-4.5", max_tokens=100, messages=[{"role": "user", "content": "Again."}]
        )
    assert [block.text for block in message.content if block.type == "text"] == ["I will write it."]
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [("anthropic", "messages"), ("openai", "responses"), ("codex", "responses"), ("copilot", "chat")],
)
def test_the_printed_section_of_any_vendor_needs_no_account(shell: Shell, kind: str, protocol: str) -> None:
    question = replace(capture().upstream_requests[0], kind=kind, protocol=protocol)
    shell.write("dragoman.toml", config_for_upstream(capture(upstream_requests=(question,)), 9400))
    done = shell.run("config", "check")
    assert done.code == 0, done.out + done.err
