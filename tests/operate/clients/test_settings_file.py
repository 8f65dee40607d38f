"""A change of the user's file: shown, applied with a backup, and never applied halfway."""

import stat
from pathlib import Path

import pytest

from dragoman.operate.clients.settings_file import KEPT_BACKUPS, FileEdit, list_backups, plan_edit, read_text
from dragoman.operate.clients.settings_format import CannotMerge, Settings, merge_toml

CODEX = {"model_provider": "dragoman", "model_providers": {"dragoman": {"name": "dragoman"}}}
TOML_TEXT = '# mine\nmodel = "gpt"   # the best\n'


def plan(file: Path, new: Settings) -> FileEdit:
    return plan_edit(file, lambda text: merge_toml(text, new))


def test_an_edit_is_shown_and_applied_with_a_backup(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TOML_TEXT)
    file.chmod(0o640)
    edit = plan(file, CODEX)
    assert edit.is_change
    assert '+model_provider = "dragoman"' in edit.diff()
    assert file.read_text() == TOML_TEXT
    backup = edit.apply()
    assert backup is not None
    assert (backup.read_text(), file.read_text()) == (TOML_TEXT, edit.new)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(backup.stat().st_mode)) == (0o640, 0o600)
    assert not plan(file, CODEX).is_change


def test_a_new_file_has_no_backup_and_only_the_newest_backups_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.toml"
    assert plan(file, {"model": "0"}).apply() is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for number in range(1, KEPT_BACKUPS + 3):
        newest = plan(file, {"model": str(number)}).apply()
    backups = list_backups(file)
    assert (len(backups), backups[-1]) == (KEPT_BACKUPS, newest)


def test_the_diff_masks_keys_of_other_tools_and_says_which_side_is_which(tmp_path: Path) -> None:
    file = tmp_path / "settings.env"
    file.write_text("OTHER_API_KEY=abcdef0123456789\n")
    shown = FileEdit(file, file.read_text(), "OTHER_API_KEY=abcdef0123456789\nMODEL=echo\n").diff()
    assert "abcdef0123456789" not in shown
    assert shown.startswith(f"--- {file}\tbefore\n+++ {file}\tafter\n")


def test_the_diff_shows_where_a_key_is_read_from(tmp_path: Path) -> None:
    new = '{"apiKey": "{env:DRAGOMAN_API_KEY}"}\napi_key = "env:OTHER_KEY"\n"apiKey": "abcdef0123456789"\n'
    shown = FileEdit(tmp_path / "settings.json", "", new).diff()
    assert '"apiKey": "{env:DRAGOMAN_API_KEY}"' in shown
    assert 'api_key = "env:OTHER_KEY"' in shown
    assert "abcdef0123456789" not in shown


def test_a_file_that_is_no_text_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(CannotMerge, match="UTF-8"):
        read_text(file)
    assert read_text(tmp_path / "absent") is None
