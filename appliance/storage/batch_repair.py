"""Plan the repair of damaged batches with another replica's bytes.

Pure. Below the high watermark replicas are equal byte for byte, apart from compaction. So a repair
needs proof that the two copies are aligned: they agree on a whole batch before the difference (or
it is the segment's first) and on one behind it (or the segment, or its committed part, ends there).
In between, only batches that are damaged here may differ. The caller has checked that the other
replica's batches are intact and in order. Weak spot: no checksum covers a leader epoch; a wrong one
is corrected if its batch is compared, but it is not searched for.

Steps of a repair: read and compared (a thread) → written in place (the loop, if the segment is the
same and was not truncated) → file synced (the thread) → counted, logged. A crash leaves the damaged
batch, the whole one, or a mixture; the scrubber finds it again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from appliance.base.model import Offset, Position
from appliance.records.batch import MAGIC_AT, RECORDS_AT, read_batch_header, stored_batch_problem


class RepairVerdict(IntEnum):
    """The result of a comparison of two copies of the same batches."""

    SOUND = 0
    """Both copies are the same: there is nothing to write."""
    REPAIR = 1
    NEEDS_MORE = 2
    """The copies may lie side by side; bytes behind these must tell."""
    DIFFERS = 3
    """They do not: this copy is of no use here."""


class SegmentPlace(NamedTuple):
    """The location of the compared bytes.

    `end_offset`, `end_position`: of the segment, or of its committed part.
    """

    base_offset: Offset
    position: Position
    end_offset: Offset
    end_position: int


class Difference(NamedTuple):
    """A batch to be written: bytes [start, end) of the copy."""

    start: int
    end: int
    base_offset: Offset
    last_offset: Offset


class RepairPlan(NamedTuple):
    """`writes`: the batches to write, in order; empty unless the verdict is REPAIR."""

    verdict: RepairVerdict
    writes: tuple[Difference, ...] = ()


def plan_repair(copy: memoryview, own: bytes, place: SegmentPlace) -> RepairPlan:
    """Compare `copy`, whole and intact batches of another replica, with `own`.

    `own`: the bytes of our file from `place.position` on, as many as the copy has or up to the end
    of the segment.
    """
    differing: list[Difference] = []
    proven, position, has_common, fits = 0, 0, place.position == 0, True
    while position < len(copy) and fits:
        header = read_batch_header(copy, position)
        end = position + header.size_bytes
        if header.base_offset >= place.end_offset:
            break
        if header.base_offset < place.base_offset or header.last_offset >= place.end_offset or place.position + end > place.end_position:
            fits = False
        elif own[position:end] == copy[position:end]:
            has_common, proven = True, len(differing)
        elif has_common and _is_damaged(own, position, copy[position:end]):
            differing.append(Difference(position, end, header.base_offset, header.last_offset))
        else:
            fits = False
        position = end if fits else position
    if fits and place.position + position == place.end_position:
        proven = len(differing)
    elif position < len(copy):
        fits = False  # the segment has other bytes there
    if proven:
        return RepairPlan(RepairVerdict.REPAIR, tuple(differing[:proven]))
    return RepairPlan(RepairVerdict.DIFFERS if not fits else RepairVerdict.NEEDS_MORE if differing else RepairVerdict.SOUND)


def _is_damaged(own: bytes, position: int, batch: memoryview) -> bool:
    """Whether our bytes where `batch` belongs are no intact batch, or this one under a wrong offset
    or leader epoch.
    """
    if len(own) - position < RECORDS_AT or stored_batch_problem(own, position, len(own)) is not None:
        return True
    return own[position + MAGIC_AT : position + len(batch)] == batch[MAGIC_AT:]
