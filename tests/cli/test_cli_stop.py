"""`dragoman stop`, what a user reads while a gateway stops, and where it listens on all addresses."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from asking import PATHS, make_body
from fakes.upstream import End, FakeUpstream
from gateway import provider_section
from raw_http import dial, request_bytes
from scripting import write_reply
from scripting.replies import Ending, ScriptedReply, Text
from shell import Served, Shell
from waiting import wait_until

UNENDED = write_reply("chat", ScriptedReply((Text("Hi"),), ending=Ending.NONE), end=End.HANG)


@contextmanager
def serve_with_stream(shell: Shell, settings: str = "") -> Iterator[Served]:
    """Run a gateway with one stream under way that never ends."""
    with FakeUpstream([UNENDED]) as fake:
        shell.write("dragoman.toml", f"[server]\nport = 0\n{settings}" + provider_section("chat", fake.url))
        with shell.serve("--config", "dragoman.toml") as gateway, dial(gateway.port) as client:
            body = msgspec.json.encode(make_body("chat", "up/m", stream=True))
            client.sendall(request_bytes(PATHS["chat"], body, key=gateway.key))
            assert client.recv(1), "the reply has not begun"
            yield gateway
    assert "stopping now: ending 1 request (1 streamed)" in gateway.err


def test_ctrl_c_says_what_it_waits_for_and_a_second_one_ends_it(shell: Shell) -> None:
    with serve_with_stream(shell, "drain_s = 77\n") as gateway:
        gateway.send_signal(signal.SIGINT)
        wait_until(lambda: "waiting up to 77 s for 1 request (1 streamed); a second signal" in gateway.err)
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait() == 0


def test_a_gateway_for_other_machines_shows_its_addresses_and_a_warning(shell: Shell) -> None:
    with shell.serve("--host", "0.0.0.0", DRAGOMAN_API_KEY="fake-key-of-sixteen-or-more") as gateway:
        assert gateway.end(signal.SIGINT) == 0
    assert "Other machines reach it at\n  " in gateway.out
    assert "the connection is not encrypted" in gateway.out
    assert "stopping: no requests are in progress" in gateway.err


@pytest.mark.rest
def test_chat_and_capture_explain_what_is_missing(shell: Shell) -> None:
    with shell.serve() as gateway:
        done = shell.run("chat", "-m", "echo", "Hello")
    assert (done.code, done.out) == (0, "Hello\n")
    assert f"A gateway runs at {gateway.url}, but $DRAGOMAN_API_KEY is not set" in done.err
    shown = shell.run("capture", "show", "last")
    assert (shown.code, "Capturing is off." in shown.err) == (1, True)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_ends_the_gateway_and_waits_for_it(shell: Shell, workers: str) -> None:
    with shell.serve("--workers", workers) as gateway:
        shell.write("dragoman.toml", "[server]\nport = 1\n")
        done = shell.run("stop")
        assert (done.code, done.out) == (0, f"The gateway at {gateway.url} (process {gateway.pid}) has ended.\n")
        assert gateway.wait() == 0
    assert "stopping: no requests are in progress" in gateway.err
    assert list((shell.home / ".local/share/dragoman/running").iterdir()) == []
    again = shell.run("stop")
    assert (again.code, "No gateway is running at http://127.0.0.1:1. Start one" in again.err) == (1, True)


def test_a_second_stop_ends_the_requests_that_the_first_one_waits_for(shell: Shell) -> None:
    with serve_with_stream(shell) as gateway:
        first = shell.start("stop")
        wait_until(lambda: "waiting up to 120 s for 1 request" in gateway.err)
        second = shell.run("stop")
        assert (second.code, "has ended" in second.out) == (0, True)
        out, _ = first.communicate(timeout=60)
        assert (first.returncode, "has ended" in out) == (0, True)
        assert gateway.wait() == 0


def test_another_process_with_the_pid_of_an_ended_gateway_is_not_stopped(shell: Shell) -> None:
    note = shell.write(
        ".local/share/dragoman/running/1.json",
        f'{{"root": "http://127.0.0.1:1", "pid": {os.getpid()}, "began": "before this machine was started"}}',
    )
    done = shell.run("stop", "--url", "http://127.0.0.1:1")
    assert (done.code, "No dragoman answers at http://127.0.0.1:1" in done.err) == (1, True)
    assert not note.exists()
