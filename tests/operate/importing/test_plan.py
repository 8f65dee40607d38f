"""The other file is found, recognised and read, and no file is overwritten."""

from pathlib import Path

import msgspec
import pytest

from dragoman.operate import Conflict, InvalidArgument, NotFound
from dragoman.operate.importing.plan import plan_import, write_import
from operate.importing.imported import FILES, FIXTURES, SECRET, import_fixture
from tables import each_row


@each_row("gateway", list(FILES))
def test_the_gateway_is_recognised_and_no_secret_leaves_its_file(gateway: str) -> None:
    plan = import_fixture(gateway)
    assert plan.gateway == gateway
    assert SECRET in (FIXTURES / FILES[gateway]).read_text()
    assert SECRET not in str(msgspec.to_builtins(plan))


@each_row(
    ("name", "text", "message"),
    [
        ("config.yaml", "a: [", "is not valid YAML, line 1"),
        ("config.json", "{", "is not valid JSON"),
        ("config.yaml", "- 1", "is not a configuration of LiteLLM"),
        ("config.yaml", "services: {}", "is not a configuration of LiteLLM"),
    ],
)
def test_what_is_no_configuration_is_refused(
    name: str, text: str, message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    (folder / name).write_text(text)
    with pytest.raises(InvalidArgument, match=message):
        plan_import(folder / name, folder / "dragoman.toml")


def test_a_folder_must_have_exactly_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no"):
        plan_import(tmp_path / "none", tmp_path)
    with pytest.raises(NotFound, match="has none of"):
        plan_import(tmp_path, tmp_path)
    for name in ("config.yaml", ".env"):
        (tmp_path / name).write_text("x: y")
    with pytest.raises(InvalidArgument, match=r"config\.yaml and .*\.env"):
        plan_import(tmp_path, tmp_path)


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "dragoman.toml"
    target.write_text("# mine\n")
    with pytest.raises(Conflict, match="already exists"):
        write_import(plan_import(FIXTURES / "litellm.yaml", target))
    assert target.read_text() == "# mine\n"
