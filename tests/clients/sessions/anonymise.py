"""Take the machine, the credentials and the prompts' words out of a recorded session, and nothing else.

As in `tests/fixtures/captured`, every word of a text is replaced by a generated one of the same length, because the
prompts of a client are its authors' work. A line of text depends on that line alone, so that two requests have the same
beginning in common after it as before.
"""

import platform
import re
import socket
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
from tools.anonymise_captures import LOOKS_LIKE_JSON, OPAQUE, Anonymiser, Json

from clients.sessions.drivers import Place
from clients.sessions.recorded import RecordedReply, RecordedRequest, ScriptedCall

HOME = "/home/dev"
REPOSITORY = Path(__file__).resolve().parents[3]
PATH_IN_TEXT = re.compile(rf"({HOME}/[\w./-]*|-home-dev-[\w-]*)")
# Of the connection or of the SDK's platform, and those that carry credentials.
LEFT_OUT = re.compile(
    r"host|connection|content-length|accept.*|authorization|cookie|x-api-key|x-goog-api-key|x-stainless-.*|sec-.*"
)
LONGEST_WORD = 20  # characters by which it may grow: two words that differ may become words with the same beginning
LONGEST_LINE = 4_000  # bytes by which the beginning in common may shrink: the line that differs


class SessionAnonymiser(Anonymiser):
    """Replaces texts line by line, and keeps paths of the project."""

    def replace_string(self, text: str, name: str, *, free: bool) -> str:
        if name in OPAQUE or LOOKS_LIKE_JSON.match(text) or not ("\n" in text or PATH_IN_TEXT.search(text)):
            return super().replace_string(text, name, free=free)
        return "\n".join(self._replace_line(line, name) for line in text.split("\n"))

    def _replace_line(self, line: str, name: str) -> str:
        pieces = PATH_IN_TEXT.split(line)  # every second one is a path
        pieces[::2] = [super(SessionAnonymiser, self).replace_string(piece, name, free=True) for piece in pieces[::2]]
        return "".join(pieces)


def anonymise(requests: list[RecordedRequest], place: Place) -> list[RecordedRequest]:
    """Return the requests of one session; raises ValueError if one would not be as the client sent it."""
    machine, anonymiser = list_names(place), SessionAnonymiser()
    before = [_replace_names(bytes(request.body).decode(), machine) for request in requests]
    after = [_replace_words(body, anonymiser) for body in before]
    _check_beginnings(before, after)
    return [
        msgspec.structs.replace(
            request,
            headers=_anonymise_headers(request.headers, machine),
            body=msgspec.Raw(body.encode()),
            reply=_anonymise_reply(request.reply, machine, anonymiser),
        )
        for request, body in zip(requests, after, strict=True)
    ]


def list_names(place: Place) -> dict[str, str]:
    """Return what names this machine, and what stands for it."""
    home = str(place.home)
    return {
        home: HOME,
        re.sub(r"[^A-Za-z0-9]", "-", home): "-home-dev",
        str(REPOSITORY): "/opt/checkout",
        place.url.removeprefix("http://"): "127.0.0.1:8080",
        socket.gethostname(): "devbox",
        platform.release(): "6.1.0",
    }


def _replace_names(text: str, names: Mapping[str, str]) -> str:
    for name, other in names.items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", other, text)
    return text


def _replace_words(body: str, anonymiser: SessionAnonymiser) -> str:
    value = msgspec.json.decode(body)
    if _encode(value) != body:
        raise ValueError(f"the client writes JSON in another form, which would be lost: {body[:200]}")
    return _encode(anonymiser.replace_value(value, "input"))


def _encode(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _check_beginnings(before: list[str], after: list[str]) -> None:
    """Compare what neighbouring requests have in common at their beginnings with what they had."""
    for number, (had, has) in enumerate(zip(_measure(before), _measure(after), strict=True), 2):
        if not had - LONGEST_LINE < has < had + LONGEST_WORD:
            raise ValueError(f"request {number} shared {had} characters with the one before, now it shares {has}")


def _measure(bodies: list[str]) -> list[int]:
    """Return how many characters each body has in common with the beginning of the one before."""
    return [
        next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before))
        for before, after in pairwise(bodies)
    ]


def _anonymise_headers(headers: tuple[tuple[str, str], ...], machine: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, _replace_names(value, machine)) for name, value in headers if not LEFT_OUT.fullmatch(name))


def _anonymise_reply(reply: RecordedReply, machine: Mapping[str, str], anonymiser: SessionAnonymiser) -> RecordedReply:
    def replace(text: str, name: str) -> str:
        return anonymiser.replace_string(_replace_names(text, machine), name, free=name == "arguments")

    calls = tuple(ScriptedCall(call.id, call.tool, replace(call.arguments, "arguments")) for call in reply.calls)
    return RecordedReply(replace(reply.text, "text"), replace(reply.thinking, "thinking"), calls)
