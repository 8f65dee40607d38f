"""The checks of `doctor` as a stream of findings; the probe of a server, its report, and the settings that follow."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest
from bench.ports import find_free_port

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config
from dragoman.operate import AdminError, InvalidArgument, NotFound
from dragoman.operate.diagnosis.diagnosis import (
    choose_provider,
    choose_settings,
    examine,
    find_fallbacks,
    plan_probed_settings,
    probe_provider,
    report_config_errors,
)
from dragoman.store import open_store
from dragoman.tenancy.keys import Keyring
from dragoman.upstreams.account_state import BROKEN, OK, WARNING, Finding
from dragoman.upstreams.probing.probe import ProbeResult
from fakes.compatible import Body, Server
from fakes.upstream import FakeUpstream
from gateway import running
from valkey_server import ValkeyServer

KEY = "sk-fake-0123456789"


def config_in(directory: Path, toml: str = "", port: int = 1) -> Config:
    file = directory / "command.toml"
    server = f"[server]\nport = {port}\n" if "[server]" not in toml else ""
    file.write_text(f'{toml}\n[store]\nurl = "sqlite:///{directory}/data/store.db"\n{server}')
    return ConfigSource(str(file), {}, directory, directory).read()


def collect(config: Config) -> dict[str, Finding]:
    async def run() -> list[Finding]:
        return [finding async for finding in examine(config, {})]

    return {finding.what: finding for finding in asyncio.run(run())}


def test_a_fresh_machine_has_no_problem(tmp_path: Path) -> None:
    found = collect(config_in(tmp_path, '[providers.echo]\nkind = "echo"\n', find_free_port()))
    assert list(found) == ["configuration", "address", "store", "client keys", "provider echo", "clock"]
    assert BROKEN not in {finding.state for finding in found.values()}
    assert not (tmp_path / "data").exists()


def test_findings_come_one_by_one_and_the_rest_can_be_left_out(tmp_path: Path) -> None:
    async def first() -> Finding:
        findings = examine(config_in(tmp_path, '[providers.echo]\nkind = "echo"\n'), {})
        finding = await anext(findings)
        await findings.aclose()
        return finding

    assert asyncio.run(first()).what == "configuration"


def test_doctor_pings_the_server_of_store_shared(tmp_path: Path, valkey: ValkeyServer) -> None:
    def find_shared(url: str, what: str = "store.shared") -> Finding:
        toml = f'[providers.echo]\nkind = "echo"\n[store]\nurl = "sqlite:///{tmp_path}/store.db"\nshared = "{url}"\n'
        file = tmp_path / "shared.toml"
        file.write_text(toml)
        return collect(ConfigSource(str(file), {}, tmp_path, tmp_path).read({"server.port": find_free_port()}))[what]

    name = f"valkey://127.0.0.1:{valkey.port}/0"
    assert find_shared(valkey.url) == Finding("store.shared", OK, name)
    wrong = find_shared(valkey.url.replace("fake", "other"))
    assert (wrong.state, "user, password and address" in wrong.to_do, "other" in wrong.found) == (BROKEN, True, False)
    assert find_shared(f"valkey://127.0.0.1:{find_free_port()}").state == BROKEN
    assert "expected valkey://HOST:PORT/NUMBER" in find_shared("http://127.0.0.1", "configuration").found


def test_another_program_at_the_address_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        # It closes each connection, as a program that speaks no HTTP may do.
        config = config_in(tmp_path, '[providers.echo]\nkind = "echo"\n', sock.getsockname()[1])
        sock.close()
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", config.server.port))
            address = collect(config)["address"]
    assert (address.state, "--port" in address.to_do) == (BROKEN, True)


def test_a_running_gateway_is_named_with_its_version(tmp_path: Path) -> None:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path) as gateway:
        found = collect(config_in(tmp_path, '[providers.echo]\nkind = "echo"\n', gateway.port))
    assert found["address"].state == OK
    assert f"is running at {gateway.url}" in found["address"].found


def test_an_open_address_whose_keys_are_all_revoked_is_a_problem(tmp_path: Path) -> None:
    toml = f'[providers.echo]\nkind = "echo"\n[server]\nhost = "0.0.0.0"\nport = {find_free_port()}\n'
    config = config_in(tmp_path, toml)
    assert collect(config)["client keys"].state == WARNING  # the first start creates one
    asyncio.run(create_and_revoke_a_key(config))
    keys = collect(config)["client keys"]
    assert (keys.state, "keys create" in keys.to_do) == (BROKEN, True)


async def create_and_revoke_a_key(config: Config) -> None:
    store = await open_store(config.store.url)
    try:
        keyring = Keyring(store)
        await keyring.create("laptop")
        await keyring.revoke("laptop")
    finally:
        await store.close()


def test_each_problem_of_a_configuration_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        config_in(tmp_path, '[retry]\nattempts = "x"\nfoo = 1\n')
    findings = report_config_errors(raised.value)
    assert [finding.state for finding in findings] == [BROKEN, BROKEN]
    assert all("config check" in finding.to_do for finding in findings)


def test_metrics_show_why_requests_went_to_another_provider() -> None:
    metrics = (
        'dragoman_fallbacks_total{provider="a",why="rate_limited"} 3\n'
        'dragoman_fallbacks_total{provider="b",why="overloaded"} 0\n'
        'dragoman_pool_credentials{provider="a",state="cooling_down"} 2\n'
        'dragoman_pool_credentials{provider="b",state="available"} 2\n'
    )
    [finding] = find_fallbacks(metrics)
    assert (finding.what, finding.state) == ("fallbacks from a", WARNING)
    assert finding.found.endswith("rate limited (3), credentials cooling down now (2)")


def reject_developer(body: Body) -> str | None:
    return f"{KEY} may not send developer" if '"developer"' in msgspec.json.encode(body).decode() else None


def config_for(directory: Path, url: str, more: str = "") -> Config:
    section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{url}"\napi_key = "{KEY}"\n{more}'
    (directory / "dragoman.toml").write_text(section)
    return ConfigSource(None, {}, directory, directory).read()


def test_a_report_has_the_settings_and_no_secret_and_its_edit_can_be_applied(tmp_path: Path) -> None:
    progress: list[str] = []
    with FakeUpstream(choose=Server(objection=reject_developer), models=("tiny",)) as fake:
        config = config_for(tmp_path, fake.url)
        report = asyncio.run(probe_provider(choose_provider(config, "up"), None, progress.append))
    assert report.settings == {"protocol": "chat", "quirks": ["no_developer"]}
    assert (report.profile.model, report.profile.requests) == ("tiny", len(fake.calls))
    assert KEY not in str(report.profile.traits)
    [line] = progress
    assert line.startswith("Probing tiny at")
    plan_probed_settings(config, report, {}).apply()
    assert ConfigSource(None, {}, tmp_path, tmp_path).read().providers["up"].quirks == ("no_developer",)


def test_a_server_without_models_needs_the_name_of_one(tmp_path: Path) -> None:
    with FakeUpstream(choose=Server()) as fake:
        config = config_for(tmp_path, fake.url)
        with pytest.raises(AdminError, match="--model"):
            asyncio.run(probe_provider(config.providers["up"], None, lambda line: None))


def test_only_a_compatible_provider_that_exists_can_be_probed(tmp_path: Path) -> None:
    config = config_for(tmp_path, "http://127.0.0.1:9", '[providers.other]\nkind = "echo"\n')
    with pytest.raises(NotFound, match='Did you mean "up"'):
        choose_provider(config, "upp")
    with pytest.raises(InvalidArgument, match="of kind echo"):
        choose_provider(config, "other")


def test_configured_protocols_come_first_and_undecided_quirks_stay(tmp_path: Path) -> None:
    more = 'protocol = ["responses", "chat"]\nquirks = ["max_tokens"]\n'
    provider = config_for(tmp_path, "http://127.0.0.1:9", more).providers["up"]
    profile = ProbeResult("tiny", 1, ("chat", "responses"), (), frozenset({"max_tokens"}), ())
    assert choose_settings(profile, provider) == {"protocol": ["responses", "chat"], "quirks": "max_tokens"}
