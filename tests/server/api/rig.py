"""Call the admin API of a gateway that runs in this process."""

import asyncio
from pathlib import Path

import asking
from dragoman.tenancy.keys import Grant, KeyRole, Scope
from gateway import Running
from waiting import wait_until

ECHO = '[providers.echo]\nkind = "echo"\n'


def chat(gateway: Running, key: str, model: str = "echo", request_id: str = "") -> int:
    """Make a request for a model, which leaves a usage row."""
    headers = {"x-request-id": request_id} if request_id else {}
    return asking.ask(gateway, "chat", model, key=key, headers=headers).status


def make_token(gateway: Running, *scopes: Scope) -> str:
    """Make an admin token, as its owner would on the command line."""
    grant = Grant(KeyRole.ADMIN, frozenset(scopes))
    making = gateway.app.keyring.create(f"token {' '.join(scopes) or 'without scopes'}", grant)
    return asyncio.run_coroutine_threadsafe(making, gateway.loop).result(timeout=60).secret.reveal()


def capture_all(directory: Path) -> str:
    return f'{ECHO}[debug]\ncapture = "all"\ndirectory = "{directory}/captures"\n'


def wait_for_captures(gateway: Running, count: int) -> None:
    """Wait until so many requests are captured: their files are written by a thread, after the responses."""
    wait_until(lambda: len(asking.send(gateway, "GET", "/api/v1/captures").json["captures"]) == count)


def make_team_token(gateway: Running, team: str, *scopes: Scope) -> str:
    """Make an admin token that is limited to one team."""
    grant = Grant(KeyRole.ADMIN, frozenset(scopes), team=team)
    making = gateway.app.keyring.create(f"token of {team} {' '.join(scopes)}", grant)
    return asyncio.run_coroutine_threadsafe(making, gateway.loop).result(timeout=60).secret.reveal()
