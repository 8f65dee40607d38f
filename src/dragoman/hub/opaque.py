"""Opaque reasoning, which only its issuer can read, and the envelope that carries it through other clients."""

import base64
import binascii
from enum import Enum

import msgspec
from msgspec import Struct

ENVELOPE_PREFIX = "dgm1."
UNKNOWN_ISSUER = "?"  # of an envelope that cannot be decoded; not a valid name of a provider


class Form(Enum):
    SIGNATURE = "signature"  # signs a visible text (Messages, Kiro)
    REDACTED = "redacted"  # replaces a text (Messages, Kiro)
    ENCRYPTED = "encrypted"  # a whole reasoning item (Responses)
    DETAIL = "detail"  # one entry of reasoning_details, as JSON (OpenRouter's variant of Chat)


class Opaque(Struct, frozen=True):
    issuer: str  # the only one that can read it: a vendor, or the name of a configured provider
    form: Form
    payload: str
    model: str = ""
    text: str = ""  # the text that it signs, where the client's visible field may not return it exactly
    of_call: bool = False  # it signs the call that follows, not a text


def encode_envelope(opaque: Opaque, text: str = "") -> str:
    """Return the envelope as one token. `text` is included when the client may not return it exactly."""
    value = msgspec.structs.replace(opaque, text=text) if text else opaque
    return ENVELOPE_PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode().rstrip("=")


def decode_envelope(token: str) -> Opaque | None:
    """Return the content of an envelope; None if the token is not one of ours."""
    if not token.startswith(ENVELOPE_PREFIX):
        return None
    body = token[len(ENVELOPE_PREFIX) :]
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Opaque)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def read_opaque(token: str, form: Form, issuer: str) -> Opaque:
    """Read the value of a client's opaque field: our envelope, or the native value of the protocol's vendor."""
    return decode_envelope(token) or Opaque(
        issuer=UNKNOWN_ISSUER if token.startswith(ENVELOPE_PREFIX) else issuer, form=form, payload=token
    )


def can_send_to(opaque: Opaque, issuer: str, own: bool) -> bool:
    """Return whether a value may be sent to this issuer. `own`: the client uses the issuer's protocol.

    A value without an envelope from such a client is sent, as it would be if the request passed through unchanged:
    its issuer cannot be determined, since only envelopes name a model.
    """
    bare = not opaque.model and opaque.issuer != UNKNOWN_ISSUER
    return opaque.issuer == issuer or (own and bare)
