"""Every protocol folder uses the same module names, so a reader of one folder finds their way in the others."""

import re
from pathlib import Path

import dragoman.protocols

_FOLDERS = sorted(
    folder for folder in Path(dragoman.protocols.__file__).parent.iterdir() if (folder / "__init__.py").is_file()
)
_HUB_VALUES = {"native"}  # as JSON, without shapes or errors of a vendor
_NAMES = re.compile(r"(__init__|wire|errors|(parse|build|decode|encode|state)(_[a-z]+)?)\.py")


def test_modules_are_named_by_what_they_do() -> None:
    modules = [module for folder in _FOLDERS for module in folder.glob("*.py")]
    assert len(_FOLDERS) >= 5
    assert [str(module) for module in modules if not _NAMES.fullmatch(module.name)] == []


def test_a_protocol_has_a_module_for_each_side_that_its_record_has() -> None:
    for protocol in dragoman.protocols.PROTOCOLS.values():
        folder = Path(dragoman.protocols.__file__).parent / protocol.name
        expected = set() if protocol.name in _HUB_VALUES else {"wire", "errors"}
        expected |= {"parse", "encode"} if protocol.client is not None else set()
        expected |= {"build", "decode"} if protocol.upstream is not None else set()
        assert expected <= {module.stem for module in folder.glob("*.py")}, protocol.name
