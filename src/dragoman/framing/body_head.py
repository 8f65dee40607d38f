"""Read the model and the mode of a request whose protocol writes them into the body."""

import msgspec
from msgspec import Struct

from dragoman.framing.jsonread import read_json
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.ports import CallHead

MAX_MODEL_BYTES = 1024  # names stay in logs, metrics, caches and usage rows


class _Head(Struct):
    model: object = None
    stream: object = None


_head = msgspec.json.Decoder(_Head)


def read_call_head(path: str, body: bytes) -> CallHead:
    """Return `model` and `stream` of a JSON body; the path says nothing of them. Raises RequestError."""
    try:
        head = read_json(_head, body)
    except RecursionError:
        raise RequestError(Failure(Kind.BAD_REQUEST, "The body is nested too deeply.")) from None
    except msgspec.ValidationError:
        raise RequestError(Failure(Kind.BAD_REQUEST, "The body must be a JSON object.")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise RequestError(Failure(Kind.BAD_REQUEST, f"The body is not valid JSON: {problem}.")) from None
    if head.model is None:
        raise BadRequest("/model", "model is missing: name the model to use.")
    if not isinstance(head.model, str) or not head.model:
        raise BadRequest("/model", f"model must be a non-empty string, got {_shown(head.model)}.")
    if len(head.model) > MAX_MODEL_BYTES // 4 and len(head.model.encode(errors="surrogatepass")) > MAX_MODEL_BYTES:
        got = f"{len(head.model)} characters that begin with {_shown(head.model[:60])}"
        raise BadRequest("/model", f"model must be at most {MAX_MODEL_BYTES} bytes long, got {got}.")
    if head.stream is not None and not isinstance(head.stream, bool):
        raise BadRequest("/stream", f"stream must be true or false, got {_shown(head.stream)}.")
    return CallHead(head.model, bool(head.stream))


def _shown(value: object) -> str:
    return msgspec.json.encode(value)[:80].decode(errors="replace")
