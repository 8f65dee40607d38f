"""A capture comes in; a server goes out that answers as its upstream did, with the same bytes at the same pace."""

import asyncio
import itertools

import msgspec

from dragoman.cli.replaying.player import headers_of
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.limits import Limits
from dragoman.net.server import Server
from dragoman.observers.capture import WHOLE, Answer, Capture

HOST = "127.0.0.1"
JSON = (b"content-type", b"application/json")
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"content-encoding"})
MAX_BODY_BYTES = 64 * 1024 * 1024


class PlayedUpstream:
    """Every POST gets the next recorded answer, the last one for ever; there is nothing else here."""

    def __init__(self, capture: Capture) -> None:
        self._answers = [(question.at, question.answer) for question in capture.questions]
        self._asked = itertools.count()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.body()
        if exchange.method != "POST" or not self._answers:
            exchange.respond(
                404, [JSON], b'{"error":{"message":"A replayed upstream only answers what it was asked."}}'
            )
            return
        at, answer = self._answers[min(next(self._asked), len(self._answers) - 1)]
        if answer is None:
            exchange.abort()
            return
        await _play(exchange, answer, asyncio.get_running_loop().time() - at)


async def _play(exchange: Exchange, answer: Answer, began: float) -> None:
    await _until(began + answer.at)
    exchange.start(answer.status, [field for field in headers_of(answer.fields) if field[0] not in FRAMING])
    await exchange.send(b"")
    for chunk in answer.chunks:
        await _until(began + chunk.at)
        await exchange.send(chunk.data)
    await _until(began + answer.ended)
    if answer.end == WHOLE:
        exchange.finish()
    else:
        exchange.abort()


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


async def serve(capture: Capture, port: int) -> Server:
    server = Server(PlayedUpstream(capture), Limits(max_body_bytes=MAX_BODY_BYTES), _error)
    await server.start(HOST, port)
    return server


def stanza(capture: Capture, port: int) -> str:
    """The lines of a dragoman.toml that point at the replayed upstream."""
    question = capture.questions[0]
    spoken = f'protocol = "{question.protocol}"\n' if question.kind == "openai-compatible" else ""
    version = "/v1" if question.kind in ("openai", "openai-compatible", "anthropic") else ""
    where = f"http://{HOST}:{port}{version}"
    key = 'api_key = "sk-replayed"\n' if version else ""
    return f'[providers.replayed]\nkind = "{question.kind}"\nendpoint = "{where}"\n{key}{spoken}'


def _error(path: str, status: int, message: str) -> tuple[list[Header], bytes]:
    return [JSON], msgspec.json.encode({"error": {"message": message}})
