"""The known rows of a table: which were added, which were removed, and no read of rows that only
changed their role.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.shm.disk_tables import KnownRows
from appliance.shm.mapping import WORD_BYTES
from appliance.shm.partition_table import (
    ROLE_FOLLOWER,
    ROLE_LEADER,
    ROW_WORDS,
    ROWS_POSITION,
    TRAILING_SEQUENCE,
    PartitionTableReader,
    PartitionTableWriter,
    Row,
)

TOPIC = TopicId(bytes(range(16)))


def row(partition: int, role: int = ROLE_LEADER, leader_epoch: int = 5) -> Row:
    return Row(TOPIC, partition, 0, role, leader_epoch, 10, 30, 20, 19, 1, 1, 4, 8, 4_096, 8, 2_048, 2)


@pytest.fixture
def writer(layout: BoxLayout) -> Iterator[PartitionTableWriter]:
    made = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
    yield made
    made.close()


@pytest.fixture
def known(writer: PartitionTableWriter) -> Iterator[KnownRows]:
    reader = PartitionTableReader.attach(writer.shared.name)
    yield KnownRows(reader)
    reader.close()


def test_rows_that_come_and_go_are_seen_each_with_its_generation(writer: PartitionTableWriter, known: KnownRows) -> None:
    indexes, generations = zip(*(writer.add_row(row(partition)) for partition in range(3)), strict=True)
    assert known.is_old and known.look() and not known.is_old
    assert known.keys == [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)] and known.row_generations == list(generations)
    writer.remove_row(indexes[1])
    assert known.is_old and known.look()
    assert known.keys == [(TOPIC, 0), None, (TOPIC, 2)] and known.row_generations[1] == 0
    again, generation = writer.add_row(row(7))
    assert again == indexes[1] and known.look()
    assert known.keys[1] == (TOPIC, 7) and known.row_generations[1] == generation not in generations


def test_the_same_partition_in_a_row_that_was_removed_and_added_between_two_looks_is_another_row(writer: PartitionTableWriter, known: KnownRows) -> None:
    index, former = writer.add_row(row(3))
    known.look()
    writer.remove_row(index)
    _, generation = writer.add_row(row(3))
    assert known.look() and known.row_generations == [generation] != [former]


def test_a_change_of_roles_reads_no_row(writer: PartitionTableWriter, known: KnownRows, monkeypatch: pytest.MonkeyPatch) -> None:
    index, generation = writer.add_row(row(0))
    known.look()
    writer.store(index, row(0, ROLE_FOLLOWER, 6)._replace(row_generation=generation))
    writer.announce()
    monkeypatch.setattr(PartitionTableReader, "read", None)
    assert known.is_old and not known.look() and not known.is_old
    assert known.table.roles_and_epochs() == [ROLE_FOLLOWER << 32 | 6]


def test_a_row_that_is_torn_comes_with_a_later_look(writer: PartitionTableWriter, known: KnownRows) -> None:
    index, _ = writer.add_row(row(0))
    word = ROWS_POSITION // WORD_BYTES + index * ROW_WORDS + TRAILING_SEQUENCE
    writer.shared.words[word] += 1  # its writer was interrupted in it
    known.look()
    assert known.keys == [None] and known.is_old
    writer.shared.words[word] -= 1
    assert known.look() and known.keys == [(TOPIC, 0)] and not known.is_old
