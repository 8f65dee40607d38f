"""One exchange written down: what was asked, what went upstream and came back, what it meant, and what was sent.

`pack` makes the compact file of it, `to_json` the readable one; `read` takes either.
"""

import base64
from typing import cast

import msgspec
import zstandard
from msgspec import Struct, field

from dragoman.framing.redact import Field
from dragoman.hub.events import Delta, Event
from dragoman.hub.loss import Loss
from dragoman.hub.request import Json

VERSION = 1
WHOLE, CLOSED = "whole", "closed"  # how an answer ends: by itself, or by us before its end
CANCELLED = "cancelled"  # why there is no answer: nobody waited for it any more
CLIENT_LEFT, STOPPED = "the client left", "the gateway stopped"
MAGIC = b"dragoman capture "  # then the version, a space, the summary as JSON, a line break, and the rest compressed
LINE = 160  # characters of the readable form
MOST_BYTES = 1024 * 1024 * 1024  # that a packed capture may unfold to


class Unreadable(Exception):
    """This is no capture, or one of a version that we do not know."""


class Chunk(Struct, frozen=True, array_like=True):
    at: float  # seconds since the request began
    data: bytes


class Moment(Struct, frozen=True, array_like=True):
    """A hub event, when it was seen."""

    at: float
    question: int  # which of the questions to upstreams it answers
    event: str  # as JSON


class Told(Struct, frozen=True, array_like=True):
    """What only the world of that moment could tell: a credential's headers, a model's window, a provider's options."""

    provider: str
    what: str
    value: Json


class Asked(Struct, frozen=True):
    """The client's request."""

    method: str
    path: str
    query: str
    fields: tuple[Field, ...]
    body: bytes


class Answer(Struct, frozen=True):
    """What an upstream gave back, as its provider's way to send gave it to us."""

    at: float  # when its head had come
    status: int
    fields: tuple[Field, ...]
    chunks: tuple[Chunk, ...] = ()
    end: str = ""  # `whole`, `closed` by us before its end, or what was raised
    ended: float = 0.0


class Question(Struct, frozen=True):
    """One request to an upstream."""

    at: float
    route: str  # provider/model
    kind: str  # of the provider
    protocol: str
    method: str
    url: str
    fields: tuple[Field, ...]
    body: bytes
    answer: Answer | None = None
    fault: str = ""  # why there is no answer: the name of what was raised, a colon, and its words


class Sent(Struct, frozen=True):
    """What the client got."""

    status: int
    fields: tuple[Field, ...]
    chunks: tuple[Chunk, ...]


class World(Struct, frozen=True):
    """The settings that the request met, without their secrets: enough to meet them again."""

    server: Json = None
    retry: Json = None
    effort: Json = None
    stanzas: dict[str, Json] = {}  # of the providers that were asked
    learnt: dict[str, tuple[str, ...]] = {}  # quirks
    known: dict[str, tuple[str, ...]] = {}  # where nobody answers for the model: the names that there were
    routes: tuple[str, ...] = ()


class Capture(Struct, frozen=True, kw_only=True):
    version: int = VERSION
    id: str
    program: str = ""  # the version of this gateway
    began: float  # seconds since the epoch
    seconds: float = 0.0
    client: str = ""
    asked_in: str  # the client's protocol
    spoken: str = ""  # the upstream's
    route: str = ""
    wanted: str = ""
    stream: bool = False
    passthrough: bool = False
    result: str = ""  # ok, or a kind of failure
    code: str | None = None
    interrupted: str = ""  # by what, after `seconds`
    trips: tuple[str, ...] = ()  # what the grammar guard objected to
    cut: tuple[str, ...] = ()  # names of tool calls that arrived cut
    asked: Asked
    questions: tuple[Question, ...] = ()
    moments: tuple[Moment, ...] = ()
    losses: tuple[Loss, ...] = ()
    request_losses: int = 0  # so many of them were known before the upstream was asked
    sent: Sent | None = None
    told: tuple[Told, ...] = ()
    world: World = field(default_factory=World)
    shortened: tuple[str, ...] = ()  # which parts exceeded the bounds and are not whole
    masked: bool = False  # secrets were masked in bodies, so token counts that were estimated from them differ now

    @property
    def way(self) -> str:
        """The pair of protocols."""
        if not self.spoken:
            return self.asked_in
        return f"{self.asked_in} = {self.spoken}" if self.passthrough else f"{self.asked_in} > {self.spoken}"


