"""What `millrace doctor` says of a cluster (`command/doctor_network.py`)."""

from __future__ import annotations

import pytest

from appliance.base.model import TopicId
from appliance.base.settings import Box
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.cluster.state_log import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from appliance.command.doctor_network import look_at_cluster
from appliance.command.findings import OK, PROBLEM, WARNING

BOX = Box("", 1, [], "", "127.0.0.1", "127.0.0.1", 0, 0, 0)


def cluster(boxes: int, controller_id: int = 1, **replicas: int) -> MetadataImage:
    """Topic → how many replicas its one partition has."""
    topics = {
        name: TopicImage(
            name,
            TopicId(name.encode()[:16].ljust(16)),
            (PartitionImage(1, 0, tuple(range(1, count + 1)), (1,)),),
            {},
            name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC),
        )
        for name, count in replicas.items()
    }
    return MetadataImage(1, "cluster", controller_id, {number: BrokerImage(number, "host", 9092) for number in range(1, boxes + 1)}, topics)


def test_a_box_that_is_alone_is_no_cluster() -> None:
    assert look_at_cluster(cluster(1, logs=1, **{OFFSETS_TOPIC: 1}), BOX) == []


def test_a_cluster_with_all_its_copies_is_a_good_line() -> None:
    (finding,) = look_at_cluster(cluster(3, logs=2, **{OFFSETS_TOPIC: 3, TRANSACTIONS_TOPIC: 3}), BOX)
    assert (finding.level, finding.words) == (OK, "brokers 1, 2, 3; controller is 1")


def test_a_cluster_without_a_controller_is_a_problem() -> None:
    (finding,) = look_at_cluster(cluster(2, controller_id=3), BOX)
    assert finding.level == PROBLEM and "none of them is the controller" in finding.words


@pytest.mark.parametrize(("boxes", "wanted"), [(2, 2), (3, 3), (5, 3)])
def test_a_state_topic_with_too_few_replicas_is_reported_with_the_command(boxes: int, wanted: int) -> None:
    _, offsets, transactions = look_at_cluster(cluster(boxes, **{OFFSETS_TOPIC: 1, TRANSACTIONS_TOPIC: 1}), BOX)
    assert (offsets.level, transactions.level) == (WARNING, WARNING)
    assert f"{OFFSETS_TOPIC} has 1 replica, {wanted} are wanted" in offsets.words
    assert f"`millrace topic alter {OFFSETS_TOPIC} --replication-factor {wanted}`" in offsets.advice
    assert ("min.insync.replicas=2" in transactions.advice) == (wanted > 2)


def test_the_first_topics_with_a_single_copy_are_named() -> None:
    _, finding = look_at_cluster(cluster(3, **{f"t{number}": 1 for number in range(7)}, copied=2), BOX)
    assert (finding.level, finding.words) == (WARNING, "7 topics with a single copy (t0, t1, t2, t3, t4, …), though there are 3 boxes")
