"""Every module of the flow package has a test file of its name, which exercises it by itself."""

from pathlib import Path

import dragoman.flow

TESTS = Path(__file__).parent

# Modules that another test file exercises, and why.
ELSEWHERE = {
    "continue_pause": ("e2e/test_server_tools_pauses.py", "a paused reply goes on over real sockets"),
    "form_upload": ("e2e/test_relayed_forms.py", "forms are sent over real sockets"),
    "format": ("flow/capture/test_file_format.py", "captures of both versions become its records"),
    "open_reply": ("flow/test_gateway.py", "the loop gives it to every step that runs itself"),
    "relayed_call": ("e2e/test_relayed_paths.py", "the official SDK requests each path"),
    "relayed_reply": ("e2e/test_relayed_paths.py", "replies of each kind pass over real sockets"),
    "relay_resource": ("state/test_keepers.py", "what a vendor keeps is read through it over real sockets"),
    "ports": ("flow/capture/test_recording_runtime.py", "the real classes and the recording ones implement them"),
}


def test_each_module_has_a_test_of_its_name() -> None:
    [package] = dragoman.flow.__path__
    modules = {path.stem for path in Path(package).rglob("*.py") if path.stem != "__init__"}
    tested = {path.stem.removeprefix("test_") for path in TESTS.rglob("test_*.py")}
    assert sorted(modules - tested - set(ELSEWHERE)) == []


def test_what_is_listed_as_tested_elsewhere_is_tested_there() -> None:
    [package] = dragoman.flow.__path__
    modules = {path.stem for path in Path(package).rglob("*.py")}
    assert set(ELSEWHERE) <= modules
    assert all((TESTS.parent / file).is_file() for file, _ in ELSEWHERE.values())
