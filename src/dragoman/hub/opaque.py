"""Reasoning that only its issuer can read, and the envelope in which it travels through other protocols' clients."""

import base64
import binascii
from enum import Enum

import msgspec
from msgspec import Struct

ENVELOPE_PREFIX = "dgm1."
UNKNOWN_ISSUER = "?"  # no provider can be called so: whose envelope it was cannot be read any more


class Form(Enum):
    SIGNATURE = "signature"  # vouches for a visible text (Messages, Kiro)
    REDACTED = "redacted"  # stands in place of a text (Messages, Kiro)
    ENCRYPTED = "encrypted"  # a whole reasoning item (Responses)
    DETAIL = "detail"  # one entry of reasoning_details, as JSON (Chat as OpenRouter speaks it)


class Opaque(Struct, frozen=True):
    issuer: str  # who alone can read it: a vendor, or a configured provider's name
    form: Form
    payload: str
    model: str = ""
    text: str = ""  # the text that it vouches for, where the client's visible slot may not return it exactly


def encode_envelope(opaque: Opaque, text: str = "") -> str:
    """The envelope as one opaque token; `text` is carried along when the client may not return it exactly."""
    value = msgspec.structs.replace(opaque, text=text) if text else opaque
    return ENVELOPE_PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode().rstrip("=")


def decode_envelope(token: str) -> Opaque | None:
    """What an envelope holds; None when it is not one of ours."""
    if not token.startswith(ENVELOPE_PREFIX):
        return None
    body = token[len(ENVELOPE_PREFIX) :]
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Opaque)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def read_opaque(token: str, form: Form, issuer: str) -> Opaque:
    """What a client's opaque slot holds: our envelope, or the native value of that protocol's own vendor."""
    return decode_envelope(token) or Opaque(
        issuer=UNKNOWN_ISSUER if token.startswith(ENVELOPE_PREFIX) else issuer, form=form, payload=token
    )


def can_send_to(opaque: Opaque, issuer: str, own: bool) -> bool:
    """Whether a value may go to this issuer; `own`: the client speaks the issuer's protocol.

    What such a client holds without an envelope goes as it would if the request passed through: nobody else can know
    whose it is, for only envelopes name a model.
    """
    bare = not opaque.model and opaque.issuer != UNKNOWN_ISSUER
    return opaque.issuer == issuer or (own and bare)
