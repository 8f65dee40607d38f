"""Decide whether the web console is served."""

from collections.abc import Mapping

from msgspec import Struct

from dragoman.config.settings import Config, is_loopback

VARIABLE = "DRAGOMAN_CONSOLE"
OFF = ("0", "off", "false", "no")
OPEN_ADDRESS = (
    "The console is off: other machines can reach {host}, and nothing says that they use TLS. Put a reverse proxy "
    "with TLS in front and name its address in console.trusted_proxies, or listen on 127.0.0.1."
)


class ConsoleState(Struct, frozen=True):
    """Whether the console is served; `problem` says why it is not, although it is enabled."""

    is_on: bool
    problem: str = ""


def find_console_state(config: Config, environ: Mapping[str, str]) -> ConsoleState:
    """Return whether the console is served. The environment can only switch it off, and then nothing else counts."""
    console, is_local = config.console, is_loopback(config.server.host)
    if environ.get(VARIABLE, "").strip().lower() in OFF or console.enabled is False:
        return ConsoleState(False)
    if is_local or (console.enabled and console.trusted_proxies):
        return ConsoleState(True)
    return ConsoleState(False, OPEN_ADDRESS.format(host=config.server.host) if console.enabled else "")
