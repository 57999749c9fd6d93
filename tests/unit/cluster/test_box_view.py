"""The index of what lies on a box: what makes it look at rows again, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import CacheChange, MetadataCache
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.shm.partition_table import DISK_OFFLINE, ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE, PartitionTableReader, PartitionTableWriter, Row
from lab.scratch_layout import scratch_layout

TOPIC = TopicId(bytes(range(16)))
OTHER = TopicId(bytes(range(16, 32)))


def row(partition: int, role: int = ROLE_FOLLOWER, topic_id: TopicId = TOPIC) -> Row:
    return Row(topic_id, partition, 0, role, 5, 10, 30, 20, 19, 1, 1, 4, 8, 4_096, 8, 2_048, 2)


def image(generation: int, *isrs: tuple[int, ...], topics: tuple[tuple[str, TopicId], ...] = (("t", TOPIC),), **config: str) -> MetadataImage:
    partitions = tuple(PartitionImage(isr[0], generation, (1, 2), isr, "d0") for isr in isrs)
    return MetadataImage(generation, "c", 1, {}, {name: TopicImage(name, topic_id, partitions, config) for name, topic_id in topics})


class World:
    """A view on one disk with two partitions of `t`."""

    def __init__(self, layout: BoxLayout) -> None:
        self.writer = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.readers: list[PartitionTableReader] = []
        self.rows = [self.writer.add_row(row(partition)) for partition in range(2)]
        self.proxy = SimpleNamespace(disk="d0", serving=True, is_hung=False, table=self.attach())
        self.by_disk = {"d0": self.proxy}
        self.view = MetadataCache(1, cast(Any, SimpleNamespace(by_disk=self.by_disk)))

    def attach(self) -> PartitionTableReader:
        self.readers.append(PartitionTableReader.attach(self.writer.shared.name))
        return self.readers[-1]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.writer.close()


@pytest.fixture
def world() -> Iterator[World]:
    with scratch_layout() as layout:
        made = World(layout)
        made.view.set_image(image(1, (1, 2), (1, 2)))
        assert made.view.refresh() is CacheChange.PLACES and made.view.refresh() is CacheChange.NOTHING
        yield made
        made.close()


def test_a_change_of_roles_leaves_every_placement_where_it_was(world: World) -> None:
    view, (index, generation) = world.view, world.rows[0]
    before = view.placement("t", 0)
    world.writer.store(index, row(0, ROLE_LEADER)._replace(row_generation=generation))
    world.writer.announce()
    assert view.refresh() is CacheChange.ROLES and view.placement("t", 0) is before is not None
    assert before.read_row().role == ROLE_LEADER
    assert view.refresh() is CacheChange.NOTHING


def test_a_row_that_comes_is_placed_and_one_that_goes_is_not_found(world: World) -> None:
    view = world.view
    first = view.placement("t", 0)
    world.writer.add_row(row(2))
    assert view.refresh() is CacheChange.PLACES and view.placement("t", 2) is not None and view.placement("t", 0) is first
    world.writer.remove_row(world.rows[0][0])
    assert view.refresh() is CacheChange.PLACES and view.placement("t", 0) is None and view.placement("t", 1) is not None


def test_rows_of_a_topic_that_the_image_does_not_have_yet_are_placed_when_it_does(world: World) -> None:
    world.writer.add_row(row(0, topic_id=OTHER))
    assert world.view.refresh() is CacheChange.PLACES and world.view.placement("u", 0) is None
    world.view.set_image(image(2, (1, 2), (1, 2), topics=(("t", TOPIC), ("u", OTHER))))
    assert world.view.refresh() is CacheChange.PLACES and world.view.placement("u", 0) is not None
    world.view.set_image(image(3, (1, 2), (1, 2)))
    assert world.view.refresh() is CacheChange.PLACES and world.view.placement("u", 0) is None


def test_a_topic_that_was_made_anew_is_not_found_in_the_rows_of_the_former_one(world: World) -> None:
    world.view.set_image(image(2, (1, 2), (1, 2), topics=(("t", OTHER),)))
    world.view.refresh()
    assert world.view.placement("t", 0) is None


def test_a_new_image_changes_what_differs_in_it(world: World) -> None:
    view = world.view
    placements = [view.placement("t", number) for number in range(2)]
    view.set_image(image(2, (1, 2), (1,)))
    assert view.refresh() is CacheChange.PLACES
    assert [view.placement("t", number) for number in range(2)] == placements
    assert [placement.isr for placement in placements if placement is not None] == [(1, 2), (1,)]
    config = {"max.message.bytes": "77", "cleanup.policy": "compact,delete"}
    view.set_image(image(3, (1, 2), (1,), **config))
    view.refresh()
    assert [(placement.max_message_bytes, placement.is_compacted) for placement in placements if placement is not None] == [(77, True)] * 2


def test_a_topic_without_a_largest_batch_has_that_of_kafka(world: World) -> None:
    view = world.view
    view.set_image(image(2, (1, 2), (1, 2), **{"max.message.bytes": "77"}))
    view.refresh()
    view.set_image(image(3, (1, 2), (1, 2)))
    view.refresh()
    placement = view.placement("t", 0)
    assert placement is not None and placement.max_message_bytes == 1_048_588


def test_a_table_that_was_opened_again_has_placements_of_its_own(world: World) -> None:
    view, before = world.view, world.view.placement("t", 0)
    world.proxy.table = None
    assert view.placement("t", 0) is None
    world.proxy.table = world.attach()
    assert view.refresh() is CacheChange.PLACES
    after = view.placement("t", 0)
    assert after is not None and after is not before and after.table is world.proxy.table


@pytest.mark.parametrize("others", [[], ["d1"], ["d1", "d2"]])
def test_partitions_of_a_removed_disk_are_not_found_whatever_comes_in_its_place(world: World, others: list[str]) -> None:
    del world.by_disk["d0"]
    world.by_disk.update({disk: SimpleNamespace(disk=disk, serving=False, is_hung=False, table=None) for disk in others})
    assert world.view.refresh() is CacheChange.PLACES and world.view.placement("t", 0) is None
    assert world.view.refresh() is CacheChange.NOTHING


def test_files_of_a_disk_that_goes_offline_are_nobodys_any_more(world: World) -> None:
    assert len(world.view.rows()) == 2
    world.writer.set_disk_state(DISK_OFFLINE)
    assert world.view.refresh() is CacheChange.PLACES and world.view.rows() == set()


@pytest.mark.parametrize("added", ["a0", "d9"])
def test_rows_of_an_added_disk_with_old_logs_hide_no_replica_and_are_none(world: World, added: str) -> None:
    """Both orders of the disks: the last row that was read is not the one that counts."""
    view, served = world.view, [world.view.placement("t", number) for number in range(2)]
    writer = PartitionTableWriter.create(world.writer.shared.name.replace("d0", added), 1)
    writer.add_row(row(0, ROLE_NONE))
    writer.add_row(row(1, ROLE_NONE))
    world.readers.append(PartitionTableReader.attach(writer.shared.name))
    proxy = SimpleNamespace(disk=added, serving=True, is_hung=False, table=world.readers[-1])
    ordered = sorted({**world.by_disk, added: proxy}.items())
    world.by_disk.clear()
    world.by_disk.update(ordered)
    assert view.refresh() is CacheChange.PLACES
    assert [view.placement("t", number) for number in range(2)] == served and None not in served
    world.writer.remove_row(world.rows[0][0])
    view.refresh()
    assert view.placement("t", 0) is None
    moved = image(2, (1, 2), (1, 2))
    topic = moved.topics["t"]
    there = topic._replace(partitions=(topic.partitions[0]._replace(disk=added), topic.partitions[1]))
    view.set_image(MetadataImage(2, "c", 1, {}, {"t": there}))
    view.refresh()
    assert [placement.disk for number in range(2) if (placement := view.placement("t", number))] == [added, "d0"]
    writer.close()
