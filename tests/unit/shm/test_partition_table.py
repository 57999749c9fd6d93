from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.shm import partition_table
from appliance.shm.mapping import WORD_BYTES, SharedObject
from appliance.shm.partition_table import (
    DISK_FULL,
    HIGH_WATERMARK,
    LOG_END_OFFSET,
    READ_RETRIES,
    ROLE_FOLLOWER,
    ROLE_LEADER,
    ROW_WORDS,
    ROWS,
    ROWS_POSITION,
    ROWS_USED_WORD,
    SEQUENCE,
    TRAILING_SEQUENCE,
    PartitionTableReader,
    PartitionTableWriter,
    Row,
    TableFull,
    TornRow,
    topic_id_words,
)

TOPIC = bytes(range(16))


def make_row(partition: int = 3, **changes: int) -> Row:
    row = Row(TOPIC, partition, 0, ROLE_LEADER, 5, 10, 30, 20, 19, 1, 1, 4, 8, 4_096, 8, 2_048, 2)
    return row._replace(**changes)


@pytest.fixture
def writer(layout: BoxLayout) -> Iterator[PartitionTableWriter]:
    made = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
    yield made
    made.close()


@pytest.fixture
def reader(writer: PartitionTableWriter) -> Iterator[PartitionTableReader]:
    made = PartitionTableReader.attach(writer.shared.name)
    yield made
    made.close()


def row_base(index: int) -> int:
    return ROWS_POSITION // WORD_BYTES + index * ROW_WORDS


def tear(writer: PartitionTableWriter, index: int) -> None:
    """What a writer leaves that dies after its first store of a row."""
    writer.shared.words[row_base(index) + TRAILING_SEQUENCE] += 1


