"""What was written into another program's settings is taken back, and nothing else."""

from pathlib import Path

import pytest

from dragoman.operate.clients.settings_file import list_backups
from dragoman.operate.clients.settings_format import ENV, JSON, TOML, YAML, CannotMerge, Settings, SettingsFormat
from dragoman.operate.clients.written_settings import RECORD_MARK, choose_defaults, plan_undo, plan_write, write

FORMATS: dict[str, tuple[SettingsFormat, Settings, Settings, str]] = {
    # format, settings, other values for them, the user's file
    "json": (
        JSON,
        {"model": "m", "env": {"URL": "http://a", "NEW": "1"}},
        {"model": "n", "env": {"URL": "http://b", "NEW": "1"}},
        '{\n  // mine\n  "model": "gpt",\n  "env": {\n    "FOO": "1"\n  }\n}\n',
    ),
    "toml": (
        TOML,
        {"model": "m", "providers": {"dragoman": {"url": "http://a", "name": "d"}}},
        {"model": "n", "providers": {"dragoman": {"url": "http://b", "name": "d"}}},
        '# mine\nmodel = "gpt" # the best\n\n[projects."/home/me"]\ntrust = "yes"\n',
    ),
    "yaml": (YAML, {"model": "m", "base": "http://a"}, {"model": "n", "base": "http://b"}, "# mine\nmodel: gpt # x\n"),
    "env": (
        ENV,
        {"MODEL": "m", "BASE": "http://a"},
        {"MODEL": "n", "BASE": "http://b"},
        "# mine\nexport MODEL='gpt'\n",
    ),
}
CASES = [pytest.param(*case, id=name) for name, case in FORMATS.items()]


def connect(path: Path, format: SettingsFormat, settings: Settings) -> None:
    write(plan_write(path, format, settings), format, settings)


def undo(path: Path, format: SettingsFormat) -> tuple[str, ...]:
    """Take everything back, and return the keys that were left."""
    planned = plan_undo(path, format)
    assert planned is not None
    planned.apply()
    return tuple(".".join(key) for key in planned.left)


@pytest.mark.parametrize(("format", "settings", "other", "text"), CASES)
def test_without_later_edits_every_byte_is_restored_however_often_it_was_written(
    tmp_path: Path, format: SettingsFormat, settings: Settings, other: Settings, text: str
) -> None:
    path = tmp_path / "settings"
    path.write_text(text)
    path.chmod(0o640)
    for new in (settings, other, settings):
        connect(path, format, new)
    assert undo(path, format) == ()
    assert (path.read_text(), path.stat().st_mode & 0o777) == (text, 0o640)
    assert list(tmp_path.iterdir()) == [path], "the record and the backups are gone"
    assert plan_undo(path, format) is None


@pytest.mark.parametrize(("format", "settings", "other", "text"), CASES)
def test_later_edits_stay_and_only_our_keys_are_taken_back(
    tmp_path: Path, format: SettingsFormat, settings: Settings, other: Settings, text: str
) -> None:
    path = tmp_path / "settings"
    path.write_text(text)
    connect(path, format, settings)
    edited = format.merge(path.read_text(), format.prepare({"later": "edit"}))
    path.write_text(edited)
    connect(path, format, other)
    assert undo(path, format) == ()
    assert path.read_text() == format.merge(text, format.prepare({"later": "edit"}))


@pytest.mark.parametrize(("format", "settings", "other", "text"), CASES)
def test_a_file_that_was_not_there_is_removed_unless_others_have_written_into_it(
    tmp_path: Path, format: SettingsFormat, settings: Settings, other: Settings, text: str
) -> None:
    path = tmp_path / "new" / "settings"
    connect(path, format, settings)
    assert list_backups(path) == []
    undo(path, format)
    assert list((tmp_path / "new").iterdir()) == []
    connect(path, format, settings)
    path.write_text(format.merge(path.read_text(), format.prepare({"later": "edit"})))
    undo(path, format)
    assert format.read(path.read_text()) == format.prepare({"later": "edit"})


def test_a_key_that_was_changed_since_is_left_and_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"model": "gpt"}')
    connect(path, JSON, {"model": "m", "env": {"A": "1", "B": "2"}})
    path.write_text(JSON.merge(path.read_text(), {"model": "mine", "env": {"A": "9"}}))
    assert undo(path, JSON) == ("model", "env.A")
    assert JSON.read(path.read_text()) == {"model": "mine", "env": {"A": "9"}}


def test_a_value_of_the_users_own_between_two_writes_is_what_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    connect(path, JSON, {"model": "m"})
    path.write_text('{"model": "mine"}')
    connect(path, JSON, {"model": "n"})
    undo(path, JSON)
    assert JSON.read(path.read_text()) == {"model": "mine"}


def test_a_file_that_has_become_malformed_or_is_gone_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    connect(path, JSON, {"model": "m"})
    path.write_text('{"model": ')
    with pytest.raises(CannotMerge):
        plan_undo(path, JSON)
    path.unlink()
    assert undo(path, JSON) == ()
    assert list(tmp_path.iterdir()) == []


def test_the_record_is_private_and_a_broken_one_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    connect(path, JSON, {"model": "m"})
    record = tmp_path / f"settings.json{RECORD_MARK}"
    assert record.stat().st_mode & 0o777 == 0o600
    record.write_text("{")
    with pytest.raises(CannotMerge, match="cannot be read"):
        plan_undo(path, JSON)


def test_a_default_gives_way_to_the_users_value_but_not_to_our_own_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "settings.yml"
    path.write_text("weak-model: theirs\n")
    assert choose_defaults(path, YAML, {"weak-model": "m", "editor-model": "m"}) == {"editor-model": "m"}
    connect(path, YAML, {"editor-model": "m"})
    assert choose_defaults(path, YAML, {"weak-model": "n", "editor-model": "n"}) == {"editor-model": "n"}
