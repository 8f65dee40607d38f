"""`dragoman chat`: what appears where and when, on terminals and in pipes."""

import os
import pty
import signal
import subprocess
import threading
from dataclasses import replace

import msgspec

from e2e.search_scene import CHAT_ANSWERS, CHAT_SEARCHES, FOUND
from fakes.upstream import Answer, FakeUpstream, Gate
from gateway import provider_section
from scripting import write_reply
from scripting.replies import ScriptedReply, Stop, Text, ToolCall
from shell import PATIENCE_S, PROGRAM, Shell


def point_at(shell: Shell, upstream: FakeUpstream) -> None:
    shell.write("dragoman.toml", provider_section("messages", upstream.url) + 'models = ["m"]\n')


def run_on_terminal(shell: Shell, *words: str, **environ: str) -> str:
    """What a terminal shows: both streams, in the order of writing."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=shell.home, env=shell.environ | environ
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0
    return shown.decode().replace("\r\n", "\n")


def test_chat_works_without_any_set_up(shell: Shell) -> None:
    done = shell.run("chat", "Guten", "Tag,", "世界", "👋🏽")
    assert (done.code, done.out, done.err) == (0, "Guten Tag, 世界 👋🏽\n", "")


def test_chat_uses_the_running_gateway_if_a_key_is_known(shell: Shell) -> None:
    with shell.serve() as served:
        done = shell.run("chat", "hello", DRAGOMAN_API_KEY=served.key)
        served.end()
    assert done.out == "hello\n"
    assert "dragoman.requests: " in served.err
    assert "echo/echo ok" in served.err


def test_text_appears_before_the_reply_is_complete(shell: Shell) -> None:
    rest = threading.Event()
    answer = write_reply("messages", "one two three four")
    answer = replace(answer, cut=50, gate=Gate(rest, at=answer.body.index(b"wo th")))
    with FakeUpstream([answer]) as upstream:
        point_at(shell, upstream)
        process = shell.start("chat", "-m", "up/m", "count")
        assert process.stdout is not None
        began = os.read(process.stdout.fileno(), 100)
        assert process.poll() is None
        rest.set()
        ended, _ = process.communicate(timeout=PATIENCE_S)
    assert began.startswith(b"one")
    assert b"four" not in began
    assert began.decode() + ended == "one two three four\n"


def test_standard_input_is_the_text_on_request(shell: Shell) -> None:
    assert shell.run("chat", "-", stdin="from a pipe\nin two lines\n").out == "from a pipe\nin two lines\n"


def test_thinking_goes_to_stderr_so_that_a_pipe_gets_only_the_reply(shell: Shell) -> None:
    done = shell.run("chat", "--think", "hello")
    assert done.out == "hello\n"
    assert "hello" in done.err
    assert "\x1b" not in done.out + done.err


def test_thinking_is_dimmed_on_a_terminal(shell: Shell) -> None:
    shown = run_on_terminal(shell, "chat", "--think", "hello", TERM="xterm")
    dimmed, _, after = shown.removeprefix("\x1b[2m").partition("\x1b[0m")
    assert shown.startswith("\x1b[2m")
    assert dimmed.strip()
    assert after.strip() == "hello"


def test_no_colour_is_honoured(shell: Shell) -> None:
    assert "\x1b" not in run_on_terminal(shell, "chat", "--think", "hello", TERM="xterm", NO_COLOR="1")


def test_control_sequences_of_a_reply_are_not_printed(shell: Shell) -> None:
    with FakeUpstream([write_reply("messages", "a\x1b[31mb\x07\x9b2Jc")]) as upstream:
        point_at(shell, upstream)
        assert run_on_terminal(shell, "chat", "-m", "up/m", "hi", TERM="xterm") == "a[31mb2Jc\n"
        assert shell.run("chat", "-m", "up/m", "hi").out == "a\x1b[31mb\x07\x9b2Jc\n"


def test_tool_calls_are_shown_with_their_arguments(shell: Shell) -> None:
    parts = (Text("Looking."), ToolCall("toolu_1", "get_weather", '{"city":"Paris"}'))
    with FakeUpstream([write_reply("messages", parts)]) as upstream:
        point_at(shell, upstream)
        done = shell.run("chat", "-m", "up/m", "weather?")
        report = shell.run("chat", "-m", "up/m", "weather?", "--json").out
    assert done.out == "Looking.\n"
    assert '→ get_weather {"city":"Paris"}' in done.err
    assert b'"arguments":"{\\"city\\":\\"Paris\\"}"' in msgspec.json.format(report.encode(), indent=-1)


def test_verbose_shows_the_route_and_the_usage(shell: Shell) -> None:
    assert "echo/echo · 2 tokens in, 2 out" in shell.run("chat", "-v", "two words").err


def test_json_holds_the_whole_reply(shell: Shell) -> None:
    report = msgspec.json.decode(shell.run("chat", "--json", "--think", "hello").out, type=dict[str, object])
    assert (report["text"], report["route"], report["stop"], report["calls"]) == ("hello", "echo/echo", "end", [])
    assert "hello" in str(report["thinking"])


def test_a_refused_request_shows_the_gateways_message(shell: Shell) -> None:
    refusal = b'{"type":"error","error":{"type":"invalid_request_error","message":"no such field"}}'
    with FakeUpstream([Answer(refusal, 400, "application/json")]) as upstream:
        point_at(shell, upstream)
        done = shell.run("chat", "-m", "up/m", "hello")
    assert (done.code, done.out) == (1, "")
    assert done.err == "Error: no such field (HTTP 400)\n"


def test_an_unknown_model_is_named_with_similar_names(shell: Shell) -> None:
    done = shell.run("chat", "-m", "ecko", "hello")
    assert done.code == 1
    assert "'ecko' does not exist" in done.err
    assert "echo" in done.err


def test_a_broken_reply_keeps_its_text_and_fails(shell: Shell) -> None:
    whole = write_reply("messages", "one two three four")
    begun = whole.body[: whole.body.index(b"event: content_block_stop")]
    failed = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    for body in (begun + failed, begun):
        with FakeUpstream([replace(whole, body=body)]) as upstream:
            point_at(shell, upstream)
            done = shell.run("chat", "-m", "up/m", "count")
        assert done.code == 1
        assert done.out.startswith("one")
        assert "The reply ended early" in done.err


def test_a_truncated_reply_is_marked(shell: Shell) -> None:
    with FakeUpstream([write_reply("messages", ScriptedReply((Text("Once upon"),), Stop.CAP))]) as upstream:
        point_at(shell, upstream)
        done = shell.run("chat", "-m", "up/m", "a tale")
    assert (done.code, done.out) == (0, "Once upon\n")
    assert "(stopped: length)" in done.err


def test_ctrl_c_ends_it_quickly_and_quietly(shell: Shell) -> None:
    rest = threading.Event()
    answer = write_reply("messages", "one two three four")
    answer = replace(answer, cut=50, gate=Gate(rest, at=answer.body.index(b"wo th")))
    with FakeUpstream([answer]) as upstream:
        point_at(shell, upstream)
        process = shell.start("chat", "-m", "up/m", "count")
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100).startswith(b"one")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)  # far less than the minutes for which the upstream may stall
        rest.set()
    assert process.returncode == 1
    assert err == "\nInterrupted.\n"


def test_an_empty_prompt_is_wrong_usage(shell: Shell) -> None:
    assert shell.run("chat", "-", stdin="  \n").code == 2


def with_search(shell: Shell, upstream: FakeUpstream, searxng: FakeUpstream) -> None:
    upstream.answers = [Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS)]
    searxng.intercept = lambda request: Answer(msgspec.json.encode(FOUND), content_type="application/json")
    tools = f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{searxng.url}"\n'
    shell.write("dragoman.toml", tools + provider_section("chat", upstream.url, "chat"))


def test_a_search_shows_its_query_and_the_cited_pages(shell: Shell) -> None:
    with FakeUpstream() as upstream, FakeUpstream() as searxng:
        with_search(shell, upstream, searxng)
        done = shell.run("chat", "--search", "-m", "chat/m", "pandas?")
    text = "See [One](https://a.example/1) and [x](https://no.example/)."
    assert (done.code, done.out) == (0, f"Let me look. \n{text}\n\n[1] One https://a.example/1\n")
    assert done.err == '→ web_search {"query":"pandas"} found 2 pages\n'


def test_a_search_as_json_has_searches_and_sources(shell: Shell) -> None:
    with FakeUpstream() as upstream, FakeUpstream() as searxng:
        with_search(shell, upstream, searxng)
        done = shell.run("chat", "--search", "--json", "-m", "chat/m", "pandas?")
    record = msgspec.json.decode(done.out)
    pages = [
        {"title": "One", "url": "https://a.example/1"},
        {"title": "https://b.example/2", "url": "https://b.example/2"},
    ]
    assert record["searches"] == [{"query": "pandas", "failed": False, "results": pages}]
    assert record["sources"] == pages[:1]


def test_a_failed_search_is_shown(shell: Shell) -> None:
    with FakeUpstream() as upstream, FakeUpstream() as searxng:
        with_search(shell, upstream, searxng)
        searxng.intercept = lambda request: Answer(b"{}", 429, "application/json")
        done = shell.run("chat", "--search", "-m", "chat/m", "pandas?")
    assert done.code == 0
    assert '→ web_search {"query":"pandas"} failed: too_many_requests\n' in done.err


def test_without_a_search_the_next_step_is_named(shell: Shell) -> None:
    done = shell.run("chat", "--search", "hello")
    assert (done.code, done.out) == (0, "hello\n")
    assert "No search was run" in done.err
