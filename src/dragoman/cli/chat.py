"""`dragoman chat`: send a prompt to a model and show the reply as it streams, its thinking on stderr."""

import asyncio
import logging
import sys
import time
from collections.abc import Iterable
from typing import TextIO

import click
import msgspec
from msgspec import Struct

from dragoman.cli.completion import complete_models
from dragoman.cli.gateway import open_gateway
from dragoman.cli.logs import NoteFormatter, log_to_stderr
from dragoman.cli.models import ModelPage
from dragoman.cli.screen import DIM, PLAIN, count, has_colour, remove_control, show_json
from dragoman.cli.settings import CommonOptions, common_options, key_option, read_found_settings
from dragoman.config.settings import Config
from dragoman.net.client import HttpResponse
from dragoman.operate import AdminError
from dragoman.operate.gateway.running_gateway import GatewayClient, choose_key
from dragoman.translate.framing.redaction import redact
from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    Piece,
    RefusalBlock,
    Reply,
    Stop,
    TextBlock,
    ThinkingBlock,
    collect,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols import PROTOCOLS

MAX_TOKENS = 8192
THINKING_TOKENS = 4096
MAX_SEARCHES = 5


@click.command("chat")
@click.argument("text", nargs=-1, required=True)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="The model to use. [default: the first of `dragoman models`]",
)
@click.option("--think", is_flag=True, help="Ask the model to think first.")
@click.option("--search", is_flag=True, help="Let the model search the web, and list the pages that it cites.")
@click.option("-v", "--verbose", is_flag=True, help="Show the route, the timing and the token counts.")
@key_option
@common_options
def command(
    text: tuple[str, ...],
    model: str | None,
    think: bool,
    search: bool,
    verbose: bool,
    key: str | None,
    options: CommonOptions,
) -> None:
    """Send TEXT to a model and show the reply as it streams. TEXT "-" reads standard input."""
    log_to_stderr(NoteFormatter(), logging.ERROR)
    prompt = sys.stdin.read() if text == ("-",) else " ".join(text)
    if not prompt.strip():
        raise click.UsageError("TEXT is empty.")
    for name, value in (("TEXT", prompt), ("--model", model or "")):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise click.UsageError(f"{name} is not valid UTF-8.")
    output = _Output(verbose, options.as_json)
    config = read_found_settings(options.config_file)
    place = _Place(choose_key(config, key), options.url)
    asyncio.run(_chat(config, place, _Prompt(prompt, model, think, search), output))


class _Prompt(msgspec.Struct, frozen=True):
    text: str
    model: str | None
    think: bool
    search: bool


class _Place(msgspec.Struct, frozen=True):
    key: str | None
    url: str | None


class _Output(msgspec.Struct, frozen=True):
    verbose: bool
    as_json: bool


async def _chat(config: Config, place: _Place, prompt: _Prompt, output: _Output) -> None:
    async with open_gateway(config, place.key, place.url) as gateway:
        model = prompt.model or await _first_model(gateway)
        began = time.monotonic()
        timeout_s = config.server.idle_timeout_s
        response = await gateway.send(gateway.make_request("POST", "/v1/messages", _body(prompt, model)), timeout_s)
        screen = None if output.as_json else Screen()
        try:
            reader = ReplyReader(response, screen, timeout_s)
            reply = await reader.read()
        finally:
            response.close()
            if screen is not None:
                screen.close()
        route = (response.headers.get(b"x-dragoman-route") or b"").decode("latin-1")
        result = ChatResult(reply, route, reader.first_s(began), time.monotonic() - began)
    if output.as_json:
        show_json(result.as_record())
    elif screen is not None:
        if prompt.search:
            screen.show_sources(result)
        if output.verbose:
            screen.show_summary(result)
    result.raise_failure()


