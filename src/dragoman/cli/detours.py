"""What a running gateway counts comes in; why requests went past a provider to the next target goes out."""

import re
from collections.abc import Iterator

from dragoman.http.metrics import COOLING_DOWN
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.observers.metrics_catalogue import FALLBACKS, POOL_CREDENTIALS
from dragoman.providers.account_state import WARNING, Finding

PATIENCE_S = 2.0
MAX_BYTES = 16 * 1024 * 1024
COUNTED = re.compile(r'^(\w+)\{provider="((?:[^"\\]|\\.)*)",(?:why|state)="(\w+)"\} (\d+)', re.MULTILINE)


async def detours(root: str, http: HttpClient) -> list[Finding]:
    """Nothing where the gateway cannot be asked: it was found a moment ago, and may have stopped since."""
    try:
        answer = await http.send(OutgoingRequest("GET", f"{root}/metrics", ()), head_timeout_s=PATIENCE_S)
        try:
            text = (await answer.read(MAX_BYTES, PATIENCE_S)).decode(errors="replace")
        finally:
            answer.close()
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded):
        return []
    return list(told(text)) if answer.status == 200 else []


def told(metrics: str) -> Iterator[Finding]:
    reasons: dict[str, list[str]] = {}
    for family, provider, word, count in COUNTED.findall(metrics):
        if family == FALLBACKS.name and count != "0":
            reasons.setdefault(provider, []).append(f"{word.replace('_', ' ')} ({count})")
        elif family == POOL_CREDENTIALS.name and word == COOLING_DOWN and count != "0":
            reasons.setdefault(provider, []).append(f"credentials at rest now ({count})")
    for provider, why in reasons.items():
        found = f"requests went past it since the gateway's start: {', '.join(why)}"
        yield Finding(f"routes past {provider}", WARNING, found, "`x-dragoman-route` and the log name who answered")
