"""Segments that are not in the page cache, on a real file system; and how much of a file is.

Weak spot: tmpfs keeps everything, so tests that need cold data are skipped where pytest's directory lies on one.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import pack_into

import pytest

from appliance.records.batch import BASE_OFFSET_AT
from appliance.records.builder import BatchBuilder
from appliance.storage.page_cache import PAGE_BYTES, FileMap


def resident_bytes(path: Path) -> int:
    """What of a file is in the page cache, by mincore."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size_bytes = os.fstat(descriptor).st_size
        return FileMap(descriptor).resident_pages(0, size_bytes) * PAGE_BYTES if size_bytes else 0
    finally:
        os.close(descriptor)


def make_cold(*paths: Path) -> None:
    """Write back what is dirty and have the kernel drop it; skips the test where it does not."""
    for path in paths:
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        if resident_bytes(path):
            pytest.skip(f"the file system of {path} keeps its pages (tmpfs?)")


def stamped_batch(base_offset: int, count: int, value_bytes: int) -> bytes:
    """A batch as a log-writer stored it."""
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_700_000_000_000, None, bytes([(base_offset + number) % 256]) * value_bytes)
    made = bytearray(builder.build())
    pack_into(">q", made, BASE_OFFSET_AT, base_offset)
    return bytes(made)


def write_segment(path: Path, batches: int, count: int, value_bytes: int) -> bytes:
    """A segment of equal batches; returns its bytes."""
    content = b"".join(stamped_batch(number * count, count, value_bytes) for number in range(batches))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content
