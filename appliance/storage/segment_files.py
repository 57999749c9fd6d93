"""Names of the files in a partition directory.

The number in front, 20 digits, is the base offset of the segment; for a snapshot it is the end
offset of the batches that it covers.
"""

from __future__ import annotations

from appliance.base.model import Offset

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SUMMARY_SUFFIX = ".summary"
"""Of a sealed segment, for searches (`services/search/summary.py`). Another process may make it at
any time."""
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SUMMARY_SUFFIX)
"""In the order of removal: an index without a log is swept up at the next start, a log without an
index is a rebuild."""

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
"""Behind a whole name: being written by a cleaning run; whole and on its way in (see
`segment_swap.py`)."""

DELETED_SUFFIX = ".deleted"
"""Behind the name of a file that belongs to no log any more and waits for its removal."""

START_SUFFIX = ".start"
"""Behind the offset where a log begins, while the checkpoint of log start offsets cannot say so."""

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
COMPACTED = "compacted"
"""An empty file: the log was compacted, or copied from such a log, so its offsets may have gaps by
design. After a boot the topic's config is not known yet."""


def segment_name(base_offset: Offset, suffix: str) -> str:
    """Return the name of a segment's file: 20 digits and the suffix."""
    return f"{base_offset:020d}{suffix}"


def segment_path(directory: str, base_offset: Offset, suffix: str) -> str:
    """Return the path of a segment's file."""
    return f"{directory}/{base_offset:020d}{suffix}"


def offset_of_name(name: str, suffix: str) -> Offset | None:
    """Return the offset in a file name with this suffix, None for any other name."""
    if not name.endswith(suffix):
        return None
    digits = name[: -len(suffix)]
    return Offset(int(digits)) if digits.isascii() and digits.isdigit() else None
