"""A vendor that accepts only signed requests, and what signs them: an HMAC of method, URL, headers and body."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from dragoman.net.headers import Header
from dragoman.upstreams.provider import UnsignedRequest
from fakes.upstream import Answer, ReceivedRequest

DIGEST = "x-body-digest"
UNSIGNED_BODY = "unsigned"  # of a form that is sent while it arrives
NOT_SIGNED = frozenset((DIGEST, "authorization", "host", "content-length", "accept-encoding"))


def sign(key: bytes, method: str, url: str, headers: Iterable[tuple[str, str]], digest: str) -> str:
    signed = sorted(f"{name}: {value}" for name, value in headers if name not in NOT_SIGNED)
    return hmac.new(key, "\n".join((method, url, *signed, digest)).encode(), "sha256").hexdigest()


@dataclass
class Signer:
    """Signs requests; `renewed` is the key that a renewal gets."""

    key: bytes
    renewed: bytes = b""

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        digest = sha256(request.body).hexdigest() if request.upload is None else UNSIGNED_BODY
        headers = [(name.decode(), value.decode()) for name, value in request.headers]
        signature = sign(self.key, request.method, request.url, headers, digest)
        return (DIGEST.encode(), digest.encode()), (b"authorization", f"Signature {signature}".encode())

    async def renew(self) -> bool:
        self.key = self.renewed
        return True


@dataclass
class SignatureCheck:
    """Refuses a request unless its signature is that of the bytes that have come; to be used as `intercept`."""

    key: bytes

    def __call__(self, request: ReceivedRequest) -> Answer | None:
        digest = request.headers.get(DIGEST, "")
        url = f"http://{request.headers['host']}{request.path}"
        expected = sign(self.key, request.method, url, request.fields, digest)
        is_body_signed = digest in (UNSIGNED_BODY, sha256(request.body).hexdigest())
        if is_body_signed and request.headers.get("authorization") == f"Signature {expected}":
            return None
        body = b'{"error":{"message":"The signature does not fit the request.","type":"authentication_error"}}'
        return Answer(body, status=401, content_type="application/json")
