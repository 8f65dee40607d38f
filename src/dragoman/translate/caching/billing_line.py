"""The line with which Claude Code tells its vendor who pays.

It stands at the beginning of the prompt and differs from session to session, so no other upstream could share a cached
prefix between two sessions.
"""

import re

from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Request, Role, Text

VENDOR = "anthropic"  # the issuer of reasoning at Anthropic itself
_SYSTEM = Role.SYSTEM  # looked up once: on Python 3.11, each look-up of a member is slow
_BEGINNING = "x-anthropic-"
_LINES = re.compile(r"(?:x-anthropic-[\w-]+:[^\n]*(?:\n|$))+")


def drop_billing_line(request: Request, issuer: str, ledger: Ledger) -> Request:
    """Return a request without a leading system block of such lines alone, unless it goes to Anthropic."""
    first = request.turns[0] if request.turns else None
    if issuer == VENDOR or first is None or first.role is not _SYSTEM:
        return request
    line = first.parts[0] if first.parts else None
    if not isinstance(line, Text) or not line.text.startswith(_BEGINNING) or _LINES.fullmatch(line.text) is None:
        return request
    ledger.record_dropped(line.at, "billing line of another vendor")
    rest = (replace(first, parts=first.parts[1:]),) if len(first.parts) > 1 else ()
    return replace(request, turns=(*rest, *request.turns[1:]))
