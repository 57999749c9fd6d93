"""Eight-byte words that two processes share, and the fence between a store and a load.

Every shared word is 8-byte aligned, native-endian, stored by `memoryview.cast("Q")[i] = value` (one MOV, seen in the
disassembly) and never by `struct.pack_into`, which clears its destination first. x86-64 keeps the order of stores and of
loads; it does not keep a store before a later load of another word, which is what `fence` is for (README.md, "memory order").
Weak spot: nothing of this is promised on other processors, so `runtime/preflight.py` lets no box start there.
"""

from __future__ import annotations

import threading

WORD_BYTES = 8
MAX_WORD = (1 << 64) - 1

_fence_lock = threading.Lock()
_acquire = _fence_lock.acquire
_release = _fence_lock.release


def fence() -> None:
    """A full memory fence: the locked instruction in an uncontended lock (61 ns; measured against lost wake-ups)."""
    _acquire()
    _release()


def signed(word: int) -> int:
    """A word read as a signed number: offsets of -1 are kept as 2^64 - 1."""
    return word - (1 << 64) if word >> 63 else word


def unsigned(number: int) -> int:
    """A signed number as a word."""
    return number & MAX_WORD
