"""Containers without a registry: base images of Debian packages, our image, and commands of podman."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "localhost/dragoman-test-base"
IMAGE = "localhost/dragoman-test"
PODMAN = ("podman", "--runtime", "runc")
# The default limits do not work inside another container.
NESTED = ("--detach", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
PATIENCE_S = 60.0


def run(*command: str, timeout_s: float = 600.0) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def import_debian(name: str, packages: str, image: str) -> None:
    """Import a small Debian with these packages, made once, as an image: no registry is needed."""
    archive = Path(sys.prefix) / f"container-{name}.tar"
    if not archive.exists():
        begun = archive.with_name(f"container-{name}.begun.tar")
        run("mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(begun))
        begun.rename(archive)
    run("podman", "import", str(archive), image)


def build_image(wheels: Path) -> None:
    """Build our image as `IMAGE`, from packages that are downloaded to a directory first."""
    import_debian("base", "python3,python3-venv,ca-certificates", BASE)
    lock = wheels / "requirements.txt"  # with what another Python than this one needs
    lock.write_text(re.sub(r" ; [^\\\n]*", " ", (ROOT / "requirements-cluster.lock").read_text()))
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "-r", str(lock))
    versions = ("--only-binary", ":all:", "--python-version", "3.11", "--dest", str(wheels))
    run(*pip, *versions)
    (wheels / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    options = ("--isolation", "chroot", "--pull-never", "--format", "docker", "--build-arg", f"BASE={BASE}")
    offline = ("--volume", f"{wheels}:/wheels:ro", "--volume", f"{wheels}/pip.conf:/etc/pip.conf:ro")
    run("buildah", "build", *options, *offline, "--tag", IMAGE, ".")


def wait_for_log(container: str, text: str) -> str:
    """Return the container's output once it holds this text."""
    until = time.monotonic() + PATIENCE_S
    while text not in (output := run(*PODMAN, "logs", container)):
        assert time.monotonic() < until, output
        time.sleep(0.1)
    return output


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
