"""Sign in a service account. This needs the package `cryptography`, which the extra `vertex` installs."""

from base64 import urlsafe_b64encode

import msgspec

from dragoman.accounts.credential import CredentialError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
LIFE_S = 3600
MISSING = "a service account needs the package cryptography; run: pip install 'dragoman[vertex]'"


def sign_assertion(email: str, private_key: str, key_id: str, issuer_url: str, now: int) -> str:
    """Return the signed assertion that the token endpoint takes. Raises CredentialError if the key is not usable."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    except ImportError as missing:
        raise CredentialError(MISSING) from missing
    header = {"alg": "RS256", "typ": "JWT", "kid": key_id}
    claims = {"iss": email, "scope": SCOPE, "aud": issuer_url, "iat": now, "exp": now + LIFE_S}
    signed = b".".join(_encode(msgspec.json.encode(part)) for part in (header, claims))
    try:
        key = serialization.load_pem_private_key(private_key.encode(), None)
    except ValueError as error:
        raise CredentialError("the private key of the service account cannot be read") from error
    if not isinstance(key, RSAPrivateKey):
        raise CredentialError("the private key of the service account is no RSA key")
    return b".".join((signed, _encode(key.sign(signed, PKCS1v15(), hashes.SHA256())))).decode()


def _encode(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