def _body(prompt: _Prompt, model: str) -> bytes:
    body: dict[str, object] = {
        "model": model,
        "max_tokens": MAX_TOKENS + (THINKING_TOKENS if prompt.think else 0),
        "stream": True,
        "messages": [{"role": "user", "content": prompt.text}],
    }
    if prompt.think:
        body["thinking"] = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
    if prompt.search:
        body["tools"] = [{"type": "web_search_20250305", "name": "web_search", "max_uses": MAX_SEARCHES}]
    return msgspec.json.encode(body)


async def _first_model(gateway: GatewayClient) -> str:
    models = msgspec.json.decode(await gateway.get("/v1/models"), type=ModelPage).data
    if not models:
        raise AdminError("No provider lists its models. Name a model with -m, or run `dragoman doctor`.")
    return models[0].id


class ChatResult(Struct, frozen=True):
    """A reply, its route, and how long it took until its first token and until its end."""

    reply: Reply
    route: str
    first_s: float
    whole_s: float

    def as_record(self) -> dict[str, object]:
        """Return the reply as `--json` prints it."""
        reply = self.reply
        return {
            "model": reply.model,
            "route": self.route,
            "text": _join(reply, TextBlock, RefusalBlock),
            "thinking": _join(reply, ThinkingBlock),
            "calls": [_call(piece) for piece in reply.pieces if isinstance(piece.what, CallBlock)],
            "searches": [_search(piece.what) for piece in reply.pieces if _is_search(piece)],
            "sources": [{"title": title, "url": url} for url, title in self.sources().items()],
            "stop": reply.end.stop.value if isinstance(reply.end, Ended) else None,
            "usage": reply.usage,
        }

    @property
    def has_searched(self) -> bool:
        return any(_is_search(piece) for piece in self.reply.pieces)

    def sources(self) -> dict[str, str]:
        """Return the titles of the cited pages by URL; those of all pages that were found if none is cited."""
        pieces = self.reply.pieces
        cited = [citation for piece in pieces for citation in piece.citations]
        found = [page for piece in pieces if isinstance(piece.what, HostedBlock) for page in piece.what.results or ()]
        return {page.url: page.title or page.url for page in cited or found if page.url}

    def raise_failure(self) -> None:
        if isinstance(self.reply.end, Failed):
            failure = self.reply.end.failure
            raise AdminError(redact(f"The reply ended early: {failure.message} ({failure.kind.value})"))


class ReplyReader:
    """Reads a Messages stream with the framer and the decoder that read upstreams."""

    def __init__(self, response: HttpResponse, screen: "Screen | None", timeout_s: float) -> None:
        upstream = PROTOCOLS["messages"].upstream
        assert upstream is not None
        self._response = response
        self._screen = screen
        self._timeout_s = timeout_s
        self._framer = upstream.framer()
        self._decoder = upstream.decoder(Issuer("", ""), Ledger())
        self._events: list[Event] = []
        self._first_at: float | None = None

    async def read(self) -> Reply:
        while chunk := await self._response.chunk(self._timeout_s):
            for frame in self._framer.feed(chunk):
                self._add(self._decoder.feed(frame))
        for frame in self._framer.finish():
            self._add(self._decoder.feed(frame))
        self._add(self._decoder.finish())
        return collect(self._events)

    def first_s(self, began: float) -> float:
        return (self._first_at or time.monotonic()) - began

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Delta) and self._first_at is None:
                self._first_at = time.monotonic()
            self._events.append(event)
            if self._screen is not None:
                self._screen.show(event)


