"""Rows of the audit log: who changed something or read a request's content. They hold no secret and no content."""

import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import astuple


class AuditRow(Struct, frozen=True):
    """One action. The store gives the number, which grows, and `previous`, the hash of the row before."""

    time_ms: int  # since the epoch
    actor: str  # the id of the key
    action: str
    subject: str
    address: str  # of the peer
    detail: str = ""  # JSON: what changed
    number: int = 0
    previous: bytes = b""


AUDIT_DAYS = 400  # rows are kept that long
AUDIT_COLUMNS = "time_ms, actor, action, subject, address, detail, number, previous"


def hash_row(row: AuditRow | None) -> bytes:
    """Return what the next row holds of this one, so that a row cannot be changed or removed unnoticed."""
    return b"" if row is None else hashlib.sha256(msgspec.msgpack.encode(astuple(row))).digest()
