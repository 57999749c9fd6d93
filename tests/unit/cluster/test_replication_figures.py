"""How well a box's partitions are replicated (`cluster/replication_figures.py`): what the image wants beside what the rows say."""

from __future__ import annotations

import pytest

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.cluster.replication_figures import ReplicationFigures, count_replication
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_OFFLINE, Row

ID = TopicId(b"0123456789abcdef")


def row(partition: int, role: int = ROLE_LEADER, isr: int = 3, min_isr: int = 2, end: int = 10, watermark: int = 10) -> Row:
    return Row(bytes(ID), partition, 1, role, 4, 0, end, watermark, watermark, isr, min_isr, 0, 0, 0, 0, 0, 1)


def partition(leader: int, replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionImage:
    return PartitionImage(leader, 4, replicas, replicas)


def count(partitions: list[PartitionImage], rows: list[Row], controller_id: int = 2) -> ReplicationFigures:
    """As broker 1 sees it."""
    brokers = {number: BrokerImage(number, "host", 9092) for number in (1, 2, 3)}
    image = MetadataImage(1, "cluster", controller_id, brokers, {"t": TopicImage("t", ID, tuple(partitions), {})})
    return count_replication(image, {(each.topic_id, each.partition): each for each in rows}, 1)


def test_a_box_that_is_well_leads_and_follows() -> None:
    found = count([partition(1), partition(2, (2, 1, 3)), partition(3, (3, 2))], [row(0), row(1, ROLE_FOLLOWER)])
    assert found == ReplicationFigures(leaders=1, followers=1)


def test_only_the_leaders_box_reports_a_missing_replica() -> None:
    partitions = [partition(1), partition(1), partition(2, (2, 1, 3))]
    found = count(partitions, [row(0, isr=2), row(1, isr=1), row(2, ROLE_FOLLOWER, isr=1)])
    assert (found.under_replicated, found.under_min_isr) == (2, 1)


def test_the_slowest_replica_in_sync_of_the_worst_partition_counts() -> None:
    found = count([partition(1), partition(1), partition(2, (2, 1))], [row(0, end=30), row(1, end=17), row(2, ROLE_FOLLOWER, end=100)])
    assert found.unreplicated_records_max == 20


@pytest.mark.parametrize(("controller_id", "told"), [(1, 2), (2, 0), (-1, 2), (9, 2)])
def test_leaderless_partitions_are_the_controllers_to_tell_or_everybodys(controller_id: int, told: int) -> None:
    assert count([partition(-1), partition(-1), partition(1)], [row(0, ROLE_OFFLINE), row(2)], controller_id).offline == told


def test_leadership_that_others_have_instead_of_us_is_counted() -> None:
    partitions = [partition(2, (1, 2)), partition(1, (1, 2)), partition(1, (2, 1)), partition(-1, (1, 2))]
    assert count(partitions, [row(0, ROLE_FOLLOWER), row(1), row(2)]).not_preferred == 1