class Screen:
    """Shows text on stdout, so that a pipe gets nothing else, and thinking and tool calls on stderr."""

    def __init__(self) -> None:
        self._blocks: dict[int, Opened] = {}
        self._arguments: dict[int, list[str]] = {}
        self._open_line: TextIO | None = None  # the stream whose last line is unfinished
        self._dims = has_colour(sys.stderr)
        self._dimmed = False

    def show(self, event: Event) -> None:
        match event:
            case Opened(block=block, what=HostedBlock() as hosted):
                self._note(f"→ {hosted.kind} {msgspec.json.encode(hosted.input).decode()}{_describe_results(hosted)}")
            case Opened(block=block):
                self._blocks[block] = event
            case Delta(block=block, text=text):
                self._show_delta(block, text)
            case Closed(block=block):
                opened = self._blocks.get(block)
                if opened is not None and isinstance(opened.what, CallBlock):
                    self._note(f"→ {opened.what.name} {''.join(self._arguments.get(block, []))}")
            case Ended(stop=stop) if stop not in (Stop.END, Stop.TOOL):
                self._note(f"(stopped: {stop.value.replace('_', ' ')})")
            case _:
                pass

    def close(self) -> None:
        """Reset the terminal's colour and end the line."""
        self._set_dim(False)
        self._end_line()

    def show_sources(self, result: ChatResult) -> None:
        """Number the pages that the answer is based on, after the answer; say so if nothing was searched for."""
        if not result.has_searched:
            self._note("No search was run. `dragoman doctor` checks the search services in [tools.web_search].")
        for number, (url, title) in enumerate(result.sources().items(), start=1):
            label = "" if title == url else f"{title} "
            self._write(sys.stdout, f"{'' if number > 1 else chr(10)}[{number}] {label}{url}\n")

    def show_summary(self, result: ChatResult) -> None:
        self._note(summarise(result))
        self.close()

    def _show_delta(self, block: int, text: str) -> None:
        match self._blocks[block].what:
            case TextBlock() | RefusalBlock():
                self._set_dim(False)
                self._write(sys.stdout, text)
            case ThinkingBlock():
                self._set_dim(True)
                self._write(sys.stderr, text)
            case CallBlock():
                self._arguments.setdefault(block, []).append(text)

    def _note(self, text: str) -> None:
        self._end_line()
        self._set_dim(True)
        self._write(sys.stderr, f"{text}\n")
        self._set_dim(False)

    def _write(self, stream: TextIO, text: str) -> None:
        if self._open_line not in (None, stream):
            self._end_line()
        stream.write(remove_control(text) if stream.isatty() else text)
        stream.flush()
        if text:
            self._open_line = None if text.endswith("\n") else stream

    def _end_line(self) -> None:
        if self._open_line is not None:
            self._open_line.write("\n")
            self._open_line.flush()
            self._open_line = None

    def _set_dim(self, dim: bool) -> None:
        if self._dims and dim != self._dimmed:
            sys.stderr.write(DIM if dim else PLAIN)
            sys.stderr.flush()
            self._dimmed = dim


def summarise(result: ChatResult) -> str:
    parts = [result.route or result.reply.model]
    if result.reply.usage is not None:
        parts.append(_describe_usage(result.reply.usage))
    parts.append(f"first token after {result.first_s:.2f} s, complete after {result.whole_s:.2f} s")
    return " · ".join(parts)


def _join(reply: Reply, *kinds: type) -> str:
    return "".join(piece.text for piece in reply.pieces if isinstance(piece.what, kinds))


def _call(piece: Piece) -> dict[str, str]:
    assert isinstance(piece.what, CallBlock)
    return {"id": piece.what.id, "name": piece.what.name, "arguments": piece.text}


def _is_search(piece: Piece) -> bool:
    return isinstance(piece.what, HostedBlock) and piece.what.kind == "web_search"


def _search(block: Block) -> dict[str, object]:
    assert isinstance(block, HostedBlock)
    results = [{"title": page.title or page.url, "url": page.url} for page in block.results or ()]
    return {"query": block.input.get("query"), "failed": block.failed, "results": results}


def _describe_results(hosted: HostedBlock) -> str:
    if hosted.failed:
        return f" failed{'' if hosted.output is None else f': {hosted.output}'}"
    return "" if hosted.results is None else f" found {count(len(hosted.results), 'page')}"


def _describe_usage(usage: Usage) -> str:
    cached = f" ({usage.cache_read} cached)" if usage.cache_read else ""
    reasoning = f" ({usage.reasoning} reasoning)" if usage.reasoning else ""
    return f"{count(usage.input, 'token')} in{cached}, {usage.output} out{reasoning}"
