"""What another replica's bytes may put right in a segment: every flipped bit that a scrub finds, and nothing where the two copies do not lie side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.records.batch import BATCH_LENGTH_AT, LEADER_EPOCH_AT, MAGIC_AT, read_batch_header, stamp_batch
from appliance.storage.batch_repair import RepairVerdict, SegmentPlace, plan_repair
from appliance.storage.scrub import Damage, SegmentScrub
from tests.unit.storage.storage_support import NOW_MS, batch

BATCHES = 6
END = 2 * BATCHES
LOG = "00000000000000000000.log"


def stamped(base_offset: int) -> bytes:
    """A batch of two records; all have the same content: only offsets tell them apart."""
    content = bytearray(batch(b"a", b"b", timestamp_ms=NOW_MS))
    stamp_batch(content, 0, base_offset, 3)
    return bytes(content)


SEGMENT = [stamped(2 * number) for number in range(BATCHES)]
SIZE = len(SEGMENT[0])
WHOLE = b"".join(SEGMENT)
BEHIND = stamped(END)
"""The next segment's first batch."""


def scrub(directory: Path, content: bytes) -> list[Damage]:
    (directory / LOG).write_bytes(content)
    segment = SegmentScrub(str(directory), 0, END)
    assert sum(segment) == len(content)
    return [damage for damage in segment.damages if damage.file == LOG]


def repaired(content: bytes, damage: Damage, copy: bytes = WHOLE) -> tuple[RepairVerdict, bytes]:
    """`copy` is the whole segment as another replica has it."""
    position = damage.sound_position
    start = 0
    while start < len(copy) and read_batch_header(copy, start).last_offset < damage.sound_offset:
        start += read_batch_header(copy, start).size_bytes
    copy = copy[start:]
    plan = plan_repair(memoryview(copy), content[position : position + len(copy)], SegmentPlace(0, position, END, len(content)))
    written = bytearray(content)
    for first, end, _, _ in plan.writes:
        written[position + first : position + end] = copy[first:end]
    return plan.verdict, bytes(written)


@pytest.mark.parametrize("number", [0, 2, 3, BATCHES - 1])
@pytest.mark.slow
def test_every_flipped_bit_that_a_scrub_finds_is_put_right(tmp_path: Path, number: int) -> None:
    for bit in range(8 * SIZE):
        content = bytearray(WHOLE)
        content[number * SIZE + bit // 8] ^= 1 << bit % 8
        damages = scrub(tmp_path, bytes(content))
        if LEADER_EPOCH_AT <= bit // 8 < MAGIC_AT:
            assert not damages
            continue
        assert damages, bit
        verdict, content_now = repaired(bytes(content), damages[0])
        assert (verdict, content_now) == (RepairVerdict.REPAIR, WHOLE), bit
        for damage in damages[1:]:
            assert repaired(WHOLE, damage) in ((RepairVerdict.SOUND, WHOLE), (RepairVerdict.DIFFERS, WHOLE)), bit


def test_behind_a_broken_length_nothing_but_the_one_batch_is_written(tmp_path: Path) -> None:
    content = bytearray(WHOLE)
    content[2 * SIZE + BATCH_LENGTH_AT] ^= 0x40
    (damage,) = scrub(tmp_path, bytes(content))
    assert (damage.offset, damage.sound_offset, damage.sound_position) == (4, 2, SIZE)
    plan = plan_repair(memoryview(WHOLE)[SIZE:], bytes(content)[SIZE:], SegmentPlace(0, SIZE, END, len(WHOLE)))
    assert [(write.start, write.base_offset, write.last_offset) for write in plan.writes] == [(SIZE, 4, 5)]


def test_zeroed_sectors_over_several_batches_are_put_right(tmp_path: Path) -> None:
    content = WHOLE[: SIZE + 7] + bytes(3 * SIZE) + WHOLE[4 * SIZE + 7 :]
    (damage,) = scrub(tmp_path, content)
    assert repaired(content, damage) == (RepairVerdict.REPAIR, WHOLE)


def test_more_is_asked_for_when_the_copy_ends_with_the_damage() -> None:
    content = WHOLE[:SIZE] + bytes(SIZE) + WHOLE[2 * SIZE :]
    for batches, verdict in ((1, RepairVerdict.SOUND), (2, RepairVerdict.NEEDS_MORE), (3, RepairVerdict.REPAIR)):
        assert plan_repair(memoryview(WHOLE)[: batches * SIZE], content, SegmentPlace(0, 0, END, len(content))).verdict == verdict


def test_what_lies_above_the_committed_end_is_never_written() -> None:
    content = WHOLE[:SIZE] + bytes(len(WHOLE) - SIZE)
    plan = plan_repair(memoryview(WHOLE), content, SegmentPlace(0, 0, 6, 3 * SIZE))
    assert [write.last_offset for write in plan.writes] == [3, 5]
    assert plan_repair(memoryview(WHOLE), content, SegmentPlace(0, 0, 5, 3 * SIZE - 1)).verdict == RepairVerdict.DIFFERS


@pytest.mark.parametrize("place", [0, SIZE])
def test_a_copy_that_was_compacted_differently_is_of_no_use(tmp_path: Path, place: int) -> None:
    """It lacks a batch, so what follows lies elsewhere."""
    content = WHOLE[: 2 * SIZE] + bytes(SIZE) + WHOLE[3 * SIZE :]
    for gone in range(2, BATCHES - 1):
        copy = b"".join([*SEGMENT[:gone], *SEGMENT[gone + 1 :], BEHIND])
        plan = plan_repair(memoryview(copy)[place:], content[place:], SegmentPlace(0, place, END, len(content)))
        assert plan.verdict == (RepairVerdict.DIFFERS if gone < 4 else RepairVerdict.REPAIR), gone
        assert all(WHOLE[place + write.start : place + write.end] == copy[place + write.start : place + write.end] for write in plan.writes)


def test_an_intact_batch_is_never_replaced_by_another() -> None:
    other = bytearray(batch(b"x", b"y", timestamp_ms=NOW_MS))
    stamp_batch(other, 0, 4, 3)
    assert len(other) == SIZE
    copy = b"".join([*SEGMENT[:2], bytes(other), *SEGMENT[3:]])
    assert plan_repair(memoryview(copy), WHOLE, SegmentPlace(0, 0, END, len(WHOLE))).verdict == RepairVerdict.DIFFERS


def test_without_a_batch_in_common_nothing_is_written() -> None:
    content = bytes(SIZE) + WHOLE[SIZE:]
    assert plan_repair(memoryview(WHOLE)[2 * SIZE :], content[SIZE:], SegmentPlace(0, SIZE, END, len(content))).verdict == RepairVerdict.DIFFERS
