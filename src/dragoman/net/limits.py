"""The bounds that a client is held to by the server transport."""

import contextlib
import resource
import sys

import msgspec

from dragoman.config.settings import Server

# Descriptors that are neither a client's connection nor an upstream's: the store, log, listeners, event loop.
OTHER_OPEN_FILES = 64
MIN_CONNECTIONS = 8


class Limits(msgspec.Struct, frozen=True):
    max_header_bytes: int = 32 * 1024
    max_header_fields: int = 100
    max_body_bytes: int = 32 * 1024 * 1024
    max_connections: int = 8192
    header_timeout_s: float = 10.0
    body_gap_timeout_s: float = 30.0
    # A body may take this long, plus the time that its bytes so far need at the lowest rate we accept.
    body_timeout_s: float = 30.0
    min_body_bytes_per_s: float = 4096.0
    keep_alive_s: float = 75.0
    unauthenticated_keep_alive_s: float = 5.0  # between requests, until one of them carried a valid key
    write_idle_timeout_s: float = 120.0
    linger_s: float = 5.0  # how long a refused upload is read and thrown away, so that its sender sees the reply


def limits_for(server: Server) -> Limits:
    """Return the limits that a configuration sets, with no more connections than the limit of open files allows."""
    limits = Limits(max_body_bytes=server.max_body_bytes)
    most = min(limits.max_connections, connections_within(open_files_limit()))
    return msgspec.structs.replace(limits, max_connections=most)


def connections_within(open_files: int) -> int:
    """Return how many connections fit a limit of open files, where each may need one more to an upstream."""
    return max(MIN_CONNECTIONS, (open_files - OTHER_OPEN_FILES) // 2)


def open_files_limit() -> int:
    """Return how many files, connections included, this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit(target: int) -> None:
    """Raise the soft limit of open files towards `target`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = target if hard == resource.RLIM_INFINITY else min(target, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
