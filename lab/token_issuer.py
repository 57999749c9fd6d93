"""An issuer of JWTs for tests of OAUTHBEARER: RSA keys and signatures of the openssl command, so that nothing here is what verifies them."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path

ISSUER = "https://issuer.example.com"
AUDIENCE = "millrace"


def in_base64(data: bytes) -> str:
    """Base64 for URLs without padding (RFC 7515)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenIssuer:
    """One RSA key, `key.pem` in `directory`."""

    def __init__(self, directory: Path, key_id: str = "first", bits: int = 2048) -> None:
        self.key_id = key_id
        self._key = directory / f"{key_id}.pem"
        self._openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", f"rsa_keygen_bits:{bits}", "-out", str(self._key))

    def _openssl(self, *arguments: str, data: bytes = b"") -> bytes:
        return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout

    def public_key(self, **more: str) -> dict[str, str]:
        """Its JWK."""
        modulus = bytes.fromhex(self._openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().removeprefix("Modulus="))
        return {"kty": "RSA", "kid": self.key_id, "use": "sig", "n": in_base64(modulus), "e": in_base64(b"\x01\x00\x01"), **more}

    def token(self, user: str = "alice", seconds: float = 600, header: dict[str, object] | None = None, **claims: object) -> str:
        """A token that ends in `seconds`. A claim or a member of the header that is None is left out."""
        now = time.time()
        wanted = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": int(now), "exp": int(now + seconds), **claims}
        members: dict[str, object] = {"typ": "JWT", "alg": "RS256", "kid": self.key_id, **(header or {})}
        parts = [json.dumps({name: value for name, value in part.items() if value is not None}).encode() for part in (members, wanted)]
        signed = ".".join(map(in_base64, parts))
        return f"{signed}.{in_base64(self._openssl('dgst', '-sha256', '-sign', str(self._key), data=signed.encode()))}"


def key_set(*keys: dict[str, str]) -> bytes:
    """A JWK set."""
    return json.dumps({"keys": keys}).encode()
