"""Every field of another configuration is mapped or has a reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dragoman.operate import InvalidArgument
from dragoman.operate.importing.plan import plan_import
from dragoman.operate.importing.source_values import Report, SourceValue
from operate.importing.imported import FILES, FIXTURES, import_fixture
from tables import each_row


def list_leaves(value: object, path: str) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, member in value.items():
                yield from list_leaves(member, f"{path}.{key}".removeprefix("."))
        case list() if value:
            for index, element in enumerate(value):
                yield from list_leaves(element, f"{path}[{index}]")
        case _:
            yield path


def read_fixture(gateway: str) -> object:
    text = (FIXTURES / FILES[gateway]).read_text()
    if FILES[gateway].endswith(".env"):
        return dict(line.split("=", 1) for line in text.splitlines())
    value: object = yaml.safe_load(text)  # JSON is YAML
    return value


@each_row("gateway", list(FILES))
def test_each_field_is_mapped_or_has_a_reason(gateway: str) -> None:
    plan = import_fixture(gateway)
    assert all(field.setting or field.reason for field in plan.fields)
    paths = [field.path for field in plan.fields]
    leaves = list(list_leaves(read_fixture(gateway), ""))
    missing = [
        leaf for leaf in leaves if not any(leaf == path or leaf.startswith((f"{path}.", f"{path}[")) for path in paths)
    ]
    assert leaves
    assert missing == []


def test_references_that_make_very_many_fields_are_refused(tmp_path: Path) -> None:
    source = (FIXTURES / FILES["LiteLLM"]).read_text() + "\nmany0: &a0 [1, 2]\n"
    for number in range(1, 20):
        source += f"many{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n"
    path = tmp_path / "config.yaml"
    path.write_text(source)
    with pytest.raises(InvalidArgument, match="more than 100000 fields"):
        plan_import(path, tmp_path / "dragoman.toml")


def test_a_number_that_is_not_finite_is_none() -> None:
    assert [SourceValue(text, Report()).number() for text in ("inf", "nan", "1e999", "2")] == [None, None, None, 2]
