"""The container image, built without a registry, and started with the command lines that the documents give."""

import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deployment.containers import NESTED, PODMAN, ROOT, find_free_port, run, wait_for_log
from raw_http import post

DOCUMENTED = re.compile(r"docker run ((?:[^\n\\]|\\\n)*) dragoman$", re.MULTILINE)
KEY = re.compile(r"dgm_[A-Za-z0-9]{43}")
BODY = b'{"model":"echo","messages":[{"role":"user","content":"Hello"}]}'


def read_command(document: str) -> list[str]:
    """Return the options of the only `docker run` in a document."""
    [options] = DOCUMENTED.findall((ROOT / document).read_text())
    return shlex.split(options.replace("\\\n", " "))


@contextmanager
def start_container(options: list[str], port: int, volume: str, image: str) -> Iterator[str]:
    replaced = {"127.0.0.1:8484:8484": f"127.0.0.1:{port}:8484", "dragoman:/data": f"{volume}:/data"}
    assert set(replaced) <= set(options)
    name = run(*PODMAN, "run", *NESTED, *(replaced.get(word, word) for word in options), image).strip()
    try:
        yield name
    finally:
        run(*PODMAN, "stop", "--time", "10", name)


@pytest.mark.parametrize("document", ["README.md", "docs/install.md"])
def test_the_documented_command_makes_a_key_prints_it_once_and_answers(image: str, document: str) -> None:
    options, port, volume = read_command(document), find_free_port(), f"dragoman-test-{secrets.token_hex(4)}"
    try:
        with start_container(options, port, volume, image) as name:
            output = wait_for_log(name, "--write")
            [key] = KEY.findall(output)
            answer = post(port, "/v1/chat/completions", BODY, key=key)
            assert (answer.status, b"Hello" in answer.body) == (200, True)
            assert post(port, "/v1/chat/completions", BODY, key="dgm_fake-wrong").status == 401
            assert "65532" in run(*PODMAN, "exec", name, "sh", "-c", "id -u")
            assert "dragoman.db" in run(*PODMAN, "exec", name, "ls", "/data")
        with start_container(options, port, volume, image) as name:
            assert KEY.search(wait_for_log(name, "--write")) is None
            assert post(port, "/v1/chat/completions", BODY, key=key).status == 200
    finally:
        run("podman", "volume", "rm", "--force", volume)
