"""Probing an openai-compatible server: the report, the settings that follow, and the edit of dragoman.toml."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from dragoman.admin.errors import AdminError, InvalidArgument, NotFound
from dragoman.admin.probing import choose_provider, choose_settings, plan_edit, probe_provider
from dragoman.config import Config, load
from dragoman.providers.compatible.probe import ProbeResult
from fakes.compatible import Body, Server
from fakes.upstream import FakeUpstream

KEY = "sk-fake-0123456789"


def reject_developer(body: Body) -> str | None:
    return f"{KEY} may not send developer" if '"developer"' in msgspec.json.encode(body).decode() else None


def config_in(directory: Path, url: str, more: str = "") -> Config:
    section = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{url}"\napi_key = "{KEY}"\n{more}'
    (directory / "dragoman.toml").write_text(section)
    return load(None, {}, directory, directory)


def test_a_report_has_the_settings_and_no_secret_and_its_edit_can_be_applied(tmp_path: Path) -> None:
    progress: list[str] = []
    with FakeUpstream(choose=Server(objection=reject_developer), models=("tiny",)) as fake:
        config = config_in(tmp_path, fake.url)
        report = asyncio.run(probe_provider(choose_provider(config, "up"), None, progress.append))
    assert report.settings == {"protocol": "chat", "quirks": ["no_developer"]}
    assert (report.profile.model, report.profile.requests) == ("tiny", len(fake.calls))
    assert KEY not in str(report.profile.traits)
    [line] = progress
    assert line.startswith("Probing tiny at")
    plan_edit(config, report, {}).apply()
    assert load(None, {}, tmp_path, tmp_path).providers["up"].quirks == ("no_developer",)


def test_a_server_without_models_needs_the_name_of_one(tmp_path: Path) -> None:
    with FakeUpstream(choose=Server()) as fake:
        config = config_in(tmp_path, fake.url)
        with pytest.raises(AdminError, match="--model"):
            asyncio.run(probe_provider(config.providers["up"], None, lambda line: None))


def test_only_a_compatible_provider_that_exists_can_be_probed(tmp_path: Path) -> None:
    config = config_in(tmp_path, "http://127.0.0.1:9", '[providers.other]\nkind = "echo"\n')
    with pytest.raises(NotFound, match='Did you mean "up"'):
        choose_provider(config, "upp")
    with pytest.raises(InvalidArgument, match="of kind echo"):
        choose_provider(config, "other")


def test_configured_protocols_come_first_and_undecided_quirks_stay(tmp_path: Path) -> None:
    more = 'protocol = ["responses", "chat"]\nquirks = ["max_tokens"]\n'
    provider = config_in(tmp_path, "http://127.0.0.1:9", more).providers["up"]
    profile = ProbeResult("tiny", 1, ("chat", "responses"), (), frozenset({"max_tokens"}), ())
    assert choose_settings(profile, provider) == {"protocol": ["responses", "chat"], "quirks": "max_tokens"}
