"""Keys of records: their partition (Kafka's murmur2), and whether every record of a batch has one.

A key has the same partition whether syslog or a Java producer sent it: the hash is that of
org.apache.kafka.common.utils.Utils.murmur2. Pure Python, 1-3 µs a key, so callers cache. A
compacted topic requires keys; the acceptor checks that for such topics only, because the batch has
to be opened, up to `opened_batch_limit`. Weak spot: about 2 µs a record, and the opened records are
not kept.
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.records.batch import read_batch_header
from appliance.records.compression import Buffer, CorruptBatch, opened_batch_limit
from appliance.records.retained_batch import open_records, slice_records

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


NAMED_MAX: Final = 10_000
"""Keyless records of one batch that a response names: as many as librdkafka puts into a batch.
A client may send millions."""


class KeylessProblem(NamedTuple):
    """Why a compacted topic refuses a batch, and which of its records are to blame (numbers in the
    batch, at most NAMED_MAX).
    """

    code: ErrorCode
    reason: str
    records: tuple[int, ...] = ()


def keyless_problem(batch: Buffer) -> KeylessProblem | None:
    """Why a batch (already checked by `batch_problem`) cannot go into a compacted topic, or None."""
    header = read_batch_header(batch)
    try:
        records = slice_records(open_records(header, batch, opened_batch_limit(len(batch))), header.records_count)
    except CorruptBatch as corrupt:
        return KeylessProblem(ErrorCode.INVALID_RECORD, f"the batch cannot be opened, and a compacted topic must look at its keys: {corrupt}")
    keyless = tuple(islice((number for number, record in enumerate(records) if record.key is None), NAMED_MAX))
    if not keyless:
        return None
    return KeylessProblem(ErrorCode.INVALID_RECORD, f"record {keyless[0]} of the batch has no key; a compacted topic cannot take it", keyless)
