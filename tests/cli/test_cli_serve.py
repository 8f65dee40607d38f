"""`dragoman serve`: what it prints, which requests it accepts, and how it ends."""

import os
import signal
import stat
import subprocess
import sys

import msgspec
import pytest

from asking import send
from fakes.upstream import FakeUpstream
from shell import KEY, Served, Shell
from waiting import wait_until


def status(served: Served, key: str) -> int:
    return send(served, "GET", "/v1/models", key=key).status


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_first_start_creates_a_key_and_shows_it_once(shell: Shell) -> None:
    with shell.serve() as served:
        assert status(served, served.key) == 200
        assert status(served, "dgm_fake-wrong") == 401
        assert served.end() == 0
    assert len(KEY.findall(served.out)) == 1
    assert served.key not in served.err
    store = shell.home / ".local/share/dragoman/dragoman.db"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert served.key.encode() not in store.read_bytes()


def test_the_second_start_shows_no_key_and_the_first_is_still_accepted(shell: Shell) -> None:
    with shell.serve() as first:
        key = first.key
    with shell.serve() as second:
        assert status(second, key) == 200
        assert KEY.search(second.out) is None
        assert "1 in the store" in second.out


def test_a_key_from_the_environment_is_accepted_and_never_printed(shell: Shell) -> None:
    with shell.serve("--verbose", DRAGOMAN_API_KEY="fake-key-from-outside") as served:
        assert status(served, "fake-key-from-outside") == 200
        assert "the one in $DRAGOMAN_API_KEY" in served.out
    assert "fake-key-from-outside" not in served.out + served.err
    assert shell.run("keys", "list", "--json").json == []


def test_the_banner_names_what_was_found_and_where(shell: Shell) -> None:
    with shell.serve(ANTHROPIC_API_KEY="sk-fake-0123456789", ANTHROPIC_BASE_URL="http://127.0.0.1:9") as served:
        provider = next(line for line in served.out.splitlines() if line.strip().startswith("anthropic "))
        assert provider.split() == ["anthropic", "http://127.0.0.1:9/v1", "from", "environment", "ANTHROPIC_API_KEY"]
    assert "sk-fake" not in served.out + served.err


@pytest.mark.rest
def test_the_lines_to_paste_work_in_a_shell(shell: Shell) -> None:
    with shell.serve() as served:
        exports = [line.strip() for line in served.out.splitlines() if line.strip().startswith("export DRAGOMAN")]
        openai = next(line.split(None, 2)[2] for line in served.out.splitlines() if "OpenAI SDK" in line)
        ask = "print(__import__('openai').OpenAI().responses.create(model='echo', input='pasted').output_text)"
        script = "\n".join([*exports, openai, f'{sys.executable} -c "{ask}"'])
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=shell.environ, timeout=30)
    assert (done.stdout, done.returncode) == ("pasted\n", 0), done.stderr


def test_a_taken_port_is_named_with_what_to_do(shell: Shell) -> None:
    with FakeUpstream() as other:
        port = other.port
        done = shell.run("serve", "--port", str(port))
    assert done.code == 1
    assert f"127.0.0.1:{port} is in use" in done.err
    assert "--port" in done.err
    assert KEY.search(done.out + done.err) is None


def test_the_first_start_on_an_open_address_creates_a_key_shows_it_once_and_requires_it(
    shell: Shell,
) -> None:
    with shell.serve("--host", "0.0.0.0") as served:
        key = served.key
        assert (status(served, key), status(served, "dgm_fake-wrong"), status(served, "")) == (200, 401, 401)
        assert served.end() == 0
    assert len(KEY.findall(served.out)) == 1
    assert key not in served.err
    with shell.serve("--host", "0.0.0.0") as again:
        assert (status(again, key), status(again, "")) == (200, 401)
    assert KEY.search(again.out) is None


def test_an_address_others_can_reach_is_served_with_a_key(shell: Shell) -> None:
    key = KEY.search(shell.run("keys", "create").out)
    assert key is not None
    with shell.serve("--host", "0.0.0.0") as served:
        assert served.url.startswith("http://127.0.0.1:")
        assert status(served, key[0]) == 200


def test_a_bad_configuration_is_refused_with_its_line(shell: Shell) -> None:
    path = shell.write("dragoman.toml", "[server]\nprot = 1\n")
    done = shell.run("serve")
    assert done.code == 1
    assert f'{path}:2: server.prot: unknown key; did you mean "port"?' in done.err


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_exit_code_0(shell: Shell, sign: signal.Signals) -> None:
    with shell.serve() as served:
        assert served.end(sign) == 0


