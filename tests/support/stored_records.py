"""What a partition directory holds, record by record, read with nothing but the batch format: no index, no log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from appliance.records.batch import BatchHeader, read_batch_header
from appliance.records.record import iterate_records
from lab.foreign_clients import Read

_LIMIT = 10_000_000


def stored_batches_of(directory: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch, in order; each segment must end with a whole one."""
    for segment in sorted(directory.glob("*.log")):
        content = segment.read_bytes()
        position = 0
        while position < len(content):
            header = read_batch_header(content, position)
            yield header, content[position : position + header.size_bytes]
            position += header.size_bytes
        assert position == len(content), f"{segment} does not end with a whole batch"


def stored_records(directory: Path) -> list[Read]:
    """As a consumer would see them: without control records, those of aborted transactions among them."""
    return [
        Read(record.offset, record.value, record.key, record.headers, record.timestamp, int(header.uses_log_append_time))
        for header, raw in stored_batches_of(directory)
        if not header.is_control
        for record in iterate_records(raw, _LIMIT)
    ]
