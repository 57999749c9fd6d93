"""The client's side of SASL's DIGEST-MD5 (RFC 2831), with which a session proves to the boxes' own
ZooKeeper that it knows the secret.

Pure: bytes in, bytes out; the session sends them. ZooKeeper's own digest scheme accepts any
password for an identity of its own, so a server that must reject unknown clients has to require
SASL. Weak: MD5, and no encryption. The secret is not sent, but a recorded exchange allows an
attacker to guess a short one.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from appliance.base.errors import MillraceError

DIGEST_URI = "zookeeper/zk-sasl-md5"
"""Service and host; ZooKeeper's servers and clients have them as constants."""
_QOP = "auth"
_COUNT = "00000001"
_DIRECTIVE = re.compile(r'([a-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))')


class SaslFailed(MillraceError):
    """The server broke the protocol, or it does not know the secret."""


class DigestMd5:
    """One exchange: `respond` to the server's challenge, then `verify` its final answer."""

    def __init__(self, user: str, password: str, client_nonce: str) -> None:
        self._user = user
        self._password = password
        self._client_nonce = client_nonce
        self._expected = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the first challenge."""
        directives = read_directives(challenge)
        realm, nonce = directives.get("realm", ""), directives.get("nonce", "")
        if not nonce or _QOP not in directives.get("qop", _QOP).split(",") or directives.get("algorithm") != "md5-sess":
            raise SaslFailed(f"the server's challenge offers no supported method: {sorted(directives)}")
        secret = _md5(f"{self._user}:{realm}:{self._password}".encode()) + f":{nonce}:{self._client_nonce}".encode()
        middle = f":{nonce}:{_COUNT}:{self._client_nonce}:{_QOP}:"
        key = _md5(secret).hex()

        def proof(method: str) -> str:
            return _md5(f"{key}{middle}{_md5(f'{method}:{DIGEST_URI}'.encode()).hex()}".encode()).hex()

        self._expected = proof("")
        return (
            f'charset=utf-8,username="{_quoted(self._user)}",realm="{_quoted(realm)}",nonce="{_quoted(nonce)}",nc={_COUNT},'
            f'cnonce="{_quoted(self._client_nonce)}",digest-uri="{DIGEST_URI}",maxbuf=65536,response={proof("AUTHENTICATE")},qop={_QOP}'
        ).encode()

    def verify(self, answer: bytes) -> None:
        """Raise `SaslFailed` unless the server's answer proves that it knows the secret."""
        said = read_directives(answer).get("rspauth", "")
        if not self._expected or not hmac.compare_digest(said, self._expected):
            raise SaslFailed("the server does not have the secret")


def read_directives(text: bytes) -> dict[str, str]:
    """Return the pairs `name=value` and `name="value"`, separated by commas."""
    found = _DIRECTIVE.findall(text.decode(errors="replace"))
    return {name: re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in found}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
