"""Whether an answer is a stream of events or one document: by its name, and by its first bytes where that is a lie."""

from dragoman.framing.sse import SseFramer
from dragoman.hub.ports import Upstream
from dragoman.net.headers import Headers

DOCUMENTS = (b"application/json", b"text/html", b"text/plain")
FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
BOM = b"\xef\xbb\xbf"


def is_named_stream(headers: Headers) -> bool:
    """A document is known by its name; anything else that a stream was asked of is taken for one."""
    kind = (headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    return kind not in DOCUMENTS


def begins_document(upstream: Upstream, begun: bytes) -> bool:
    """No server-sent event begins with a brace or an angle bracket."""
    return upstream.framer is SseFramer and begun.lstrip()[:1] in (b"{", b"<")


def begins_events(upstream: Upstream, begun: bytes) -> bool:
    """No document that a model server sends begins with a field of server-sent events."""
    return upstream.framer is SseFramer and begun.removeprefix(BOM).lstrip().startswith(FIELDS)


def is_stream(upstream: Upstream, headers: Headers, body: bytes) -> bool:
    """What a whole body is."""
    if is_named_stream(headers):
        return not begins_document(upstream, body)
    return begins_events(upstream, body)
