"""What the scrub of a closed segment finds: every damage that a reader could meet, and nothing in a sound log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import MillraceError
from appliance.records.batch import LEADER_EPOCH_AT, MAGIC_AT, read_batch_header
from appliance.storage.log_config import LogConfig
from appliance.storage.reading import LogReading
from appliance.storage.scrub import CHECKSUM, INDEX, OFFSETS, TIME_INDEX, UNREADABLE, Damage, SegmentScrub
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

BATCHES = 12
LOG, OFFSET_INDEX, TIMES = "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"


def write_segment(directory: Path) -> int:
    """A closed segment of twelve batches of two records with a dense index; its end offset."""
    log = open_log(directory, LogConfig(index_interval_bytes=1))
    for number in range(BATCHES):
        log.append_as_leader([batch(b"a%d" % number, b"b%d" % number, timestamp_ms=NOW_MS + number % 5 * 10)], 3, NOW_MS)
    log.close()
    return 2 * BATCHES


def scrub(directory: Path, end_offset: int = 2 * BATCHES) -> list[Damage]:
    segment = SegmentScrub(str(directory), 0, end_offset)
    assert sum(segment) == (directory / LOG).stat().st_size
    return segment.damages


def positions(directory: Path) -> list[int]:
    content, found = (directory / LOG).read_bytes(), [0]
    while (end := found[-1] + read_batch_header(content, found[-1]).size_bytes) < len(content):
        found.append(end)
    return found


def answers(directory: Path, end_offset: int) -> list[object]:
    """Every look-up that a client could ask for."""
    reading, found = LogReading(str(directory)), []
    for ask, values in (
        (lambda offset: reading.locate(offset, end_offset), range(end_offset)),
        (lambda timestamp: reading.offset_for_timestamp(timestamp, end_offset), range(NOW_MS - 1, NOW_MS + 52)),
    ):
        for value in values:
            try:
                found.append(ask(value))
            except (MillraceError, ValueError) as error:
                found.append(type(error))
    return found


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_sound_segment_has_no_damage(tmp_path: Path) -> None:
    write_segment(tmp_path)
    assert scrub(tmp_path) == []


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound")
    write_segment(directory)
    return directory


@given(chance=st.floats(0, 1, exclude_max=True))
def test_any_flipped_bit_of_the_log_is_found(sound: Path, chance: float) -> None:
    path = sound / LOG
    whole = path.read_bytes()
    bit = int(chance * len(whole) * 8)
    in_batch = bit // 8 - max(position for position in positions(sound) if position <= bit // 8)
    flip(path, bit)
    try:
        # The leader epoch is covered by no checksum: damage cannot be detected.
        assert bool(scrub(sound)) != (LEADER_EPOCH_AT <= in_batch < MAGIC_AT)
    finally:
        path.write_bytes(whole)


@given(name=st.sampled_from([OFFSET_INDEX, TIMES]), chance=st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_of_an_index_is_found_or_leads_no_look_up_astray(sound: Path, name: str, chance: float) -> None:
    path = sound / name
    whole, right = path.read_bytes(), answers(sound, 2 * BATCHES)
    flip(path, int(chance * len(whole) * 8))
    try:
        damages = scrub(sound)
        assert [damage.file for damage in damages] == [name] or answers(sound, 2 * BATCHES) == right
    finally:
        path.write_bytes(whole)


def test_a_wrong_checksum_is_reported_with_its_offset_and_later_batches_are_checked(tmp_path: Path) -> None:
    write_segment(tmp_path)
    places = positions(tmp_path)
    for number in (4, 9):
        flip(tmp_path / LOG, (places[number] + 63) * 8)
    assert [(damage.kind, damage.offset, damage.position) for damage in scrub(tmp_path)] == [(CHECKSUM, 8, places[4]), (CHECKSUM, 18, places[9])]


def test_a_broken_length_hides_the_rest_and_says_how_much(tmp_path: Path) -> None:
    write_segment(tmp_path)
    place = positions(tmp_path)[6]
    flip(tmp_path / LOG, (place + 8) * 8)
    (damage,) = scrub(tmp_path)
    assert (damage.kind, damage.offset, damage.position) == (UNREADABLE, 12, place)
    assert f"{(tmp_path / LOG).stat().st_size - place} bytes" in damage.words


def test_a_segment_that_overlaps_the_next_one_is_reported(tmp_path: Path) -> None:
    write_segment(tmp_path)
    assert [damage.kind for damage in scrub(tmp_path, 2 * BATCHES - 1)] == [OFFSETS]


@pytest.mark.parametrize(("name", "kind"), [(OFFSET_INDEX, INDEX), (TIMES, TIME_INDEX)])
def test_a_missing_torn_or_incomplete_index_is_reported(tmp_path: Path, name: str, kind: str) -> None:
    write_segment(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert [(damage.kind, damage.file) for damage in scrub(tmp_path)] == [(kind, name)]
    path.write_bytes(whole + whole[-12 if kind == TIME_INDEX else -8 :])
    assert [damage.kind for damage in scrub(tmp_path)] == [kind]
    path.unlink()
    assert [damage.words for damage in scrub(tmp_path)] == ["it is missing"]


def test_an_empty_time_index_is_reported_because_retention_reads_it(tmp_path: Path) -> None:
    write_segment(tmp_path)
    (tmp_path / TIMES).write_bytes(b"")
    assert [damage.kind for damage in scrub(tmp_path)] == [TIME_INDEX]
