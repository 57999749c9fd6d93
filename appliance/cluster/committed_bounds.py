"""What is known of a partition for read_committed consumers: where its last stable offset lies, and which transactions before it were aborted.

Owned by the placement that it is kept with; `committed_reads` asks for it and says how long it is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Bound(NamedTuple):
    """Batches at and behind this are not for a read_committed consumer."""

    offset: int
    segment_base_offset: int
    position: int
    segment_list_generation: int


class KnownAborted(NamedTuple):
    """All aborted transactions with records in [first_offset, end_offset), as long as these two are what the table says."""

    segment_list_generation: int
    aborted_end_offset: int
    first_offset: int
    end_offset: int
    transactions: Sequence[tuple[int, int, int]]
    """(producer id, first offset, offset of the marker)"""
