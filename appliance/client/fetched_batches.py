"""From the bytes of a fetch response to records: whole batches, checked, those before the fetch offset left out. Pure.

A response ends wherever the broker's limit fell, so its last batch may be cut off: it comes again with the next fetch.
Weak spot: a batch is opened whole, up to `MAX_BATCH_BYTES` of decompressed records.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.records.batch import MAGIC, RECORDS_AT, read_batch_header
from appliance.records.compression import CorruptBatch
from appliance.records.record import Record, iterate_records

MAX_BATCH_BYTES = 256 * 1024 * 1024


class FetchedRecords(NamedTuple):
    """Records from a fetch offset on, and the offset to ask for next."""

    records: list[Record]
    next_offset: int


def read_fetched(fetched: bytes, fetch_offset: int) -> FetchedRecords:
    """All records at or after `fetch_offset`. Raises ProtocolViolation for bytes that are no batches or fail their checksum."""
    records: list[Record] = []
    next_offset = fetch_offset
    position = 0
    while position + RECORDS_AT <= len(fetched):
        header = read_batch_header(fetched, position)
        if header.magic != MAGIC:
            raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} has format {header.magic}, this client reads format {MAGIC}")
        if header.size_bytes < RECORDS_AT:
            raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} claims {header.size_bytes} bytes")
        end = position + header.size_bytes
        if end > len(fetched):
            break
        if header.last_offset >= next_offset:
            if not header.is_control:
                records += _open(fetched[position:end], header.base_offset, next_offset)
            next_offset = header.last_offset + 1
        position = end
    return FetchedRecords(records, next_offset)


def _open(batch: bytes, base_offset: int, next_offset: int) -> list[Record]:
    try:
        return [record for record in iterate_records(batch, MAX_BATCH_BYTES) if record.offset >= next_offset]
    except CorruptBatch as error:
        raise ProtocolViolation("fetched_batch", f"the batch at offset {base_offset} is damaged: {error}") from error
