"""Values that clients keep for us: packed bytes as text, with a checksum by which a damaged one is recognised.

The checksum is no signature: whoever wants to can write such a value. It keeps a value that was cut or changed on its
way from being read as something else.
"""

import base64
import binascii
from hashlib import blake2b

CHECKSUM_BYTES = 8


def add_checksum(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=CHECKSUM_BYTES).digest() + packed


def remove_checksum(checked: bytes) -> bytes | None:
    """Return the bytes without their checksum; None if they have another one."""
    packed = checked[CHECKSUM_BYTES:]
    return packed if add_checksum(packed) == checked else None


def encode_checked(packed: bytes) -> str:
    """Return the bytes and their checksum in the letters of an address."""
    return base64.urlsafe_b64encode(add_checksum(packed)).decode().rstrip("=")


def decode_checked(text: str) -> bytes | None:
    """Return the bytes that a text was made of; None if one of its characters is missing or another."""
    try:
        packed = remove_checksum(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        return None
    return packed if packed is not None and encode_checked(packed) == text else None
