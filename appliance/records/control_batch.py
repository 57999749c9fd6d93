"""Control batches: the end of a transaction in a partition, as its coordinator writes it.

Pure functions over bytes. A control batch holds one record. Its key is int16 version and int16 type
(0 abort, 1 commit; other types are KRaft's and are skipped). The value of an end marker is int16
version and int32 coordinator epoch. Higher versions are read as version 0; only version 0 is
written. Source: Kafka's `ControlRecordType`, `EndTransactionMarker`, KIP-98.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from appliance.records.batch import ATTRIBUTES_AT, BATCH_HEADER, CONTROL_FLAG, LOG_OVERHEAD, MAGIC, RECORDS_AT, TRANSACTIONAL_FLAG
from appliance.records.compression import Buffer, CorruptBatch
from appliance.records.crc32c import crc32c
from appliance.records.record import encode_varint, iterate_records

ABORT, COMMIT = 0, 1
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_RECORD_BYTES_MAX = 64 * 1024
_NO_SEQUENCE = -1


class EndTransactionMarker(NamedTuple):
    """A transaction's end."""

    is_commit: bool
    coordinator_epoch: int


def read_end_transaction_marker(batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch; None for one that compaction emptied, for other kinds, and for
    one that cannot be read.
    """
    try:
        record = next(iterate_records(batch, _RECORD_BYTES_MAX), None)
    except CorruptBatch:
        return None
    if record is None or record.key is None or record.value is None or len(record.key) < _KEY.size or len(record.value) < _VALUE.size:
        return None
    version, kind = _KEY.unpack_from(record.key)
    _, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0 or kind not in (ABORT, COMMIT):
        return None
    return EndTransactionMarker(kind == COMMIT, coordinator_epoch)


def build_end_transaction_batch(producer_id: int, producer_epoch: int, marker: EndTransactionMarker, timestamp_ms: int) -> bytearray:
    """The batch that ends a transaction; offset and leader epoch are stamped by the log."""
    key = _KEY.pack(0, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    content = b"\0" + encode_varint(0) + encode_varint(0) + encode_varint(len(key)) + key + encode_varint(len(value)) + value + encode_varint(0)
    record = encode_varint(len(content)) + content
    front = [0, RECORDS_AT - LOG_OVERHEAD + len(record), -1, MAGIC, 0, TRANSACTIONAL_FLAG | CONTROL_FLAG, 0]
    front += [timestamp_ms, timestamp_ms, producer_id, producer_epoch, _NO_SEQUENCE, 1]
    front[4] = crc32c(BATCH_HEADER.pack(*front)[ATTRIBUTES_AT:] + record)
    return bytearray(BATCH_HEADER.pack(*front) + record)
