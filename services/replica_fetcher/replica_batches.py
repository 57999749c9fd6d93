"""What a leader sent for one partition, judged before a log-writer sees it: whole batches, intact, whose offsets go on from ours.

Pure; every byte is read once, for the checksum. Batches wholly below the offset that was asked for are passed over (a leader answers whole file slices), one
that is cut off at the end is left for the next fetch. Weak spot: records inside of a batch are not looked at; a checksum stands for them.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from appliance.records.batch import LAST_OFFSET_DELTA_AT, LOG_OVERHEAD, RECORDS_AT, stored_batch_problem

_OFFSET_LENGTH_EPOCH = Struct(">qii")
_LAST_OFFSET_DELTA = Struct(">i")
OFFSET_MAX = 2**63 - 1


class GoodBatches(NamedTuple):
    """`memory[position:end]` can be appended, empty if nothing can; `problem` says why not all, `problem_offset` where."""

    position: int
    end: int
    batch_count: int
    next_offset: int
    problem: str
    problem_offset: int


def find_good_batches(memory: memoryview, position: int, limit: int, fetch_offset: int, leader_epoch: int) -> GoodBatches:
    """Of the records in `memory[position:limit]`, answered for `fetch_offset` under `leader_epoch`."""
    unpack, unpack_delta = _OFFSET_LENGTH_EPOCH.unpack_from, _LAST_OFFSET_DELTA.unpack_from
    start, next_offset, count = position, fetch_offset, 0
    problem = ""
    while position + RECORDS_AT <= limit:
        base_offset, batch_length, batch_epoch = unpack(memory, position)
        size_bytes = batch_length + LOG_OVERHEAD
        if size_bytes > limit - position:
            break  # cut off: the rest comes with the next fetch
        problem = stored_batch_problem(memory, position, limit) or ""
        if problem:
            break
        last_offset = base_offset + unpack_delta(memory, position + LAST_OFFSET_DELTA_AT)[0]
        if last_offset < fetch_offset and not count:
            position = start = position + size_bytes
            continue
        if base_offset < next_offset or last_offset >= OFFSET_MAX:
            problem = f"a batch with offsets {base_offset} to {last_offset} where {next_offset} is due"
            break
        if not 0 <= batch_epoch <= leader_epoch:
            problem = f"a batch of leader epoch {batch_epoch} from a leader of epoch {leader_epoch}"
            break
        position += size_bytes
        next_offset = last_offset + 1
        count += 1
    if not count and not problem and limit > start:
        problem = f"{limit - start} bytes without a whole batch"
    return GoodBatches(start, position, count, next_offset, problem, next_offset)
