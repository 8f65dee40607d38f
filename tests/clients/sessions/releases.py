"""Record what the last releases of three clients send, into `tests/fixtures/releases`, all or those that are named.

    PYTHONPATH=tests .venv/bin/python -m clients.sessions.releases [CLIENT…]

Each release works through one turn: its first request, and the next one with the result of a tool.
"""

import argparse
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

import msgspec

from clients.install import PINS, node
from clients.sessions.drivers import DRIVERS
from clients.sessions.record import record
from clients.sessions.recorded import RELEASES, RecordedRequest, Session, write_session

RECORDED = {"claude-code": "claude-code", "codex": "codex-gpt-5.5", "gemini-cli": "gemini-cli"}  # with the driver
LAST = 20
ONE_TURN = ((1,),)
RELEASE = re.compile(r"\d+\.\d+\.\d+")  # no preview


def list_versions(package: str) -> list[str]:
    """Return the last releases, the oldest first."""
    npm = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    with TemporaryDirectory() as directory:
        command = [str(node()), str(npm), "view", package, "versions", "--json"]
        listed = subprocess.run(command, cwd=directory, capture_output=True, check=True, timeout=120).stdout
    return [version for version in msgspec.json.decode(listed, type=list[str]) if RELEASE.fullmatch(version)][-LAST:]


def record_release(client: str, package: str, version: str) -> Iterator[RecordedRequest]:
    PINS["npm"][client] = {package: version}  # it is installed in place of the pinned one
    for request in record(replace(DRIVERS[RECORDED[client]], turns=ONE_TURN)):
        yield msgspec.structs.replace(request, client=f"{client} {version}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what the last releases of clients send.")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"one of {', '.join(RECORDED)}; all unless named")
    for client in parser.parse_args().clients or RECORDED:
        [package] = PINS["npm"][client]
        driver, requests = DRIVERS[RECORDED[client]], list[RecordedRequest]()
        for version in list_versions(package):
            try:
                requests += record_release(client, package, version)
            except (RuntimeError, AssertionError, ValueError) as error:
                print(f"{client} {version} cannot be recorded: {str(error)[-300:]}")
            print(f"{client} {version}: {len(requests)} requests so far", flush=True)
        session = Session(client, client, list_versions(package)[-1], driver.protocol, driver.model)
        print(client, write_session(session, requests, RELEASES).stat().st_size, "bytes")


if __name__ == "__main__":
    main()
