"""Opaque reasoning, which only its issuer can read, and the envelope that carries it through other clients."""

import base64
import binascii
from collections.abc import Sequence
from enum import Enum

import msgspec
from msgspec import Struct

from dragoman.translate.hub.checksum import add_checksum, decode_checked, encode_checked, remove_checksum

ENVELOPE_PREFIX = "dgm1."
_CHECKED_PREFIX = ENVELOPE_PREFIX + "2."  # with a checksum; clients still hold envelopes without one
UNKNOWN_ISSUER = "?"  # of an envelope that cannot be decoded; not a valid name of a provider


class OpaqueForm(Enum):
    SIGNATURE = "signature"  # signs a visible text (Messages, Kiro)
    REDACTED = "redacted"  # replaces a text (Messages, Kiro)
    ENCRYPTED = "encrypted"  # a whole reasoning item (Responses)
    DETAIL = "detail"  # one entry of reasoning_details, as JSON (OpenRouter's variant of Chat)


class Opaque(Struct, frozen=True):
    issuer: str  # the only one that can read it: a vendor, or the name of a configured provider
    form: OpaqueForm
    payload: str
    model: str = ""
    text: str = ""  # the text that it signs, where the client's visible field may not return it exactly
    of_call: bool = False  # it signs the call that follows, not a text


def encode_envelope(opaque: Opaque, text: str = "") -> str:
    """Return the envelope as one token. `text` is included when the client may not return it exactly."""
    value = msgspec.structs.replace(opaque, text=text) if text else opaque
    return _CHECKED_PREFIX + encode_checked(msgspec.msgpack.encode(value))


def decode_envelope(token: str) -> Opaque | None:
    """Return the content of an envelope; None if the token is damaged, or not one of ours."""
    if not token.startswith(ENVELOPE_PREFIX):
        return None
    body = token[len(ENVELOPE_PREFIX) :]
    try:
        if token.startswith(_CHECKED_PREFIX):
            packed = decode_checked(token[len(_CHECKED_PREFIX) :])
            return None if packed is None else msgspec.msgpack.decode(packed, type=Opaque)
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Opaque)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


# The signature of reasoning that has none. A client that returns it shows that no vendor accepts this reasoning.
_NO_OPAQUE = Opaque("", OpaqueForm.SIGNATURE, "")
UNSIGNED = encode_envelope(_NO_OPAQUE)


def is_signature(value: str | None) -> bool:
    """Return whether a value signs reasoning: one that stands for none may have been written without a checksum."""
    if not value or value == UNSIGNED:
        return False
    return not value.startswith(ENVELOPE_PREFIX) or decode_envelope(value) != _NO_OPAQUE


def read_opaque(token: str, form: OpaqueForm, issuer: str) -> Opaque:
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


class Thought(Struct, frozen=True, array_like=True):
    """One block of reasoning, as a client keeps it for us."""

    text: str
    opaque: Opaque | None = None
    raw: bool = False  # the model's raw thoughts rather than a summary of them


_thoughts = msgspec.msgpack.Decoder(tuple[Thought, ...])
_TAG = ENVELOPE_PREFIX.encode()
_CHECKED_TAG = _CHECKED_PREFIX.encode()


def seal_thoughts(thoughts: Sequence[Thought]) -> str:
    """Return an envelope of several blocks in base64, for clients that accept nothing else in their opaque field."""
    return base64.urlsafe_b64encode(_CHECKED_TAG + add_checksum(msgspec.msgpack.encode(thoughts))).decode()


def unseal_thoughts(value: str) -> tuple[Thought, ...] | None:
    """Return the content of such an envelope, none of a damaged one; None if the value is not one of ours.

    Clients may write it in another alphabet of base64, with or without padding.
    """
    packed = decode_base64(value)
    if packed is None or not packed.startswith(_TAG):
        return None
    inside: bytes | None = packed.removeprefix(_TAG)
    if packed.startswith(_CHECKED_TAG):
        inside = remove_checksum(packed.removeprefix(_CHECKED_TAG))
    try:
        return () if inside is None else _thoughts.decode(inside)
    except (msgspec.MsgspecError, ValueError):
        return ()


def decode_base64(value: str) -> bytes | None:
    """Return the bytes that either alphabet of base64 stands for; None if it is neither."""
    text = value.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
