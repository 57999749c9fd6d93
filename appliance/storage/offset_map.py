"""The newest offset of every key in a range of a log, in a fixed amount of memory.

Owned by one cleaning run, one thread. Keys are kept as 16-byte BLAKE2b digests in one bytearray with
open addressing (24 bytes a slot, as in Kafka's map; Kafka uses MD5, with which a producer could make
two keys collide and so have another producer's record removed). Entries are never removed. A full map
refuses the next key: the run then cleans up to the offset that fitted, and the next run continues
there. Weak spot: pages of the bytearray are touched at random, so a map uses its whole size once it
holds a few ten thousand keys; `slots_for` makes it no larger than the range needs.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

DIGEST_BYTES = 16
_OFFSET = Struct("<Q")
_HASH = Struct("<Q")
SLOT_BYTES = DIGEST_BYTES + _OFFSET.size
LOAD_FACTOR = 0.9

assert SLOT_BYTES == 24

_unpack_offset = _OFFSET.unpack_from
_pack_offset = _OFFSET.pack_into
_unpack_hash = _HASH.unpack_from


def slots_for(buffer_bytes: int, keys_max: int) -> int:
    """Slots of a map of at most `buffer_bytes` for a range that cannot hold more than `keys_max` keys."""
    return max(2, min(buffer_bytes // SLOT_BYTES, int(keys_max / LOAD_FACTOR) + 2))


class OffsetMap:
    """Key → largest offset put. Stored plus one, so that an empty slot is zeros."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._memory = bytearray(slots * SLOT_BYTES)
        self.keys_max = max(1, int(slots * LOAD_FACTOR))
        self.count = 0
        self.latest_offset = -1
        """Everything up to this offset (from where the run began) is in the map."""

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset of `key`; offsets ascend. Return False, and store nothing, if the map is full."""
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        memory = self._memory
        slot = _unpack_hash(digest)[0] % self._slots
        while True:
            position = slot * SLOT_BYTES
            if memory[position : position + DIGEST_BYTES] == digest and _unpack_offset(memory, position + DIGEST_BYTES)[0]:
                break
            if not _unpack_offset(memory, position + DIGEST_BYTES)[0]:
                if self.count >= self.keys_max:
                    return False
                self.count += 1
                memory[position : position + DIGEST_BYTES] = digest
                break
            slot = slot + 1 if slot + 1 < self._slots else 0
        _pack_offset(memory, position + DIGEST_BYTES, offset + 1)
        return True

    def get(self, key: bytes) -> int:
        """The offset that was put last under this key; -1 if none was."""
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        memory = self._memory
        slot = _unpack_hash(digest)[0] % self._slots
        while True:
            position = slot * SLOT_BYTES
            stored = int(_unpack_offset(memory, position + DIGEST_BYTES)[0])
            if not stored:
                return -1
            if memory[position : position + DIGEST_BYTES] == digest:
                return stored - 1
            slot = slot + 1 if slot + 1 < self._slots else 0
