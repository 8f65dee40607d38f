"""The console's files, as the browser gets them: read once, compressed once, never from a name the browser sends."""

import hashlib
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.net.headers import Header

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

VERSION_MARK = b"{{version}}"  # in the page: the name of the directory of its files
PAGE = "index.html"
CONTENT_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "json": b"application/json",
}
BROTLI_QUALITY = 9

CSP = b"; ".join(
    (
        b"default-src 'none'",
        b"script-src 'self'",
        b"style-src 'self'",
        b"img-src 'self' blob:",
        b"connect-src 'self'",
        b"font-src 'self'",
        b"form-action 'self'",
        b"base-uri 'none'",
        b"frame-ancestors 'none'",
        b"require-trusted-types-for 'script'",
        b"trusted-types 'none'",
    )
)
SECURITY_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", CSP),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"accept-encoding"),
)
IMMUTABLE: Header = (b"cache-control", b"public, max-age=31536000, immutable")
REVALIDATED: Header = (b"cache-control", b"no-cache")


class ConsoleFile(Struct):
    """One file; each encoding is made when it is first requested."""

    content_type: bytes
    plain: bytes
    etag: bytes
    encoded: dict[str, bytes] = {}

    def encode(self, accepted: bytes) -> tuple[bytes, list[Header]]:
        """Return the body in the best encoding that a browser accepts, and the header that names it."""
        for name, compress in (("br", _brotli), ("gzip", _gzip)):
            if name.encode() in accepted:
                if name not in self.encoded:
                    self.encoded[name] = compress(self.plain)
                return self.encoded[name], [(b"content-encoding", name.encode())]
        return self.plain, []


class ConsoleFiles(Struct, frozen=True):
    """All files by name, and the hash of all of them, which is part of every address but the page's."""

    version: str
    page: ConsoleFile
    files: dict[str, ConsoleFile]


@cache
def read_console_files() -> ConsoleFiles:
    """Read the files of the installed package."""
    from importlib.resources import files  # takes a megabyte, and many gateways never show their console

    found = dict(_walk(files("dragoman") / "console", ""))
    tree = hashlib.sha256()
    for name in sorted(found):
        tree.update(name.encode() + b"\0" + hashlib.sha256(found[name]).digest())
    version = tree.hexdigest()[:16]
    page = found.pop(PAGE).replace(VERSION_MARK, version.encode())
    return ConsoleFiles(version, _make_file(PAGE, page), {name: _make_file(name, data) for name, data in found.items()})


def _walk(directory: "Traversable", prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in directory.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in CONTENT_TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _make_file(name: str, content: bytes) -> ConsoleFile:
    etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
    return ConsoleFile(CONTENT_TYPES[name.rpartition(".")[2]], content, etag, {})


def _brotli(content: bytes) -> bytes:
    import brotli

    return bytes(brotli.compress(content, quality=BROTLI_QUALITY))


def _gzip(content: bytes) -> bytes:
    import gzip

    return gzip.compress(content, mtime=0)
