"""Where the records of some batches begin: the one thing that cannot simply be computed side by side, as each record says only how long it is itself.

Log lines make it easy: a record begins with its length, mostly in two bytes, and a zero byte, and text has no other zeros. So all places that look like a
beginning are taken at once, and believed only if every record ends where the next one begins, from each batch's first byte to its last: then they are what
a walk would find. Else Python walks from record to record. Pure. Weak spot: records with zeros in them, and short ones, are walked, 0.15 µs each.
"""

from __future__ import annotations

import numpy as np

from appliance.pipeline.opened_batches import OpenedBatches
from appliance.pipeline.varint_columns import Bytes, Longs
from appliance.records.corrupt_batch import CorruptBatch

_LENGTH_BYTES = 2
_ZEROS_A_RECORD_MAX = 8
_WALKS = 15


class StartFinder:
    """Finds them in one group after the other of a partition, whose records are mostly alike: where a look did not help, the next groups are walked at once.
    Owned by one reader."""

    def __init__(self) -> None:
        self._walks_left = 0

    def find(self, opened: OpenedBatches, data: Bytes) -> Longs:
        """Positions in `data`, which begins with the first batch's records. Raises CorruptBatch, or IndexError, for records that do not fill their batches."""
        if self._walks_left:
            self._walks_left -= 1
        elif (found := look_for_starts(opened, data)) is not None:
            return found
        else:
            self._walks_left = _WALKS
        return np.array(walk(opened), np.int64)


def look_for_starts(opened: OpenedBatches, data: Bytes) -> Longs | None:
    """All of them at once; None where that does not prove right."""
    counts = [header.records_count for header in opened.headers]
    total = sum(counts)
    zeros = np.flatnonzero(data == 0)
    if not total <= zeros.size <= _ZEROS_A_RECORD_MAX * total or zeros[0] < _LENGTH_BYTES:
        return None
    low, high = data[zeros - 2], data[zeros - 1]
    likely = np.flatnonzero((low >= 0x80) & (high < 0x80))
    first = opened.positions[0]
    batch_starts, batch_ends = np.array(opened.positions, np.int64) - first, np.array(opened.ends, np.int64) - first
    if len(counts) > 1:  # between batches there are headers, with zeros of their own
        batch = np.searchsorted(batch_starts, zeros[likely] - _LENGTH_BYTES, "right") - 1
        likely = likely[(batch >= 0) & (zeros[likely] < batch_ends[batch])]
    if likely.size != total:
        return None
    contents = zeros[likely]
    ends = contents + ((low[likely] & 0x7F).astype(np.int64) | high[likely].astype(np.int64) << 7) // 2
    starts: Longs = contents - _LENGTH_BYTES
    last = np.cumsum(counts) - 1
    following = np.append(starts[1:], batch_ends[-1])
    following[last] = batch_ends
    begins = np.append(0, last[:-1] + 1)
    return starts if (ends == following).all() and (starts[begins] == batch_starts).all() else None


def walk(opened: OpenedBatches) -> list[int]:
    """Where each record begins, counted from the first batch's records. Each batch must hold what it counts, and nothing behind."""
    first = opened.positions[0]
    memory = bytes(opened.memory[first : opened.ends[-1]])  # a copy is read faster than a view
    starts: list[int] = []
    add = starts.append
    for position, batch_end, header in zip((each - first for each in opened.positions), (each - first for each in opened.ends), opened.headers):
        for _ in range(header.records_count):
            add(position)
            length = memory[position]
            if length < 0x80:
                position += 1 + (length >> 1)
            elif (byte := memory[position + 1]) < 0x80:
                position += 2 + ((length & 0x7F | byte << 7) >> 1)
            else:
                length = length & 0x7F | (byte & 0x7F) << 7
                position += 2
                shift = 14
                while (byte := memory[position]) >= 0x80:
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    position += 1
                position += 1 + ((length | byte << shift) >> 1)
        if position != batch_end:
            raise CorruptBatch("the records of a batch do not end where it does")
    return starts
