"""The JavaScript SDKs, driven by scripts of ours."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from clients.driven import DRIVERS
from clients.rig import NOTHING, Ran, Rig


def drive(rig: Rig, node: Path, directory: Path, driver: str, *modes: str, env: Mapping[str, str] = NOTHING) -> Ran:
    """Node looks for packages beside the script, so the script is taken to them."""
    here = rig.work / "driver"
    here.mkdir(exist_ok=True)
    for script in DRIVERS.glob("*.mjs"):
        shutil.copy(script, here)
    if not (here / "node_modules").exists():
        (here / "node_modules").symlink_to(directory / "node_modules")
    return rig.run(node, here / driver, *modes, env=env)
