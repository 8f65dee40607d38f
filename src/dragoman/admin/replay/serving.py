"""A capture comes in; a server goes out that answers as its upstream did, with the same bytes at the same pace."""

import asyncio
import itertools
from urllib.parse import urlsplit

import msgspec

from dragoman.admin.replay.player import headers_of
from dragoman.flow.capture.format import WHOLE, Capture, UpstreamResponse
from dragoman.net.exchange import Exchange
from dragoman.net.headers import JSON, Header
from dragoman.net.limits import Limits
from dragoman.net.server import Server

HOST = "127.0.0.1"
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"content-encoding"})
MAX_BODY_BYTES = 64 * 1024 * 1024
KEEP_ALIVE_S = 75.0


class PlayedUpstream:
    """Every POST to a recorded place, or to none, gets the next answer, after the last the first; nothing else does."""

    def __init__(self, capture: Capture) -> None:
        self._places = {"", *(_place(urlsplit(question.url).path) for question in capture.upstream_requests)}
        self._answers = [(question.at, question.response) for question in capture.upstream_requests]
        self._asked = itertools.count()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.body()
        if exchange.method != "POST" or _place(exchange.path) not in self._places:
            exchange.respond(
                404, [JSON], b'{"error":{"message":"A replayed upstream only answers what it was asked."}}'
            )
            return
        at, answer = self._answers[next(self._asked) % len(self._answers)]
        if answer is None:
            exchange.abort()
            return
        await _play(exchange, answer, asyncio.get_running_loop().time() - at)


def _place(path: str) -> str:
    """Its last part: a gateway that is sent here may add a version before it."""
    return path.rpartition("/")[2]


async def _play(exchange: Exchange, answer: UpstreamResponse, began: float) -> None:
    await _until(began + answer.at)
    exchange.start(answer.status, [field for field in headers_of(answer.headers) if field[0] not in FRAMING])
    await exchange.send(b"")
    for chunk in answer.chunks:
        await _until(began + chunk.at)
        await exchange.send(chunk.data)
    await _until(began + answer.ended_at)
    if answer.end == WHOLE:
        exchange.finish()
    else:
        exchange.abort()


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


async def serve(capture: Capture, port: int) -> Server:
    limits = Limits(max_body_bytes=MAX_BODY_BYTES, unauthenticated_keep_alive_s=KEEP_ALIVE_S)  # it asks for no key
    server = Server(PlayedUpstream(capture), limits, _error)
    await server.start(HOST, port)
    return server


def stanza(capture: Capture, port: int) -> str:
    """The lines of a dragoman.toml that point at the replayed upstream, and that need no account with its vendor."""
    question = capture.upstream_requests[0]
    here = f"http://{HOST}:{port}"
    match question.kind:
        case "kiro":
            places = dict.fromkeys(("endpoint", "control_endpoint", "auth_endpoint"), here)
            lines = {"kind": "kiro", **places, "credentials": "ksk_replayed"}
        case "anthropic":
            lines = {"kind": "anthropic", "endpoint": f"{here}/v1", "api_key": "sk-replayed"}
        case _:
            lines = {"kind": "openai-compatible", "endpoint": f"{here}/v1", "protocol": question.protocol}
            lines["api_key"] = "sk-replayed"
    return "".join(["[providers.replayed]\n", *(f'{name} = "{value}"\n' for name, value in lines.items())])


def _error(path: str, status: int, message: str) -> tuple[list[Header], bytes]:
    return [JSON], msgspec.json.encode({"error": {"message": message}})
