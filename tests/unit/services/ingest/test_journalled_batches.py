"""Questions to leaders about the batches of a previous incarnation, and what follows from their
answers.
"""

from __future__ import annotations

import pytest

from appliance.base.model import BrokerId, LeaderEpoch, TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.storage.producer_state import LARGEST_SEQUENCE
from services.ingest.records.ack_group import digest_of
from services.ingest.replay.journal_records import JournalledBatch
from services.ingest.replay.journalled_batches import ABSENT_MS, GRACE_MS, JournalledBatches
from tests.support.played_leaders import PlayedLeaders

TOPIC_ID = TopicId(b"syslog-topic-id!")
PRODUCER = 1001


def batch(sequence: int, count: int = 5, producer_epoch: int = 0, partition: int = 0) -> JournalledBatch:
    return JournalledBatch("syslog", TOPIC_ID, partition, PRODUCER, producer_epoch, sequence, count, [(digest_of(b"%d" % sequence), 0, count)])


class World:
    """Leaders, the image, and what was resolved."""

    def __init__(self, brokers: int = 1) -> None:
        self.leaders = PlayedLeaders()
        self.resolved: dict[int, bool] = {}
        self.now_ms = 0
        self.brokers = {number: BrokerImage(BrokerId(number), "127.0.0.1", 9092) for number in range(1, brokers + 1)}
        self.image = self.with_leader(1)
        self.batches = JournalledBatches(self.leaders, self._on_resolved, 0)

    def with_leader(self, leader: int, topic_id: TopicId = TOPIC_ID) -> MetadataImage:
        partition = PartitionImage(BrokerId(leader), LeaderEpoch(3), (), ())
        return MetadataImage(1, "", BrokerId(1), dict(self.brokers), {"syslog": TopicImage("syslog", topic_id, (partition,), {})})

    def _on_resolved(self, resolved: JournalledBatch, is_stored: bool) -> None:
        assert resolved.base_sequence not in self.resolved
        self.resolved[resolved.base_sequence] = is_stored

    def run(self, milliseconds: int = 1000) -> None:
        for _ in range(milliseconds // 50):
            self.batches.turn(self.now_ms, self.image)
            self.leaders.answer()
            self.now_ms += 50


def test_what_is_not_above_the_last_sequence_is_stored_and_the_rest_is_not() -> None:
    world = World()
    for sequence in (0, 5, 10):
        world.batches.add(batch(sequence))
    world.leaders.last = {PRODUCER: (0, 9), 7: (0, 1000)}
    assert world.batches.has(digest_of(b"10"))
    world.run()
    assert world.resolved == {0: True, 5: True, 10: False} and world.batches.is_empty
    assert not world.batches.has(digest_of(b"10"))


@pytest.mark.parametrize(("last", "is_stored"), [((0, 4), True), ((0, 3), False), ((1, 9), False), ((0, -1), False), (None, False)])
def test_each_answer_about_a_batch_of_five(last: tuple[int, int] | None, is_stored: bool) -> None:
    world = World()
    world.batches.add(batch(0))
    world.leaders.last = {PRODUCER: last} if last else {}
    world.run()
    assert world.resolved == {0: is_stored}


def test_sequences_wrap() -> None:
    world = World()
    world.batches.add(batch(LARGEST_SEQUENCE - 1, 5))
    world.batches.add(batch(LARGEST_SEQUENCE - 6, 5))
    world.leaders.last = {PRODUCER: (0, 2)}
    world.run()
    assert set(world.resolved.values()) == {True}
    world = World()
    world.batches.add(batch(LARGEST_SEQUENCE - 1, 5))
    world.leaders.last = {PRODUCER: (0, LARGEST_SEQUENCE)}
    world.run()
    assert set(world.resolved.values()) == {False}


def test_only_what_is_committed_is_stored() -> None:
    world = World()
    world.batches.add(batch(0))
    world.leaders.last = {PRODUCER: (0, 4)}
    world.leaders.high_watermark = 99
    world.run()
    assert not world.resolved
    world.leaders.last = {}  # another leader, that never had it
    world.run()
    assert world.resolved == {0: False}


def test_no_answer_is_no_answer() -> None:
    world = World()
    world.batches.add(batch(0))
    world.leaders.last = {PRODUCER: (0, 4)}
    world.leaders.is_away = True
    world.run()
    world.leaders.is_away, world.leaders.error_code = False, 6
    world.run()
    world.leaders.error_code, world.leaders.leader_epoch = 0, 2
    world.run()
    assert not world.resolved and not world.batches.is_empty
    world.leaders.leader_epoch = 3
    world.run()
    assert world.resolved == {0: True}


def test_without_a_leader_it_waits_and_asks_the_next_one() -> None:
    world = World(brokers=2)
    world.image = world.with_leader(-1)
    world.batches.add(batch(0))
    world.leaders.last = {PRODUCER: (0, 4)}
    world.run(20_000)
    assert not world.resolved and not world.leaders.asked
    world.image = world.with_leader(2)
    world.run()
    assert world.resolved == {0: True} and {broker_id for broker_id, _ in world.leaders.asked} == {2}


def test_among_several_boxes_what_is_not_there_may_still_be_on_its_way() -> None:
    world = World(brokers=3)
    world.batches.add(batch(0))
    world.batches.add(batch(5))
    world.leaders.last = {PRODUCER: (0, 4)}
    world.run(GRACE_MS // 2)
    assert world.resolved == {0: True}
    world.leaders.last = {PRODUCER: (0, 9)}
    world.run(GRACE_MS)
    assert world.resolved == {0: True, 5: True}


def test_a_topic_that_is_gone_or_another_one_under_its_name_has_nothing() -> None:
    for image in (World().with_leader(1, TopicId(b"another-topic-id")), MetadataImage(1, "", BrokerId(1), {}, {})):
        world = World()
        world.batches.add(batch(0))
        world.leaders.last = {PRODUCER: (0, 4)}
        world.image = image
        world.run(ABSENT_MS - 100)
        assert not world.resolved
        world.run(300)
        assert world.resolved == {0: False} and not world.leaders.asked


def test_before_there_is_an_image_nothing_is_believed() -> None:
    world = World()
    world.batches.add(batch(0))
    world.image = MetadataImage.empty()
    world.run(2 * ABSENT_MS)
    assert not world.resolved
