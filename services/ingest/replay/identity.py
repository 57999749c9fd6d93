"""Digests that identify frames, chunks and requests, so that repeats are recognised.

BLAKE2b of Python itself, without OpenSSL (2 MB in every process). Weak: 16 bytes are safe against
chance and against senders that want to be taken for each other. A sender that knows the identities
of another and shares its address can make the other's repeats look stored.
"""

from __future__ import annotations

from _blake2 import blake2b as _blake2b
from collections.abc import Callable
from typing import Any, Final

IDENTITY_BYTES: Final = 16
_blake: Callable[..., Any] = _blake2b


def digest_of(content: bytes | memoryview) -> bytes:
    """Return the digest of one frame's payload, without what a sender numbers anew."""
    digest: bytes = _blake(content, digest_size=IDENTITY_BYTES).digest()
    return digest


def identity_of(*parts: bytes) -> bytes:
    """Return the digest of several parts, each with its length: ("a", "bc") is not ("ab", "c")."""
    digest = _blake(digest_size=IDENTITY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    identity: bytes = digest.digest()
    return identity
