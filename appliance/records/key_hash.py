"""Kafka's murmur2: a key has the same partition whether syslog or a Java producer sent it.

The hash is that of org.apache.kafka.common.utils.Utils.murmur2. Weak spot: pure Python, 1-3 µs a
key, so callers cache.
"""

from __future__ import annotations

from struct import Struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_UINT32 = 0xFFFFFFFF
_WORD = Struct("<I")


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    mixed = _SEED ^ len(data)
    tail_size = len(data) & 3
    for (word,) in _WORD.iter_unpack(data[: len(data) - tail_size]):
        word = word * _MULTIPLIER & _UINT32
        word = (word ^ word >> 24) * _MULTIPLIER & _UINT32
        mixed = mixed * _MULTIPLIER & _UINT32 ^ word
    if tail_size:
        mixed = (mixed ^ int.from_bytes(data[-tail_size:], "little")) * _MULTIPLIER & _UINT32
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _UINT32
    return mixed ^ mixed >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's default partitioner: the hash without its sign, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
