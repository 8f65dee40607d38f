"""Decode a whole Chat reply, or several answers, into hub events."""

from functools import partial

from dragoman.translate.framing.error_text import strip_html
from dragoman.translate.framing.jsonread import read_json_leniently, replace_invalid_utf8
from dragoman.translate.framing.jsonscan import split_by_index, split_frame
from dragoman.translate.hub.answers import AnswersDecoder, merge_answers
from dragoman.translate.hub.events import Ended, Event, Failed, Started, Stop, UsageReported
from dragoman.translate.hub.failure import NO_REPLY, Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.usage import clamp_usage
from dragoman.translate.protocols.chat.decode import CHUNKS, Decoder
from dragoman.translate.protocols.chat.errors import find_error, read_error
from dragoman.translate.protocols.chat.wire import INESSENTIAL_FIELDS, PLAIN_STOPS, Chunk


def make_decoder(issuer: Issuer, ledger: Ledger) -> Decoder | AnswersDecoder:
    """Return the decoder of a stream: of one choice nearly always, else of as many as the request asks for."""
    if issuer.answers == 1:
        return Decoder(issuer, ledger)
    decoders = [Decoder(issuer, ledger) for _ in range(issuer.answers)]
    return AnswersDecoder(decoders, partial(split_frame, field="choices", count=issuer.answers))


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a whole reply; an error body, or one that is no reply, gives Failed."""
    body = replace_invalid_utf8(body)
    if issuer.answers == 1:
        return _decode_answer(body, issuer, ledger)
    parts = split_by_index(body, "choices", issuer.answers)
    return merge_answers([_decode_answer(part, issuer, ledger) for part in parts])


def _decode_answer(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    try:
        chunk = read_json_leniently(CHUNKS, body, INESSENTIAL_FIELDS)
    except (ValueError, RecursionError):
        excerpt = strip_html(body)
        return [
            Failed(
                Failure(
                    Kind.CORRUPT,
                    "the upstream's reply does not have the shape of Chat Completions"
                    + (f": {excerpt}" if excerpt else ""),
                )
            )
        ]
    if not chunk.choices and not chunk.error:
        failure = read_error(find_error(body))
        return [Failed(failure or Failure(Kind.CORRUPT, "the upstream's reply has no choices", code=NO_REPLY))]
    return Decoder(issuer, ledger).read_whole(chunk)


def decode_outline(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return only start, usage and end of a simple whole reply; any other reply is decoded in full."""
    try:
        chunk = read_json_leniently(CHUNKS, body, INESSENTIAL_FIELDS)
    except (ValueError, RecursionError):
        return decode_whole(body, issuer, ledger)
    stop = _read_simple_stop(chunk)
    if stop is None or chunk.usage is None or not chunk.usage.has_counts:
        return decode_whole(body, issuer, ledger)
    used = UsageReported(clamp_usage(chunk.usage.to_usage(chunk.service_tier or None), ledger))
    return [Started(chunk.id or "", chunk.model or issuer.model), used, Ended(stop)]


def _read_simple_stop(chunk: Chunk) -> Stop | None:
    """Return why a reply of text alone ended; None if anything about it needs the decoder."""
    if chunk.error or not chunk.choices or len(chunk.choices) > 1:
        return None
    choice = chunk.choices[0]
    message = choice.delta or choice.message
    if choice.index or choice.usage or choice.stop_reason or choice.matched_stop:
        return None
    if message is not None and (message.tool_calls or message.function_call):
        return None
    return PLAIN_STOPS.get(choice.finish_reason or "")