def test_several_workers_answer_under_one_banner(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        wait_until(lambda: len(served.workers) == 2)
        workers = served.workers
        assert status(served, served.key) == 200
        assert served.end() == 0
    assert served.out.count("listens on") == 1
    assert len(KEY.findall(served.out)) == 1
    assert not any(alive(pid) for pid in workers)


@pytest.mark.rest
def test_a_worker_that_dies_is_replaced(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        wait_until(lambda: len(served.workers) == 2)
        victim = min(served.workers)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(served.workers - {victim}) == 2)
        assert status(served, served.key) == 200
        assert served.end() == 0
    assert f"worker {victim} ended with exit code -9" in served.err


def test_ctrl_c_on_a_terminal_stops_workers_cleanly(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        wait_until(lambda: len(served.workers) == 2)
        os.killpg(served.pid, signal.SIGINT)
        assert served.wait() == 0


def test_workers_that_keep_dying_are_not_restarted(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        buried: set[int] = set()
        while len(buried) < 6:
            wait_until(lambda: bool(served.workers - buried))
            victim = min(served.workers - buried)
            os.kill(victim, signal.SIGKILL)
            buried.add(victim)
        assert served.wait() == 1
    assert "workers keep failing" in served.err


def test_workers_do_not_outlive_their_parent(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        wait_until(lambda: len(served.workers) == 2)
        workers = served.workers
        served.end(signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in workers))


def test_an_edited_configuration_is_taken_over_and_a_bad_edit_is_not(shell: Shell) -> None:
    echo = '[providers.echo]\nkind = "echo"\n'
    path = shell.write("edited.toml", echo)
    with shell.serve("--config", str(path)) as served:
        shell.write("edited.toml", f'{echo}[[models]]\nname = "parrot"\nto = ["echo/echo"]\n')
        wait_until(lambda: "the edited configuration is in effect" in served.err)
        shell.write("edited.toml", "[servr]\n")
        served.send_signal(signal.SIGHUP)  # sooner than it would look at the file
        wait_until(lambda: 'did you mean "server"?' in served.err)
        assert "parrot" in shell.run("models", "--key", served.key).out
        shell.write("edited.toml", f'{echo}[[models]]\nname = "parrot"\nto = ["ecko/echo"]\n')
        served.send_signal(signal.SIGHUP)
        wait_until(lambda: 'models[0].to: there is no provider "ecko"' in served.err)
        path.unlink()
        wait_until(lambda: f"{path} was removed; the running configuration stays in use" in served.err)
        assert "parrot" in shell.run("models", "--key", served.key).out


@pytest.mark.rest
def test_a_file_that_is_written_after_the_start_is_taken_over_and_followed_from_then_on(shell: Shell) -> None:
    echo = '[providers.echo]\nkind = "echo"\n'
    with shell.serve() as served:  # a dragoman.toml, which names the port, is written once it runs
        wait_until(lambda: "the edited configuration is in effect" in served.err)
        port = f"[server]\nport = {served.port}\n"
        shell.write("dragoman.toml", f'{port}{echo}[[models]]\nname = "parrot"\nto = ["echo/echo"]\n')
        wait_until(lambda: "parrot" in shell.run("models", "--key", served.key).out)


def test_a_missing_provider_key_is_a_warning_at_the_start(shell: Shell) -> None:
    echo = '[providers.echo]\nkind = "echo"\n'
    path = shell.write("poor.toml", f'{echo}[providers.p]\nkind = "openai"\napi_key = "env:NOT_SET"\n')
    with shell.serve("--config", str(path)) as served:
        wait_until(lambda: f"{path}:5: providers.p.api_key: environment variable NOT_SET is not set" in served.err)
        assert "echo/echo" in shell.run("models", "--key", served.key).out


def test_logs_are_json_on_request_and_hold_no_secret(shell: Shell) -> None:
    canary = "sk-fake-canary-0123456789"
    with shell.serve("--log-json", "--verbose") as served:
        for path in (f"/v1/models?key={canary}", f"/v1/models/{canary}"):
            assert send(served, "GET", path, key=canary, headers={"x-request-id": canary}).status == 401
        assert served.end() == 0
    lines = [msgspec.json.decode(line, type=dict[str, str]) for line in served.err.splitlines()]
    assert any("without a valid API key" in line["message"] for line in lines)
    assert canary not in served.out + served.err


def test_wrong_usage_has_its_own_exit_code(shell: Shell) -> None:
    for line in ("nope", "serve --port 70000", "serve --workers 0", "chat"):
        done = shell.run(*line.split())
        assert (done.code, done.err.startswith("Usage: dragoman")) == (2, True), line


def test_a_model_server_of_this_machine_is_found_named_and_used(shell: Shell) -> None:
    with FakeUpstream(models=("tiny",)) as fake:
        shell.add_local_server("vllm", fake.port)
        with shell.serve() as served:
            provider = next(line for line in served.out.splitlines() if line.strip().startswith("vllm "))
            assert provider.split() == ["vllm", fake.url, *f"from port {fake.port} of this machine".split()]
            assert "built in" not in served.out
            assert "claude --model vllm/tiny" in served.out
            served.send_signal(signal.SIGHUP)
            wait_until(lambda: "the edited configuration is in effect" in served.err)
            assert "vllm/tiny" in shell.run("models", "--key", served.key).out


@pytest.mark.rest
def test_commands_without_a_gateway_find_model_servers_too(shell: Shell) -> None:
    with FakeUpstream(models=("tiny",)) as fake:
        shell.add_local_server("vllm", fake.port)
        assert "vllm/tiny" in shell.run("models").out
        assert f"{fake.url} responds" in shell.run("doctor").out


@pytest.mark.rest
def test_a_discovered_server_is_shown_as_configured_and_echo_is_not_suggested(shell: Shell) -> None:
    with FakeUpstream(models=("tiny",)) as fake:
        shell.add_local_server("vllm", fake.port)
        shown = shell.run("config", "show").out.splitlines()
        connected = shell.run("connect", "codex")
    endpoint = next(line.split() for line in shown if line.startswith("providers.vllm.endpoint"))
    assert endpoint[1:] == [fake.url, *f"port {fake.port} of this machine".split()]
    assert not any(line.startswith("providers.echo") for line in shown)
    assert "echo" not in connected.out
