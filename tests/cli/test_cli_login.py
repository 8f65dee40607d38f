"""`dragoman login kiro` as a process, and a gateway that uses its credential."""

from pathlib import Path

import msgspec

from dragoman.cli.serving.startup import Keys, render_banner
from dragoman.config.load import ConfigSource
from dragoman.operate.configuration.effective import GatewayTarget
from fakes.kiro import FakeKiro
from shell import Shell


def test_a_login_by_code_is_found_by_doctor_and_serve(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with FakeKiro() as fake:
        toml = f'[providers.kiro]\nkind = "kiro"\nendpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\n'
        shell.write("dragoman.toml", toml)
        fake.device.append("authorization_pending")
        done = shell.run("login", "kiro")
        assert done.code == 0, done.err
        assert "FAKE-CODE" in done.out
        assert f"{fake.root}/device?user_code=FAKE-CODE" in done.out
        assert "Waiting" in done.err
        assert "aoaFAKE" not in done.out + done.err
        stored = tmp_path / ".local" / "share" / "dragoman" / "kiro.json"
        assert msgspec.json.decode(stored.read_bytes())["accessToken"] == "aoaFAKE-access-token-1"
        checks = shell.run("doctor", "--json").json["checks"]
        kiro = [check for check in checks if check["what"].startswith("provider kiro")]
        assert [check["state"] for check in kiro] == ["ok", "ok"]
        assert "12.5 of 50" in kiro[1]["found"]


def test_a_denied_login_fails_and_leaves_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with FakeKiro() as fake:
        shell.write("dragoman.toml", f'[providers.kiro]\nkind = "kiro"\nauth_endpoint = "{fake.root}"\n')
        fake.device.append("access_denied")
        done = shell.run("login", "kiro")
    assert done.code == 1
    assert "denied" in done.err
    assert not (tmp_path / ".local" / "share" / "dragoman" / "kiro.json").exists()


def test_flags_that_exclude_each_other_are_wrong_usage(tmp_path: Path) -> None:
    assert Shell(tmp_path).run("login", "kiro", "--social", "google", "--start-url", "https://x").code == 2


def test_a_file_that_the_ide_left_makes_a_kiro_provider_appear(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    path = shell.write(".aws/sso/cache/kiro-auth-token.json", '{"accessToken": "aoaFAKE", "refreshToken": "aorFAKE"}')
    shown = shell.run("config", "show", "--json").json
    kind = next(value for value in shown if value["key"] == "providers.kiro.kind")
    assert (kind["value"], kind["origin"]) == ("kiro", str(path))
    banner = render_banner(
        ConfigSource(None, {}, tmp_path, tmp_path).read(), GatewayTarget("http://127.0.0.1:8484"), Keys(None, 1, False)
    )
    assert f"kiro  kiro  from {path}" in banner
    assert "FAKE" not in banner
