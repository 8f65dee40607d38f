"""How much of a stream was read, and in how many reads, stands in its outcome and in its capture."""

from pathlib import Path

from click.testing import CliRunner

from dragoman.cli.capture import command
from fakes.upstream import Answer, End
from rig import run_rig
from scripting import write_reply

TEXT = "The quick brown fox jumps over the lazy dog. " * 40


def test_bytes_and_chunks_are_counted_whether_they_pass_or_are_translated(tmp_path: Path) -> None:
    captures = f'[debug]\ncapture = "all"\ndirectory = "{tmp_path / "captures"}"\n'
    with run_rig(tmp_path, captures, upstreams=("chat", "kiro")) as rig:
        for client, upstream, stream in (("chat", "chat", True), ("messages", "chat", True), ("chat", "kiro", False)):
            answer = write_reply(upstream, TEXT, cut=300, pause_s=0.002)
            rig.play(upstream, answer)
            reply = rig.ask(client, upstream, stream=stream)
            outcome = rig.gateway.outcome(reply.headers["x-request-id"])
            assert outcome.upstream_bytes == len(answer.body), (client, upstream)
            assert 2 <= outcome.upstream_chunks <= len(answer.body) // 300 + 1, (client, upstream)
            capture = rig.gateway.capture(reply.headers["x-request-id"])
            assert (capture.upstream_bytes, capture.upstream_chunks) == (
                outcome.upstream_bytes,
                outcome.upstream_chunks,
            )
        rig.play("chat", "Whole.", stream=False)
        whole = rig.gateway.outcome(rig.ask("messages", "chat").headers["x-request-id"])
        assert (whole.upstream_bytes, whole.upstream_chunks) == (0, 0)


def test_a_broken_stream_counts_what_came_and_capture_show_tells_it(tmp_path: Path) -> None:
    captures = f'[debug]\ncapture = "all"\ndirectory = "{tmp_path / "captures"}"\n[retry]\nattempts = 1\n'
    with run_rig(tmp_path, captures, upstreams=("chat",)) as rig:
        body = write_reply("chat", TEXT).body[:2000]
        rig.play("chat", Answer(body, end=End.CUT))
        reply = rig.ask("messages", "chat", stream=True)
        outcome = rig.gateway.outcome(reply.headers["x-request-id"])
        assert outcome.upstream_bytes == 2000
        capture = rig.gateway.capture(reply.headers["x-request-id"])
    [file] = (tmp_path / "captures").glob("*")
    shown = CliRunner().invoke(command, ["show", str(file)])
    assert f"stream    2000 bytes in {capture.upstream_chunks} chunk" in shown.output, shown.output
