"""The look at one place of a segment: what a whole scrub finds there it finds, too, from an intact batch on, and nothing of what lies behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.records.batch import BATCH_LENGTH_AT, read_batch_header
from appliance.storage.cold_file import ACTIVE_WAYS, SEALED_WAYS
from appliance.storage.scrub import CHECKSUM, OFFSETS, UNREADABLE, Damage, PlaceScrub
from tests.unit.storage.test_scrub import BATCHES, LOG, OFFSET_INDEX, flip, positions, write_segment

BEYOND = 2**63 - 1


def look(directory: Path, offset: int, end_offset: int = BEYOND) -> PlaceScrub:
    scrub = PlaceScrub(str(directory), 0, end_offset, offset, ACTIVE_WAYS if end_offset == BEYOND else SEALED_WAYS)
    scrub.look()
    return scrub


@pytest.mark.parametrize("end_offset", [BEYOND, 2 * BATCHES], ids=["grows", "closed"])
def test_every_damaged_batch_is_found_at_its_offsets_and_from_a_sound_place(tmp_path: Path, end_offset: int) -> None:
    write_segment(tmp_path)
    good, places = (tmp_path / LOG).read_bytes(), positions(tmp_path)
    assert all(not look(tmp_path, offset, end_offset).damages for offset in range(2 * BATCHES))
    for number, place in enumerate(places):
        damaged = bytearray(good)
        damaged[place + 70] ^= 1
        (tmp_path / LOG).write_bytes(damaged)
        before = max(number - 1, 0)
        for offset in (2 * number, 2 * number + 1):
            (damage,) = look(tmp_path, offset, end_offset).damages
            assert (damage.kind, damage.offset, damage.position) == (CHECKSUM, 2 * number, place)
            assert (damage.sound_offset, damage.sound_position) == (2 * before, places[before])
        if number:
            assert not look(tmp_path, 2 * number - 1, end_offset).damages, "what lies behind is not judged"
        if number + 2 < BATCHES:
            scrub = look(tmp_path, 2 * number + 4, end_offset)
            assert not scrub.damages and scrub.span == (places[number + 1], places[number + 3] if number + 3 < BATCHES else len(good))


def test_a_broken_length_or_offset_is_found_too(tmp_path: Path) -> None:
    write_segment(tmp_path)
    place = positions(tmp_path)[5]
    flip(tmp_path / LOG, 8 * (place + BATCH_LENGTH_AT))
    (damage,) = look(tmp_path, 10).damages
    assert (damage.kind, damage.offset, damage.position, damage.sound_offset) == (UNREADABLE, 10, place, 8)
    flip(tmp_path / LOG, 8 * (place + BATCH_LENGTH_AT))
    flip(tmp_path / LOG, 8 * (place + 7) + 3)
    assert read_batch_header((tmp_path / LOG).read_bytes(), place).base_offset == 2
    assert [(damage.kind, damage.position) for damage in look(tmp_path, 11).damages] == [(OFFSETS, place)]


def test_an_index_that_leads_astray_costs_a_longer_scan_and_nothing_else(tmp_path: Path) -> None:
    write_segment(tmp_path)
    damaged = bytearray((tmp_path / LOG).read_bytes())
    damaged[positions(tmp_path)[9] + 70] ^= 1
    (tmp_path / LOG).write_bytes(damaged)
    found: list[list[Damage]] = []
    index = (tmp_path / OFFSET_INDEX).read_bytes()
    for content in (index, index[:-3], b"", b"\0\0\0\5\0\0\0\7" * 20, b"\xff" * len(index)):
        (tmp_path / OFFSET_INDEX).write_bytes(content)
        found.append([damage._replace(sound_offset=0, sound_position=0) for damage in look(tmp_path, 18).damages])
    (tmp_path / OFFSET_INDEX).unlink()
    found.append([damage._replace(sound_offset=0, sound_position=0) for damage in look(tmp_path, 18).damages])
    assert all(each == found[0] and len(each) == 1 for each in found)
