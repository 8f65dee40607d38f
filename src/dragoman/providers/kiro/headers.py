"""The headers by which the gateway identifies itself to Kiro, the same in every request."""

import getpass
import os
import platform
import socket
from collections.abc import Mapping
from functools import cache
from hashlib import sha256

from dragoman import __version__
from dragoman.config.settings import KiroProviderConfig
from dragoman.framing.eventstream import CONTENT_TYPE
from dragoman.net.headers import Header
from dragoman.providers.connection import configured_headers
from dragoman.providers.kiro.hosts import Generation

PRODUCT = "dragoman"


@cache
def fingerprint() -> str:
    """Return 64 hex digits that are constant for this user on this machine, and reveal neither."""
    return sha256("\0".join((socket.gethostname(), _user_name(), PRODUCT)).encode()).hexdigest()


def user_agent(config: KiroProviderConfig) -> str:
    system = f"os/{platform.system().lower()}#{platform.release()}"
    language = f"lang/python#{platform.python_version()}"
    return config.user_agent or f"{PRODUCT}/{__version__} ua/2.1 {system} {language} m/{fingerprint()}"


def chat_headers(config: KiroProviderConfig, generation: Generation, environ: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the headers of every chat request, without the credential."""
    own = {
        b"accept": CONTENT_TYPE.encode(),
        b"x-amzn-kiro-agent-mode": generation.agent_mode.encode(),
        b"x-amzn-codewhisperer-optout": b"true",
    }
    return (*{**dict(control_headers(config)), **own, **dict(configured_headers(config, environ))}.items(),)


def control_headers(config: KiroProviderConfig) -> tuple[Header, ...]:
    agent = user_agent(config).encode()
    short = f"{PRODUCT}/{__version__} {fingerprint()}".encode()
    return ((b"user-agent", agent), (b"x-amz-user-agent", agent if config.user_agent else short))


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid()) if hasattr(os, "getuid") else ""
