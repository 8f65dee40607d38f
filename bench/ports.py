"""Free ports, for programs that get theirs as an argument."""

import random
import socket

PORTS = range(20_000, 32_000)  # the system gives none of them to others meanwhile: it takes 32768 and above


def find_free_port() -> int:
    """Return a free port, chosen at random by the system: other processes choose one at the same time."""
    for port in random.SystemRandom().sample(PORTS, 100):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError("no port is free")
