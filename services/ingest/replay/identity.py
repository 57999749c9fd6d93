"""Digests by which replays are recognised: of a frame's payload, of a chunk's id, of a request's key.

Pure. BLAKE2b of Python itself, without OpenSSL (2 MB in every process). Weak: 16 bytes are safe against chance and against senders who want to be taken
for each other, but who knows a sender's identity and may send as it can make its replays look stored.
"""

from __future__ import annotations

from _blake2 import blake2b as _blake2b
from collections.abc import Callable
from typing import Any, Final

IDENTITY_BYTES: Final = 16
_blake: Callable[..., Any] = _blake2b


def digest_of(content: bytes | memoryview) -> bytes:
    """Of one frame's payload. Leave out what a sender numbers anew."""
    digest: bytes = _blake(content, digest_size=IDENTITY_BYTES).digest()
    return digest


def identity_of(*parts: bytes) -> bytes:
    """Of several parts, each with its length: ("a", "bc") is not ("ab", "c")."""
    digest = _blake(digest_size=IDENTITY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    identity: bytes = digest.digest()
    return identity
