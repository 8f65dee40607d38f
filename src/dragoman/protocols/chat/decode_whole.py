"""Decode a whole Chat reply into hub events."""

from dragoman.framing.error_text import strip_html
from dragoman.framing.jsonread import read_json_leniently, replace_invalid_utf8
from dragoman.hub.events import Ended, Event, Failed, Started, Stop, UsageReported
from dragoman.hub.failure import NO_REPLY, Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Issuer
from dragoman.hub.usage import clamp_usage
from dragoman.protocols.chat.decode import CHUNKS, Decoder
from dragoman.protocols.chat.errors import error_of, read_error
from dragoman.protocols.chat.wire import BESIDE, PLAIN_STOPS, Chunk


def whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """A whole reply's events; an error body or something that is no reply gives Failed."""
    body = replace_invalid_utf8(body)
    try:
        chunk = read_json_leniently(CHUNKS, body, BESIDE)
    except (ValueError, RecursionError):
        said = strip_html(body)
        return [Failed(Failure(Kind.CORRUPT, "the upstream's reply is not Chat" + (f": {said}" if said else "")))]
    if not chunk.choices and not chunk.error:
        failure = read_error(error_of(body))
        return [Failed(failure or Failure(Kind.CORRUPT, "the upstream's reply has no choices", code=NO_REPLY))]
    return Decoder(issuer, ledger).take_whole(chunk)


def glance(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """How a whole reply starts and ends and what it used; one that is not plain, or tells no use, is read in full."""
    try:
        chunk = read_json_leniently(CHUNKS, body, BESIDE)
    except (ValueError, RecursionError):
        return whole(body, issuer, ledger)
    stop = _plain_stop(chunk)
    if stop is None or chunk.usage is None or not chunk.usage.is_told:
        return whole(body, issuer, ledger)
    used = UsageReported(clamp_usage(chunk.usage.meaning(chunk.service_tier or None), ledger))
    return [Started(chunk.id or "", chunk.model or issuer.model), used, Ended(stop)]


def _plain_stop(chunk: Chunk) -> Stop | None:
    """Why one answer of words alone ended, where nothing about it needs weighing."""
    if chunk.error or not chunk.choices or len(chunk.choices) > 1:
        return None
    choice = chunk.choices[0]
    message = choice.delta or choice.message
    if choice.index or choice.usage or choice.stop_reason or choice.matched_stop:
        return None
    if message is not None and (message.tool_calls or message.function_call):
        return None
    return PLAIN_STOPS.get(choice.finish_reason or "")
