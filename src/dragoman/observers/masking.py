"""A capture and the secrets that its request knew come in; the capture that may be written down goes out."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dragoman.framing.eventstream import CONTENT_TYPE
from dragoman.framing.redact import SHORTEST, masked, masked_fields, masked_lines, masked_text, masked_url
from dragoman.framing.reseal import resealed
from dragoman.hub.request import Json
from dragoman.observers.capture import Answer, Asked, Capture, Chunk, Moment, Question, Sent, Told

Secrets = Sequence[bytes]


def masked_capture(capture: Capture, secrets: Iterable[bytes]) -> Capture:
    known = sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True)
    asked = _asked(capture.asked, known)
    questions = tuple(masked_question(question, known) for question in capture.questions)
    return replace(
        capture,
        asked=asked,
        questions=questions,
        masked=capture.masked or _bodies(asked, questions) != _bodies(capture.asked, capture.questions),
        moments=_moments(capture.moments, known),
        sent=None if capture.sent is None else masked_sent(capture.sent, known),
        told=tuple(_told(told, known) for told in capture.told),
        world=replace(
            capture.world,
            stanzas={name: _json(stanza, known) for name, stanza in capture.world.stanzas.items()},
            routes=tuple(masked_text(route, known) for route in capture.world.routes),
        ),
        losses=tuple(replace(loss, why=masked_text(loss.why, known)) for loss in capture.losses),
        **{name: masked_text(getattr(capture, name), known) for name in ("id", "client", "route", "wanted")},
    )


def masked_question(question: Question, secrets: Secrets) -> Question:
    return replace(
        question,
        route=masked_text(question.route, secrets),
        url=masked_url(question.url, secrets),
        fields=masked_fields(question.fields, secrets),
        body=masked(question.body, secrets),
        answer=None if question.answer is None else _answer(question.answer, secrets),
        fault=masked_text(question.fault, secrets),
    )


def masked_sent(sent: Sent, secrets: Secrets) -> Sent:
    return replace(sent, fields=masked_fields(sent.fields, secrets), chunks=_chunks(sent.chunks, secrets))


def _asked(asked: Asked, secrets: Secrets) -> Asked:
    query = masked_url(f"?{asked.query}", secrets)[1:] if asked.query else ""
    return replace(asked, query=query, fields=masked_fields(asked.fields, secrets), body=masked(asked.body, secrets))


def _bodies(asked: Asked, questions: Iterable[Question]) -> list[object]:
    """What tokens are counted in."""
    return [asked.body, *((question.body, question.answer and question.answer.chunks) for question in questions)]


def _answer(answer: Answer, secrets: Secrets) -> Answer:
    framed = any(name == "content-type" and value.startswith(CONTENT_TYPE) for name, value in answer.fields)
    chunks = _chunks(answer.chunks, secrets, framed)
    return replace(
        answer, fields=masked_fields(answer.fields, secrets), chunks=chunks, end=masked_text(answer.end, secrets)
    )


def _moments(moments: tuple[Moment, ...], secrets: Secrets) -> tuple[Moment, ...]:
    events = [moment.event for moment in moments]
    hidden = masked_lines(events, secrets)
    if hidden == events:
        return moments
    return tuple(Moment(moment.at, moment.question, text) for moment, text in zip(moments, hidden, strict=True))


def _told(told: Told, secrets: Secrets) -> Told:
    return replace(told, value=_json(told.value, secrets))


def _json(value: Json, secrets: Secrets) -> Json:
    match value:
        case str():
            return masked_text(value, secrets)
        case dict():
            return {name: _json(inner, secrets) for name, inner in value.items()}
        case list():
            return [_json(inner, secrets) for inner in value]
        case _:
            return value


def _chunks(chunks: tuple[Chunk, ...], secrets: Secrets, framed: bool = False) -> tuple[Chunk, ...]:
    """A secret may be cut anywhere, so they are looked at as one."""
    whole = b"".join([chunk.data for chunk in chunks])
    hidden = masked(whole, secrets)
    if hidden == whole:
        return chunks
    if framed:
        hidden = resealed(hidden, whole)
    cut: list[Chunk] = []
    at = 0
    for chunk in chunks:
        cut.append(Chunk(chunk.at, hidden[at : at + len(chunk.data)]))
        at += len(chunk.data)
    return tuple(cut)
