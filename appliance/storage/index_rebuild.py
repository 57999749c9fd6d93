"""Rebuild both indexes of a closed segment beside the old ones, without touching the log.

A repair thread of the log-writer calls `rebuild_beside`; the duty cycle calls `put_in_place`, because
it knows whether the segment is still there. Look-ups open an index by name each time, so a rename is
enough. A crash leaves `.tmp` files, which the next start removes. Weak spot: a damaged log gives no
good index, so its index stays.
"""

from __future__ import annotations

from appliance.storage import file_io
from appliance.storage.recovery import SegmentRecovery
from appliance.storage.segment import OpenSegment
from appliance.storage.segment_files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_path

TEMPORARY = ".tmp"


def rebuild_beside(directory: str, base_offset: int, index_interval_bytes: int, now_ms: int) -> str | None:
    """Write `N.index.tmp` and `N.timeindex.tmp`, synced. None when they are ready, else why there is no rebuilding. Raises OSError."""
    segment = OpenSegment.beside(directory, base_offset, TEMPORARY)
    try:
        recovered = SegmentRecovery(segment, index_interval_bytes, now_ms, cut=False).rebuild()
        if recovered.problem is not None:
            return recovered.problem
        entry = recovered.tail.final_time_entry()
        if entry:
            file_io.write_all(segment.time_index_fd, (entry,), file_io.size_of(segment.time_index_fd), len(entry))
        file_io.sync_data(segment.index_fd)
        file_io.sync_data(segment.time_index_fd)
    finally:
        segment.close()
    return None


def put_in_place(directory: str, base_offset: int) -> None:
    """Rename the new indexes over the old ones. Raises OSError."""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path = segment_path(directory, base_offset, suffix)
        file_io.rename(path + TEMPORARY, path)


def discard(directory: str, base_offset: int) -> None:
    """Remove what `rebuild_beside` wrote. Raises OSError."""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        file_io.unlink_if_there(segment_path(directory, base_offset, suffix) + TEMPORARY)
