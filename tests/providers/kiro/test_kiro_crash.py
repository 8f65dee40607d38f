"""A writer that is killed at any time leaves a complete file."""

import random
import subprocess
import sys
import time
from pathlib import Path

from providers.kiro.kiro_kit import ide_file, read, token

KILLS = 8

WRITER = """
import itertools, sys
from pathlib import Path
from msgspec.structs import replace
from dragoman.providers.kiro.credential_sources import JsonFile

file = JsonFile(Path(sys.argv[1]))
for number in itertools.count():
    old = file.read()
    fresh = replace(old, access_token=f"aoaFAKE-{number}" * 2000, refresh_token=f"aorFAKE-{number}-" + "0" * 120)
    file.write(old, fresh)
    if number == 0:
        print("writing", flush=True)
"""


def test_kill_9_in_the_middle_of_writing_leaves_a_parseable_file(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r0"), kept="by others")
    chance = random.Random(7)
    for _ in range(KILLS):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        until = time.monotonic() + chance.uniform(0.005, 0.06)
        while time.monotonic() < until:
            assert read(path)["kept"] == "by others"  # readers never see half a file either
        writer.kill()
        writer.wait()
        writer.stdout.close()
        table = read(path)
        assert table["kept"] == "by others"
        assert str(table["refreshToken"]).startswith("aorFAKE-")
        assert table["refreshToken"] != token("r0")  # it was killed while it wrote
