"""An HTTP client for one test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.net.client import HttpClient


@asynccontextmanager
async def open_http() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    try:
        yield client
    finally:
        await client.close()
