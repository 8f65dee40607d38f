"""Network namespaces that stand for the machines of replicas, each with a link that can be cut."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench.cluster.replica import Site

CLONE_NEWNET = 0x40000000
SERVERS = "10.84.0.1"  # of the databases and the upstream, in the namespace of this process


def enter_own_network() -> str:
    """Leave the machine's network for an empty one; return why that is not possible, or nothing.

    The addresses of the namespaces are seen by this process and those that it starts alone.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "only root with iproute2 may make network namespaces"
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNET) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    _run("link", "set", "lo", "up")
    _run("address", "add", f"{SERVERS}/32", "dev", "lo")
    return ""


@contextmanager
def make_site(number: int) -> Iterator[Site]:
    """Make the namespace of a replica, with a link to this one."""
    name, link = f"dragoman-{os.getpid()}-{number}", f"replica{number}"
    near, far = f"10.84.{number}.1", f"10.84.{number}.2"
    _run("netns", "add", name)
    try:
        _run("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("address", "add", f"{near}/24", "dev", link)
        _run("link", "set", link, "up")
        for words in (("link", "set", "lo", "up"), ("address", "add", f"{far}/24", "dev", "eth0")):
            _run("-n", name, *words)
        _run("-n", name, "link", "set", "eth0", "up")
        _run("-n", name, "route", "add", "default", "via", near)
        yield Site(far, ("ip", "netns", "exec", name), link)
    finally:
        _run("netns", "delete", name)


def cut(site: Site) -> None:
    """Let nothing through, neither way, and tell neither side."""
    _run("link", "set", site.link, "down")


def reconnect(site: Site) -> None:
    _run("link", "set", site.link, "up")


def _run(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=60)
