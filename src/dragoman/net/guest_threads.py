"""Threads for work whose length is decided by a page, a model or a client.

The event loop's default executor does the gateway's own work: it renews credentials, reads files and renders metrics.
Nothing that others can make slow runs there, or they could fill all of its threads.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from dragoman.net.body_threads import SerialThread

T = TypeVar("T")

LOOKUPS = 16  # names that are resolved at once; a name server may take half a minute for each

_pages = SerialThread("page")
_files = SerialThread("guest-file")
_lookups = ThreadPoolExecutor(LOOKUPS, "lookup")


async def run_on_page_thread(work: Callable[[], T]) -> T:
    """Return the result of `work` on a fetched page. One thread reads all pages, one after the other."""
    return await _pages.run(work)


async def run_on_file_thread(work: Callable[[], T]) -> T:
    """Return the result of `work` on files that any client key may ask about. One thread serves all of them."""
    return await _files.run(work)


async def resolve_guest_name(host: str, port: int) -> Sequence[str]:
    """Return every address of a host that a client, a model or a page has named. Raises OSError or UnicodeError."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_lookups, look_up)
    return [str(place[4][0]) for place in found]