class Summary(Struct, frozen=True, kw_only=True):
    """What a list of captures shows of each."""

    id: str
    began: float
    seconds: float
    client: str
    way: str
    route: str
    result: str
    questions: int
    status: int | None


_packed = msgspec.msgpack.Decoder(Capture)
_summary = msgspec.json.Decoder(Summary)


def summarised(capture: Capture) -> Summary:
    return Summary(
        id=capture.id,
        began=capture.began,
        seconds=capture.seconds,
        client=capture.client,
        way=capture.way,
        route=capture.route or capture.wanted,
        result=_verdict(capture),
        questions=len(capture.questions),
        status=None if capture.sent is None else capture.sent.status,
    )


def _verdict(capture: Capture) -> str:
    """In one word; a reply that was cut or put right by force is not simply ok."""
    if capture.result != "ok":
        return capture.result
    return "guard" if capture.trips else "cut" if capture.cut else "ok"


def pack(capture: Capture) -> bytes:
    head = b"%b%d %b\n" % (MAGIC, VERSION, msgspec.json.encode(summarised(capture)))
    return head + zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(capture))


def to_json(capture: Capture) -> bytes:
    """The whole, for people, tests and version control: bytes that are text are written as text."""
    tree = _readable(msgspec.to_builtins(capture, builtin_types=(bytes,)))
    return ("\n".join(_laid_out(tree, "")) + "\n").encode()


def read(data: bytes) -> Capture:
    """Either form; raises Unreadable."""
    try:
        if data.startswith(MAGIC):
            head, _, rest = data.partition(b"\n")
            _check(int(head.split(b" ", 3)[2]))
            return _packed.decode(zstandard.ZstdDecompressor().decompress(rest, max_output_size=MOST_BYTES))
        if data.lstrip().startswith(b"{"):
            capture = msgspec.convert(_unreadable(msgspec.json.decode(data)), Capture)
            _check(capture.version)
            return capture
    except (msgspec.MsgspecError, ValueError, RecursionError, zstandard.ZstdError) as problem:
        raise Unreadable(f"it cannot be read: {problem}") from None
    raise Unreadable("it is no capture")


def read_summary(line: bytes) -> Summary:
    """From the first line of a packed capture; raises Unreadable."""
    try:
        return _summary.decode(line.removeprefix(MAGIC).partition(b" ")[2])
    except msgspec.MsgspecError as problem:
        raise Unreadable(f"it cannot be read: {problem}") from None


def event_json(event: Event) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON of ours does not write
        assert isinstance(event, Delta)
        mended = event.text.encode(errors="replace").decode()
        return msgspec.json.encode(Delta(event.block, mended)).decode()


def event_of(text: str) -> Event:
    return cast("Event", msgspec.json.decode(text, type=Event))


def _check(version: int) -> None:
    if version != VERSION:
        raise Unreadable(f"it has version {version}, this dragoman reads {VERSION}")


def _laid_out(value: object, indent: str) -> list[str]:
    """One line for what is short or plain; else a line for the brackets, and what they hold further in."""
    line = msgspec.json.encode(value).decode()
    if not isinstance(value, dict | list) or len(indent) + len(line) <= LINE or not value:
        return [indent + line]
    inner = indent + "  "
    lines = [indent + ("{" if isinstance(value, dict) else "[")]
    if isinstance(value, dict):
        for name, held in value.items():
            first, *rest = _laid_out(held, inner)
            lines += [f"{inner}{msgspec.json.encode(name).decode()}: {first.lstrip()}", *rest]
            lines[-1] += ","
    else:
        for held in value:
            lines += _laid_out(held, inner)
            lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    return [*lines, indent + ("}" if isinstance(value, dict) else "]")]


def _readable(value: object) -> object:
    match value:
        case bytes():
            try:
                return {"$text": value.decode()}
            except UnicodeDecodeError:
                return {"$base64": base64.b64encode(value).decode()}
        case dict():
            return {name: _readable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_readable(inner) for inner in value]
        case _:
            return value


def _unreadable(value: object) -> object:
    """The way back from `_readable`: an object with only the one key stands for bytes."""
    match value:
        case {"$text": str() as text, **more} if not more:
            return text.encode()
        case {"$base64": str() as text, **more} if not more:
            return base64.b64decode(text)
        case dict():
            return {name: _unreadable(inner) for name, inner in value.items()}
        case list():
            return [_unreadable(inner) for inner in value]
        case _:
            return value
