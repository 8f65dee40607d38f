"""`dragoman doctor NAME`: what it shows, what it writes, and what it does not guess."""

import tomllib

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from fakes.compatible import Body, MoodyServer, Server, refusal
from fakes.upstream import FakeUpstream
from shell import Shell

KEY = "sk-fake-0123456789"


def object_to_new_fields(body: Body) -> str | None:
    words = ('"developer"', '"max_completion_tokens"')
    return next((f"{KEY} may not send {word}" for word in words if word in msgspec.json.encode(body).decode()), None)


def make_section(url: str, more: str = "") -> str:
    return f'# mine\n[providers.up]\nkind = "openai-compatible"\nendpoint = "{url}"\napi_key = "{KEY}"\n{more}'


def test_the_table_and_the_lines_to_write_are_shown(shell: Shell) -> None:
    with FakeUpstream(choose=Server(objection=object_to_new_fields), models=("tiny",)) as fake:
        file = shell.write("dragoman.toml", make_section(fake.url))
        done = shell.run("doctor", "up")
    assert done.code == 0
    row = next(line for line in done.out.splitlines() if line.startswith("developer messages"))
    assert row.split()[2:4] == ["rejected", "no_developer"]
    assert done.out.endswith('\n[providers.up]\nprotocol = "chat"\nquirks = ["max_tokens","no_developer"]\n')
    assert "Probing tiny at" in done.err
    assert "at most" in done.err
    assert KEY not in done.out + done.err
    assert file.read_text() == make_section(fake.url)


def test_it_is_written_into_the_file_with_a_diff_and_a_backup(shell: Shell) -> None:
    with FakeUpstream(choose=Server("messages", objection=object_to_new_fields), models=("tiny",)) as fake:
        file = shell.write("dragoman.toml", make_section(fake.url, 'models = ["tiny"]\n\n[retry]\nattempts = 2\n'))
        before = file.read_text()
        done = shell.run("doctor", "up", "--write")
        again = shell.run("doctor", "up", "--write")
    assert '+quirks = ["max_tokens", "no_developer"]' in done.err
    assert KEY not in done.out + done.err
    (backup,) = shell.home.glob("dragoman.toml.dragoman-backup-*")
    assert backup.read_text() == before
    written = ConfigSource(str(file), {}, shell.home, shell.home).read()
    assert written.providers["up"].protocols == ("chat", "messages")
    assert written.providers["up"].quirks == ("max_tokens", "no_developer")
    assert file.read_text().startswith("# mine\n")
    assert written.retry.attempts == 2
    assert "already has these settings" in again.err


def test_the_result_does_not_depend_on_the_models_text(shell: Shell) -> None:
    server = MoodyServer(7, "ignores cap", "ignores required", objection=has_developer)
    written: set[str] = set()
    with FakeUpstream(choose=server, models=("tiny",)) as fake:
        for _ in range(3):
            file = shell.write("dragoman.toml", make_section(fake.url))
            assert shell.run("doctor", "up", "--write").code == 0
            written.add(file.read_text())
    (text,) = written
    assert tomllib.loads(text)["providers"]["up"]["quirks"] == ["max_tokens", "no_developer", "no_required"]


def has_developer(body: Body) -> str | None:
    return "no such role" if '"developer"' in msgspec.json.encode(body).decode() else None


def test_a_discovered_server_gets_a_section(shell: Shell) -> None:
    with FakeUpstream(choose=Server(), models=("tiny",)) as fake:
        shell.add_local_server("vllm", fake.port)
        done = shell.run("doctor", "vllm", "--write")
    assert done.code == 0
    written = tomllib.loads(shell.read(".config/dragoman/dragoman.toml"))["providers"]["vllm"]
    assert written == {"kind": "openai-compatible", "endpoint": fake.url, "protocol": "chat", "quirks": "vllm"}


@pytest.mark.parametrize(
    ("configured", "odd", "expected"),
    [
        ('"ollama"', object_to_new_fields, ["max_tokens", "no_developer"]),
        ('["deepseek", "plain"]', lambda body: None, ["replay_reasoning"]),
    ],
)
def test_disproved_quirks_are_removed_and_others_stay(
    shell: Shell, configured: str, odd: object, expected: list[str]
) -> None:
    assert callable(odd)
    with FakeUpstream(choose=Server(objection=odd), models=("tiny",)) as fake:
        shell.write("dragoman.toml", make_section(fake.url, f"quirks = {configured}\n"))
        report = shell.run("doctor", "up", "--json").json
    assert isinstance(report, dict)
    assert report["section"] == {"protocol": "chat", "quirks": expected}
    assert report["model"] == "tiny"
    assert report["requests"] == len(fake.calls)


def test_a_model_may_be_named(shell: Shell) -> None:
    with FakeUpstream(choose=Server()) as fake:
        shell.write("dragoman.toml", make_section(fake.url))
        nameless = shell.run("doctor", "up")
        assert shell.run("doctor", "up", "--model", "large").code == 0
    assert (nameless.code, "--model" in nameless.err) == (1, True)
    assert {call.json["model"] for call in fake.calls} == {"large"}


def test_a_server_without_a_usable_protocol_is_not_configured(shell: Shell) -> None:
    with FakeUpstream(choose=lambda request: refusal("who are you?", 401), models=("tiny",)) as fake:
        file = shell.write("dragoman.toml", make_section(fake.url))
        done = shell.run("doctor", "up", "--write")
    assert done.code == 1
    assert "nothing to configure" in done.err
    assert file.read_text() == make_section(fake.url)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("upp",), 1, 'Did you mean "up"?'),
        (("other",), 1, "is of kind echo"),
        (("--write",), 2, "NAME"),
    ],
)
def test_only_some_providers_can_be_probed(shell: Shell, words: tuple[str, ...], code: int, message: str) -> None:
    shell.write("dragoman.toml", make_section("http://127.0.0.1:9") + '[providers.other]\nkind = "echo"\n')
    done = shell.run("doctor", *words)
    assert (done.code, message in done.err) == (code, True), done.err


HEADER_SECRET = "fake-tenant-7f3c9a51"


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize("escaped", [False, True], ids=["as it is", "escaped"])
def test_a_secret_of_the_headers_is_not_shown(shell: Shell, flags: tuple[str, ...], escaped: bool) -> None:
    def repeat_secrets(body: Body) -> str | None:
        if '"developer"' not in msgspec.json.encode(body).decode():
            return None
        shown = "".join(f"\\u{ord(c):04x}" for c in HEADER_SECRET) if escaped else HEADER_SECRET
        return f"{shown} and {KEY} may not send developer"

    with FakeUpstream(choose=Server(objection=repeat_secrets), models=("tiny",)) as fake:
        shell.write("dragoman.toml", make_section(fake.url, f'headers = {{ x-tenant = "{HEADER_SECRET}" }}\n'))
        done = shell.run("doctor", "up", *flags)
    assert done.code == 0
    shown = done.out + done.err
    assert "may not send" in shown
    for secret in (HEADER_SECRET, KEY):
        assert secret not in shown
        assert "".join(f"\\u{ord(c):04x}" for c in secret) not in shown.replace("\\\\", "\\")
