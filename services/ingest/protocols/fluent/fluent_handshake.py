"""The shared-key handshake of Fluent's forward protocol: HELO from us, PING from the sender, PONG from us; each side proves that it knows the key.

Owned by one connection; imported by the first one whose listener has a `shared-key` (hashlib brings OpenSSL). Chance is an argument. Neither side sends the
key, but a SHA-512 over salt, name, nonce and key, as version 1 of the protocol says.
Weak: users and passwords of the protocol are not asked for; certificates of clients (TLS) do more.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any, NamedTuple

from services.ingest.protocols.document import utf8
from services.ingest.protocols.fluent.msgpack_stream import pack

NONCE_BYTES = 16
SERVER_NAME = b"millrace"


class Verdict(NamedTuple):
    """Whether the sender may go on, and what it is told."""

    is_welcome: bool
    answer: bytes


class FluentHandshake:
    """One handshake: send `greeting`, give the first message to `judge`."""

    def __init__(self, shared_key: str, chance: Callable[[int], bytes]) -> None:
        self._key = shared_key.encode()
        self._nonce = chance(NONCE_BYTES)
        self.greeting = pack(["HELO", {"nonce": self._nonce, "auth": b"", "keepalive": True}])

    def judge(self, message: Any) -> Verdict | None:
        """The verdict on a PING; None for what is none."""
        if type(message) is not list or len(message) != 6 or message[0] not in ("PING", b"PING"):
            return None
        _, name, salt, digest, _user, _password = map(_bytes, message)
        if not hmac.compare_digest(digest.lower(), self._digest(salt, name)):
            return Verdict(False, pack(["PONG", False, "shared_key mismatch", "", ""]))
        return Verdict(True, pack(["PONG", True, "", SERVER_NAME.decode(), self._digest(salt, SERVER_NAME).decode()]))

    def _digest(self, salt: bytes, name: bytes) -> bytes:
        return hashlib.sha512(salt + name + self._nonce + self._key).hexdigest().encode()


def _bytes(value: Any) -> bytes:
    return value if type(value) is bytes else utf8(value) if type(value) is str else b""
