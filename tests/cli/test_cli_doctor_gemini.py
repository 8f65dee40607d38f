"""`dragoman doctor` on the Gemini API and on Vertex AI."""

from collections.abc import Iterator

import pytest

from cli.test_cli_doctor import run_doctor
from fakes.google import FakeGoogle, write_user_file
from shell import Shell


@pytest.fixture
def google() -> Iterator[FakeGoogle]:
    with FakeGoogle() as fake:
        yield fake


def test_a_key_is_checked_with_the_list_of_models(shell: Shell, google: FakeGoogle) -> None:
    section = f'[providers.goog]\nkind = "gemini"\nendpoint = "{google.root}"\napi_key = "AIza-fake"\n'
    path = shell.write("dragoman.toml", section)
    found = run_doctor(shell, "--config", str(path)).about("provider goog")
    assert found.state == "ok", found


def test_a_token_is_requested_and_its_source_named(shell: Shell, google: FakeGoogle) -> None:
    file = write_user_file(shell.home / "adc.json")
    path = shell.write("dragoman.toml", google.section(str(file)))
    found = run_doctor(shell, "--config", str(path)).about("provider vertex")
    assert (found.state, found.found) == ("ok", f"has a token (authorized user, {file})")


def test_a_login_that_has_ended_is_broken_with_what_to_do(shell: Shell, google: FakeGoogle) -> None:
    google.refuses = "invalid_grant"
    file = write_user_file(shell.home / "adc.json")
    path = shell.write("dragoman.toml", google.section(str(file)))
    found = run_doctor(shell, "--config", str(path)).about("provider vertex")
    assert found.state == "broken"
    assert "invalid_grant" in found.found
    assert "gcloud auth application-default login" in found.to_do
    assert "1//refresh" not in found.found
