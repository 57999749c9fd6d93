"""The header checksum of an lz4 frame, and the wrong one that message sets of magic 0 have.

Pure. Kafka's first lz4 writer computed the checksum over the frame's magic and descriptor, where the
format says the descriptor alone. Clients of magic 0 write and expect that; lz4 libraries refuse it.
So it is corrected before such a frame is opened, and made wrong in one that was built. A frame whose
descriptor is broken otherwise is left as it is: opening it fails. Source: lz4's frame format 1.6,
KIP-57.
"""

from __future__ import annotations

_MAGIC_BYTES = 4
_DESCRIPTOR_BYTES_MIN = 2
_CONTENT_SIZE_BIT, _CONTENT_SIZE_BYTES = 0x08, 8
_DICTIONARY_BIT, _DICTIONARY_BYTES = 0x01, 4
_SHORT_INPUT_END = 16

_WORD = (1 << 32) - 1
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def xxhash32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes: a frame's header has at most 14 to hash, or 18 where the old mistake adds the magic."""
    if len(data) >= _SHORT_INPUT_END:
        raise ValueError(f"{len(data)} bytes are no short input")
    value = _PRIME_5 + len(data)
    position = 0
    while position + 4 <= len(data):
        value = value + int.from_bytes(data[position : position + 4], "little") * _PRIME_3 & _WORD
        value = _rotated(value, 17) * _PRIME_4 & _WORD
        position += 4
    for byte in data[position:]:
        value = value + byte * _PRIME_5 & _WORD
        value = _rotated(value, 11) * _PRIME_1 & _WORD
    value = (value ^ value >> 15) * _PRIME_2 & _WORD
    value = (value ^ value >> 13) * _PRIME_3 & _WORD
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _WORD


def _checksum_at(frame: bytes) -> int:
    """Where the header checksum stands, or 0 if the frame ends before it."""
    if len(frame) <= _MAGIC_BYTES + _DESCRIPTOR_BYTES_MIN:
        return 0
    flags = frame[_MAGIC_BYTES]
    position = _MAGIC_BYTES + _DESCRIPTOR_BYTES_MIN
    position += _CONTENT_SIZE_BYTES if flags & _CONTENT_SIZE_BIT else 0
    position += _DICTIONARY_BYTES if flags & _DICTIONARY_BIT else 0
    return position if position < len(frame) else 0


def _with_checksum_over(frame: bytes, start: int) -> bytes:
    position = _checksum_at(frame)
    if not position or position - start >= _SHORT_INPUT_END:
        return frame
    checksum = xxhash32_short(frame[start:position]) >> 8 & 0xFF
    return frame[:position] + bytes((checksum,)) + frame[position + 1 :]


def with_right_header_checksum(frame: bytes) -> bytes:
    """The frame as lz4's format wants it, whatever checksum it had."""
    return _with_checksum_over(frame, _MAGIC_BYTES)


def with_old_header_checksum(frame: bytes) -> bytes:
    """The frame as readers of magic 0 expect it. It has no content size: those readers would not take one."""
    return _with_checksum_over(frame, 0)