def test_a_row_comes_back_as_it_was_stored(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    index, generation = writer.add_row(make_row())
    assert reader.read(index) == make_row(row_generation=generation)
    changed = make_row(row_generation=generation, role=ROLE_FOLLOWER, leader_epoch=-1, log_start_offset=-1, high_watermark=-1)
    writer.store(index, changed)
    assert reader.read(index) == changed


def test_progress_moves_ends_and_watermarks_together(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    index, generation = writer.add_row(make_row())
    writer.store_progress(index, 50, 45, 9_000)
    assert reader.read(index) == make_row(
        row_generation=generation, log_end_offset=50, high_watermark=45, last_stable_offset=45, active_position=9_000, watermark_position=9_000
    )


def test_every_store_moves_the_compact_sequence_of_its_row_only(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    indexes = [writer.add_row(make_row(partition))[0] for partition in range(3)]
    before = memoryview(reader.sequences()).cast("Q").tolist()
    writer.store_progress(indexes[1], 50, 50, 1)
    after = memoryview(reader.sequences()).cast("Q").tolist()
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 0]
    assert after[1] == reader.read_words(indexes[1])[SEQUENCE]


def test_adding_removing_and_announcing_move_the_generation_but_progress_does_not(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    seen = [reader.generation]
    index, _ = writer.add_row(make_row())
    seen.append(reader.generation)
    writer.set_disk_state(DISK_FULL)
    seen.append(reader.generation)
    writer.remove_row(index)
    seen.append(reader.generation)
    assert len(set(seen)) == 4 and reader.disk_state == DISK_FULL
    index, _ = writer.add_row(make_row())
    before = reader.generation
    writer.store_progress(index, 1, 1, 1)
    assert reader.generation == before


def test_a_row_whose_writer_died_in_it_is_torn_after_bounded_retries(
    writer: PartitionTableWriter, reader: PartitionTableReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn, _ = writer.add_row(make_row(0))
    whole, _ = writer.add_row(make_row(1))
    tear(writer, torn)
    tries = []
    unpack = reader.unpack_row
    monkeypatch.setattr(reader, "unpack_row", lambda *place: (tries.append(place), unpack(*place))[1])
    with pytest.raises(TornRow, match="row 0"):
        reader.read(torn)
    assert len(tries) == READ_RETRIES
    assert reader.read(whole).partition == 1


def test_a_row_that_is_whole_again_at_the_next_try_is_read(writer: PartitionTableWriter, reader: PartitionTableReader, monkeypatch: pytest.MonkeyPatch) -> None:
    index, generation = writer.add_row(make_row())
    tear(writer, index)
    unpack = reader.unpack_row

    def rewrite_between(*place: int) -> tuple[int, ...]:
        words = unpack(*place)
        writer.store(index, make_row(row_generation=generation, log_end_offset=31))
        return words

    monkeypatch.setattr(reader, "unpack_row", rewrite_between)
    assert reader.read(index).log_end_offset == 31


def test_a_scan_leaves_torn_and_removed_rows_out_and_counts_the_torn(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    indexes = [writer.add_row(make_row(partition))[0] for partition in range(4)]
    writer.remove_row(indexes[1])
    tear(writer, indexes[2])
    assert [(index, row.partition) for index, row in reader.rows()] == [(indexes[0], 0), (indexes[3], 3)]
    assert reader.torn_rows == 1
    writer.store(indexes[2], make_row(2, row_generation=3))
    assert len(reader.rows()) == 3 and reader.torn_rows == 0


def test_a_removed_row_is_empty_and_its_place_comes_again_under_another_generation(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    index, generation = writer.add_row(make_row())
    writer.remove_row(index)
    assert reader.read(index).row_generation == 0
    again, later = writer.add_row(make_row(4))
    assert again == index and later > generation


def test_a_row_that_is_removed_twice_would_be_given_out_twice(writer: PartitionTableWriter) -> None:
    index, _ = writer.add_row(make_row())
    writer.remove_row(index)
    for wrong in (index, index + 1):
        with pytest.raises(InvariantViolation):
            writer.remove_row(wrong)


@pytest.mark.parametrize("impossible", [{"active_position": -1}, {"log_end_offset": 1 << 70, "role": -1}, {"isr_size": 1 << 16}])
def test_a_row_that_cannot_be_stored_is_refused_before_it_is_torn(
    impossible: dict[str, int], writer: PartitionTableWriter, reader: PartitionTableReader
) -> None:
    index, generation = writer.add_row(make_row())
    with pytest.raises(InvariantViolation):
        writer.store(index, make_row(row_generation=generation, **impossible))
    assert reader.read(index) == make_row(row_generation=generation)


def test_the_table_is_never_larger_than_its_rows(writer: PartitionTableWriter) -> None:
    writer.shared.words[ROWS_USED_WORD] = ROWS - 1
    assert writer.add_row(make_row())[0] == ROWS - 1
    with pytest.raises(TableFull, match="add a disk"):
        writer.add_row(make_row())


class StoreRecorder:
    """Stands for the words of a table and remembers the order of stores."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self.stored: list[int] = []

    def __getitem__(self, index: int) -> int:
        return int(self._words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.stored.append(index)
        self._words[index] = value


@pytest.mark.parametrize("how", ["store", "store_progress", "remove_row"])
def test_the_trailing_sequence_is_stored_first_then_fields_then_the_leading_one_then_the_compact_one(how: str, writer: PartitionTableWriter) -> None:
    index, generation = writer.add_row(make_row())
    recorder = StoreRecorder(writer.shared.words)
    recorded = PartitionTableWriter(cast(SharedObject, SimpleNamespace(words=recorder)))
    actions = {
        "store": lambda: recorded.store(index, make_row(row_generation=generation)),
        "store_progress": lambda: recorded.store_progress(index, 2, 2, 2),
        "remove_row": lambda: recorded.remove_row(index),
    }
    actions[how]()
    base = row_base(index)
    compact = partition_table.SEQUENCES_POSITION // WORD_BYTES + index
    leading = recorder.stored.index(base + SEQUENCE)
    assert recorder.stored[0] == base + TRAILING_SEQUENCE
    assert all(base < word < base + TRAILING_SEQUENCE for word in recorder.stored[1:leading]) and leading > 4
    assert recorder.stored[leading + 1] == compact and recorder.stored.count(base) == 1


def test_a_word_of_a_row_is_found_where_its_name_says(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    index, _ = writer.add_row(make_row())
    words = reader.read_words(index)
    assert (words[LOG_END_OFFSET], words[HIGH_WATERMARK]) == (30, 20)
    assert words[1:3] == topic_id_words(TopicId(TOPIC))


def test_the_table_publishes_recovery_progress(writer: PartitionTableWriter, reader: PartitionTableReader) -> None:
    writer.set_recovery_progress(10, 100)
    assert reader.recovery_progress == (10, 100)


def test_the_next_incarnation_reads_the_table_of_a_dead_writer(layout: BoxLayout) -> None:
    dead = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 2), 2)
    dead.add_row(make_row(0))
    torn, _ = dead.add_row(make_row(1))
    tear(dead, torn)
    dead.shared.close()
    heir = PartitionTableReader.attach(layout.shared_memory_name("table", "d0", 2))
    assert [row.partition for _, row in heir.rows()] == [0]
    heir.close()
