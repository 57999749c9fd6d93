"""Which rows a replica-fetcher follows: those in which image and table agree."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, PartitionTableReader, PartitionTableWriter, Row
from lab.scratch_layout import scratch_layout
from services.replica_fetcher.replica_following import SCAN_PAUSE_NS, ReplicaRows
from services.replica_fetcher.replica_partition import FollowedRow
from services.replica_fetcher.replica_session import Key

TOPIC = TopicId(bytes(range(16)))
OWN = 1


def row(partition: int, role: int, leader_epoch: int) -> Row:
    return Row(TOPIC, partition, 0, role, leader_epoch, 10, 30, 20, 19, 1, 1, 4, 8, 4_096, 8, 2_048, 2)


class World:
    """Box 1 with two partitions that it follows box 2 in, under epoch 5."""

    def __init__(self, layout: BoxLayout) -> None:
        self.writer = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.places = [self.writer.add_row(row(partition, ROLE_FOLLOWER, 5)) for partition in range(2)]
        self.reader = PartitionTableReader.attach(self.writer.shared.name)
        proxies = SimpleNamespace(by_disk={"d0": SimpleNamespace(disk="d0", table=self.reader)})
        self.is_leaving = False
        self.rows = ReplicaRows(OWN, cast(Any, proxies), lambda: self.is_leaving)
        self.now_ns = 0
        self.wants((2, 5), (2, 5))

    def wants(self, *leaders: tuple[int, int], isr: tuple[int, ...] = (2, OWN)) -> None:
        """Leader and leader epoch of each partition, as a new image has them."""
        partitions = tuple(PartitionImage(leader, epoch, (2, OWN, 3), isr, "d0") for leader, epoch in leaders)
        self.rows.set_image(MetadataImage(1, "c", 1, {}, {"t": TopicImage("t", TOPIC, partitions, {})}))

    def stores(self, partition: int, role: int, leader_epoch: int) -> None:
        index, generation = self.places[partition]
        self.writer.store(index, row(partition, role, leader_epoch)._replace(row_generation=generation))
        self.writer.announce()

    def look(self) -> dict[Key, FollowedRow] | None:
        self.now_ns += SCAN_PAUSE_NS
        return self.rows.look(self.now_ns)

    def followed(self) -> dict[int, tuple[int, int]]:
        """Partition → leader and epoch."""
        found = self.look()
        assert found is not None, "nothing has changed"
        return {key[1]: (place.leader_id, place.leader_epoch) for key, place in found.items()}


@pytest.fixture
def world() -> Iterator[World]:
    with scratch_layout() as layout:
        made = World(layout)
        yield made
        made.reader.close()
        made.writer.close()


def test_a_partition_is_followed_when_its_row_and_the_image_name_the_same_epoch(world: World) -> None:
    assert world.followed() == {0: (2, 5), 1: (2, 5)} and world.rows.is_settled
    world.wants((3, 6), (2, 5))
    assert world.followed() == {1: (2, 5)} and not world.rows.is_settled, "the row is behind"
    world.stores(0, ROLE_FOLLOWER, 6)
    assert world.followed() == {0: (3, 6), 1: (2, 5)} and world.rows.is_settled
    world.stores(1, ROLE_FOLLOWER, 6)
    assert world.followed() == {0: (3, 6)}, "the image is behind"


def test_a_partition_that_this_box_or_no_box_leads_is_not_followed(world: World) -> None:
    world.stores(0, ROLE_LEADER, 6)
    world.stores(1, ROLE_FOLLOWER, 6)
    world.wants((OWN, 6), (-1, 6))
    assert world.followed() == {} and world.rows.is_settled


def test_nothing_is_looked_at_twice_and_a_burst_not_for_each_row(world: World) -> None:
    assert world.look() is not None and world.look() is None
    world.stores(0, ROLE_LEADER, 6)
    assert world.rows.look(world.now_ns) is not None
    world.stores(1, ROLE_LEADER, 6)
    assert world.rows.look(world.now_ns + 1) is None
    assert world.look() == {}


def test_what_has_not_changed_stays_the_same_object(world: World) -> None:
    before = world.look()
    world.wants((2, 5), (3, 6))
    world.stores(1, ROLE_FOLLOWER, 6)
    after = world.look()
    assert before is not None and after is not None
    assert after[TOPIC, 0] is before[TOPIC, 0] and after[TOPIC, 1].identity != before[TOPIC, 1].identity
    index, _ = world.places[0]
    world.writer.remove_row(index)
    world.writer.add_row(row(0, ROLE_FOLLOWER, 5))
    again = world.look()
    assert again is not None and again[TOPIC, 0].row == index and again[TOPIC, 0].identity != before[TOPIC, 0].identity, "a row of its own"


def test_a_box_that_is_about_to_stop_follows_only_where_it_is_in_sync(world: World) -> None:
    world.is_leaving = True
    assert world.followed() == {0: (2, 5), 1: (2, 5)}, "its leaders wait for it"
    world.wants((2, 5), (2, 5), isr=(2, 3))
    assert world.followed() == {} and world.rows.is_settled
