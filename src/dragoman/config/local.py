"""The environment comes in; the loopback ports where model servers are looked for go out, and what was found there."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from dragoman.config.problems import ConfigError, Problem
from dragoman.config.settings import ServerName

HOST = "127.0.0.1"
VARIABLE = "DRAGOMAN_LOCAL_PORTS"
USUAL_PORTS: Mapping[str, int] = MappingProxyType({"ollama": 11434, "lmstudio": 1234, "vllm": 8000, "llamacpp": 8080})


class LocalServer(Struct, frozen=True):
    """A model server that answers on this machine: what it is called, where, and what it is known for."""

    name: str
    port: int
    quirks: tuple[ServerName, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}/v1"


def local_ports(environ: Mapping[str, str]) -> Mapping[str, int]:
    """Where to look, by the name of what is expected there: `ollama=11434,vllm=8000`; set to nothing, nowhere."""
    text = environ.get(VARIABLE)
    if text is None:
        return USUAL_PORTS
    ports = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, port = entry.partition("=")
        if name not in USUAL_PORTS or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            known = ", ".join(USUAL_PORTS)
            problem = f'expected NAME=PORT, NAME being one of {known}; got "{entry}"'
            raise ConfigError([Problem("environment", None, VARIABLE, problem)])
        ports[name] = int(port)
    return ports
