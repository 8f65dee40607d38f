"""A span and a grouping come in; what was used goes out, as the running gateway tells it, else as the store has it."""

from pathlib import Path

import msgspec

from dragoman.accounts.keys import Keyring
from dragoman.cli.faults import Trouble
from dragoman.cli.gateway import Gateway, find_running
from dragoman.cli.screen import remark
from dragoman.config import Config
from dragoman.framing.redaction import redact
from dragoman.http.usage import PATH, UsageReport, read_usage
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout
from dragoman.store import open_store
from dragoman.store.store import SQLITE
from dragoman.store.usage_rows import Span

NOTHING = UsageReport(whole=True)


async def used(config: Config, key: str | None, span: Span, by: str) -> UsageReport:
    told = await _by_the_gateway(config, key, span, by)
    if told is not None and told.whole:
        return told
    own = await _by_the_store(config.store.url, span, by, opened_by=None if told is None else key)
    if own is not None:
        return own
    if told is not None:
        remark("This is what your key has used; the gateway tells it of no other.")
        return told
    return NOTHING


async def _by_the_gateway(config: Config, key: str | None, span: Span, by: str) -> UsageReport | None:
    """None where no gateway runs, or none that can tell us: then it is all in the store."""
    root = await find_running(config) if key else None
    if root is None or key is None:
        return None
    http = HttpClient()
    try:
        path = f"{PATH}?since_ms={span.since_ms}&until_ms={span.until_ms}&by={by}"
        return msgspec.json.decode(await Gateway(root, key, http).get(path), type=UsageReport)
    except (Trouble, ConnectionLost, UpstreamTimeout, SizeLimitExceeded, msgspec.MsgspecError) as fault:
        if _is_absent(config.store.url):
            raise
        why = fault.message if isinstance(fault, Trouble) else redact(str(fault))
        remark(f"The store is read instead of the gateway: {why}")
        return None
    finally:
        await http.close()


async def _by_the_store(url: str, span: Span, by: str, opened_by: str | None) -> UsageReport | None:
    """None where there is none, or where it is not that of the gateway which the key opens."""
    if _is_absent(url):
        return None
    store = await open_store(url)
    try:
        if opened_by is not None:
            keyring = Keyring(store)
            await keyring.refresh()
            if keyring.check(opened_by.encode()) is None:
                return None
        return await read_usage(store, span, by, most=False)
    finally:
        await store.close()


def _is_absent(url: str) -> bool:
    """Looking makes no file."""
    return url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists()
