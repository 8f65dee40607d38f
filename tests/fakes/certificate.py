"""A self-signed P-256 certificate for localhost, page.example and 127.0.0.1, made without any tool."""

import base64
import datetime
import hashlib
import ipaddress
import secrets
import ssl
from pathlib import Path

Point = tuple[int, int]

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G: Point = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

EC_PUBLIC_KEY = "1.2.840.10045.2.1"
PRIME256V1 = "1.2.840.10045.3.1.7"
ECDSA_SHA256 = "1.2.840.10045.4.3.2"
COMMON_NAME = "2.5.4.3"
SUBJECT_KEY_ID = "2.5.29.14"
KEY_USAGE = "2.5.29.15"
ALT_NAME = "2.5.29.17"
BASIC_CONSTRAINTS = "2.5.29.19"


def server_context(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A TLS server's context and the path of the CA file that trusts it."""
    key = secrets.randbelow(N - 1) + 1
    chain = folder / "certificate.pem"
    private = folder / "key.pem"
    chain.write_text(_pem("CERTIFICATE", _certificate(key)))
    private.write_text(_pem("EC PRIVATE KEY", _private_key(key)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, private)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context, str(chain)


def _certificate(key: int) -> bytes:
    public = _public(key)
    algorithm = _sequence(_oid(ECDSA_SHA256))
    name = _sequence(_set(_sequence(_oid(COMMON_NAME), _der(0x0C, b"fake upstream"))))
    now = datetime.datetime.now(datetime.UTC)
    validity = _sequence(_time(now - datetime.timedelta(days=1)), _time(now + datetime.timedelta(days=2)))
    spki = _sequence(_sequence(_oid(EC_PUBLIC_KEY), _oid(PRIME256V1)), _bits(public))
    hosts = (_der(0x82, b"localhost"), _der(0x82, b"page.example"))
    names = _sequence(*hosts, _der(0x87, ipaddress.ip_address("127.0.0.1").packed))
    extensions = _sequence(
        _extension(BASIC_CONSTRAINTS, _sequence(_der(1, b"\xff")), critical=True),
        _extension(KEY_USAGE, _der(3, b"\x02\x84"), critical=True),
        _extension(SUBJECT_KEY_ID, _der(4, hashlib.sha256(public).digest()[:20])),
        _extension(ALT_NAME, names),
    )
    version = _der(0xA0, _integer(2))
    serial = _integer(secrets.randbits(63) + 1)
    body = _sequence(version, serial, algorithm, name, validity, name, spki, _der(0xA3, extensions))
    return _sequence(body, algorithm, _bits(_sign(key, body)))


def _private_key(key: int) -> bytes:
    curve, public = _der(0xA0, _oid(PRIME256V1)), _der(0xA1, _bits(_public(key)))
    return _sequence(_integer(1), _der(4, key.to_bytes(32, "big")), curve, public)


def _sign(key: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    nonce = secrets.randbelow(N - 1) + 1
    r = _times(nonce, G)[0] % N
    s = pow(nonce, -1, N) * (digest + r * key) % N
    return _sequence(_integer(r), _integer(s))


def _public(key: int) -> bytes:
    x, y = _times(key, G)
    return b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")


def _times(scalar: int, point: Point) -> Point:
    total: Point | None = None
    while scalar:
        if scalar & 1:
            total = point if total is None else _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    assert total is not None
    return total


def _add(a: Point, b: Point) -> Point:
    rise, run = (3 * a[0] * a[0] - 3, 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = rise * pow(run, -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*items: bytes) -> bytes:
    return _der(0x30, b"".join(items))


def _set(item: bytes) -> bytes:
    return _der(0x31, item)


def _integer(value: int) -> bytes:
    return _der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _der(3, b"\x00" + content)


def _time(moment: datetime.datetime) -> bytes:
    return _der(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())


def _oid(dotted: str) -> bytes:
    first, second, *rest = (int(part) for part in dotted.split("."))
    out = bytes((first * 40 + second,))
    for part in rest:
        groups = [part & 0x7F]
        while part := part >> 7:
            groups.append(0x80 | part & 0x7F)
        out += bytes(reversed(groups))
    return _der(6, out)


def _extension(oid: str, content: bytes, *, critical: bool = False) -> bytes:
    flag = _der(1, b"\xff") if critical else b""
    return _sequence(_oid(oid), flag, _der(4, content))


def _pem(label: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"
