"""The bounds that a client is held to by the server transport."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    max_header_bytes: int = 32 * 1024
    max_header_fields: int = 100
    max_body_bytes: int = 32 * 1024 * 1024
    max_connections: int = 8192
    header_timeout_s: float = 10.0
    body_gap_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    write_idle_timeout_s: float = 120.0
    linger_s: float = 5.0  # how long a refused upload is read and thrown away, so that its sender sees the reply
