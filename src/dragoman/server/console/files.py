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
    """One file; it is compressed when that is first requested."""

    content_type: bytes
    plain: bytes
    etag: bytes
    packed: bytes | None = None

    def encode(self, accepted: bytes) -> tuple[bytes, list[Header]]:
        """Return the body as a browser accepts it, and the header that names its encoding."""
        if b"gzip" not in accepted:
            return self.plain, []
        if self.packed is None:
            import gzip

            self.packed = gzip.compress(self.plain, mtime=0)
        return self.packed, [(b"content-encoding", b"gzip")]


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
    return ConsoleFile(CONTENT_TYPES[name.rpartition(".")[2]], content, etag)
