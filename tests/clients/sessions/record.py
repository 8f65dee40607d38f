"""Record the sessions of `tests/fixtures/sessions` again, all or those that are named.

    PYTHONPATH=tests .venv/bin/python -m clients.sessions.record [NAME…]

Real clients, installed as the client tests do it, work through a script against a scripted upstream on the loopback.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from clients.sessions.anonymise import anonymise
from clients.sessions.drivers import DRIVERS, Driver, Place
from clients.sessions.recorded import RecordedRequest, Session, write_session
from clients.sessions.script import MAP_PROMPTS, PROMPTS, ScriptedUpstream, make_project
from fakes.upstream import FakeUpstream


def record(driver: Driver) -> list[RecordedRequest]:
    """Return what the client sent in its session."""
    with TemporaryDirectory(prefix="session") as directory:
        home = Path(directory).resolve()
        project = home / "project"
        make_project(project, driver.file_lines, defines_functions=driver.maps_repository)
        prompts = MAP_PROMPTS if driver.maps_repository else PROMPTS
        scripted = ScriptedUpstream(driver.client, driver.protocol, driver.tool, project, driver.turns, prompts)
        with FakeUpstream(choose=scripted) as server:
            place = Place(home, project, server.url.removesuffix("/v1"))
            driver.converse(place, driver.model, scripted.list_prompts())
    return anonymise(scripted.recorded, place)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the sessions of real clients again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(DRIVERS)}; all unless named")
    names = parser.parse_args().names or list(DRIVERS)
    if unknown := set(names) - DRIVERS.keys():
        parser.error(f"There is no session {', '.join(sorted(unknown))}. There are {', '.join(DRIVERS)}.")
    for name in names:
        requests = record(driver := DRIVERS[name])
        session = Session(name, driver.client, driver.version, driver.protocol, driver.model)
        size = write_session(session, requests).stat().st_size
        print(f"{name}: {len(requests)} requests, {sum(request.is_side for request in requests)} aside, {size} bytes")


if __name__ == "__main__":
    main()
