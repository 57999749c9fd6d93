"""Windows of a segment that is not in the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from appliance.pipeline.local_segments import LocalSegment
from appliance.storage.page_cache import PAGE_BYTES
from tests.support.cold_segments import make_cold

WINDOW_BYTES = 4 * PAGE_BYTES


def address_of(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def test_cold_windows_share_memory_unless_a_view_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    content = b"".join(bytes([number]) * PAGE_BYTES for number in range(1, 17))
    path.write_bytes(content + b"the end")
    make_cold(path)
    segment = LocalSegment(os.open(path, os.O_RDONLY), str(path), False)
    addresses = []
    for start in (0, WINDOW_BYTES, 2 * WINDOW_BYTES):
        with segment.window(start, start + WINDOW_BYTES) as window:
            addresses.append(address_of(window.memory))
            assert bytes(window.memory) == content[start : start + WINDOW_BYTES]
            kept = window.memory[:10]
    assert len(set(addresses)) > 1, "a view of each window was kept until the next one"
    kept.release()
    addresses.clear()
    for start in (0, WINDOW_BYTES, 3 * WINDOW_BYTES):
        with segment.window(start, min(start + WINDOW_BYTES, segment.size_bytes)) as window:
            addresses.append(address_of(window.memory))
    assert len(set(addresses)) == 1
    with segment.window(0, WINDOW_BYTES) as window:
        kept = window.memory[:10]
    with segment.window(4 * WINDOW_BYTES, segment.size_bytes) as window:
        assert bytes(window.memory) == b"the end"
    assert bytes(kept) == content[:10]
    segment.close()
    assert bytes(kept) == content[:10]
