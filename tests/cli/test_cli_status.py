"""`dragoman status`: the running gateway, its providers and today's spending, as text and JSON."""

import msgspec

from dragoman.cli.status import format_duration
from shell import Shell

PRICED = '[[prices]]\nmodel = "*"\ninput = 1000\noutput = 1000\n'


class Provider(msgspec.Struct):
    name: str
    state: str
    detail: str
    requests: int


class Status(msgspec.Struct):
    running: bool
    address: str
    pid: int | None
    version: str | None
    ready: bool
    uptime_s: float | None
    streams: int
    requests: int
    failed: int
    cost_usd: float
    providers: list[Provider]


def test_without_a_gateway_the_exit_code_is_1(shell: Shell) -> None:
    shell.write("dragoman.toml", '[server]\nport = 1\n[providers.office]\nkind = "groq"\n')
    done = shell.run("status")
    assert done.code == 1
    assert "No gateway is running at http://127.0.0.1:1. `dragoman serve` starts one." in done.err
    assert "environment variable GROQ_API_KEY is not set" in done.out
    status = msgspec.json.decode(shell.run("status", "--json").out, type=Status)
    assert (status.running, status.pid, status.version) == (False, None, None)
    assert status.providers[0].state == "problem"


def test_a_running_gateway_is_described(shell: Shell) -> None:
    with shell.serve() as gateway:
        key = {"DRAGOMAN_API_KEY": gateway.key}
        assert shell.run("chat", "-m", "echo", "Hello", **key).code == 0
        shown = shell.run("status", **key)
        status = msgspec.json.decode(shell.run("status", "--json", **key).out, type=Status)
        elsewhere = shell.run("status", "--url", gateway.url, **key)
    assert shown.code == elsewhere.code == 0
    assert f"at {gateway.url}, process {gateway.pid}: running" in shown.out
    assert "Today: 1 request, $0.0000" in shown.out
    assert (status.running, status.ready, status.address, status.streams) == (True, True, gateway.url, 0)
    assert status.pid == gateway.pid
    assert status.uptime_s is not None
    assert status.uptime_s > 0
    assert [(one.name, one.state, one.requests) for one in status.providers] == [("echo", "ok", 1)]
    assert shell.run("status", "--url", "http://127.0.0.1:1").code == 1


def test_durations_have_two_units() -> None:
    expected = {0: "0 seconds", 1: "1 second", 61: "1 minute 1 second", 3600: "1 hour", 90_061: "1 day 1 hour"}
    assert {seconds: format_duration(seconds) for seconds in expected} == expected
