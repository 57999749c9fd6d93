"""Exploits of what boxes believe of each other, by raw frames against real boxes: a forged follower, forged transaction markers, forged coordinators.

Boxes are registered at 127.0.0.1, and `inter.broker.allowed.networks` leaves loopback out, so that a connection from 127.0.0.66 is a stranger's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.cluster.metadata_image import MetadataImage, read_image
from appliance.protocol import cluster_apis, offset_apis, transaction_apis
from appliance.protocol.fetch import FetchPartition
from appliance.protocol.replica_fetch import ReplicaFetch, decode_replica_fetch_response, encode_replica_fetch
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.records.builder import BatchBuilder
from lab.raw_client import FETCH
from lab.raw_transactions import RawTransactions, transactional_batch
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import RunningBox, eventually, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1 << 20
STRANGER, FETCH_VERSION = "127.0.0.66", 17
TOPIC, ONGOING = "copied", "Ongoing"
REFUSED = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
SETTINGS = {
    "inter.broker.allowed.networks": "192.0.2.0/24",
    "transaction.partition.verification.enable": False,
    "transaction.state.log.num.partitions": 1,
    "replica.lag.time.max.ms": 120_000,
    "acceptor.arena.bytes": 16 * MIB,
    "socket.request.max.bytes": 8 * MIB,
    "disk.budget.bytes": 8 * MIB,
    "ingest.arena.bytes": 8 * MIB,
}


def batch(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, value)
    return builder.build()


class Forged(NamedTuple):
    error_code: int
    partition_error_code: int
    records_size: int


class Client(RawTransactions):
    """One that forges."""

    def ask_as_data(self, question: Message[Any], reply: Message[Any], version: int, body: Any) -> Any:
        header = b"\0" if question.api.is_flexible(version) else b""
        sent = self.send(question.api.key, version, header + question.encode(version, body))
        received, answer = self.receive()
        assert received == sent
        return reply.decode(answer, len(header), len(answer), version)

    def fetch_as(self, replica_id: int, broker_epoch: int, topic_id: TopicId, offset: int, max_wait_ms: int = 0) -> Forged:
        """A follower's Fetch, of one partition, without a session."""
        wanted = FetchPartition("", topic_id, 0, -1, offset, -1, 0, MIB)
        body = encode_replica_fetch(ReplicaFetch(replica_id, broker_epoch, max_wait_ms, 1, MIB, 0, -1, [wanted]))
        sent = self.send(FETCH, FETCH_VERSION, b"\0" + body)
        received, answer = self.receive()
        assert received == sent
        fetched = decode_replica_fetch_response(answer, 1, len(answer), FETCH_VERSION)
        (part,) = fetched.partitions
        return Forged(fetched.error_code, part.error_code, part.records_size)

    def list_latest_as(self, replica_id: int) -> tuple[int, int]:
        """(error code, offset)."""
        topic = offset_apis.ListOffsetsTopic(TOPIC, (offset_apis.ListOffsetsPartition(0, -1, offset_apis.LATEST_TIMESTAMP),))
        answer = self.ask_as_data(
            offset_apis.LIST_OFFSETS_REQUEST, offset_apis.LIST_OFFSETS_RESPONSE, 7, offset_apis.ListOffsetsRequest(replica_id, 0, (topic,))
        )
        return answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].offset

    def epoch_end_as(self, replica_id: int, version: int = 4) -> int:
        """The error code."""
        topic = offset_apis.EpochTopic(TOPIC, (offset_apis.EpochPartition(0, -1, 0),))
        request = offset_apis.OffsetForLeaderEpochRequest(replica_id, (topic,))
        answer = self.ask_as_data(offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST, offset_apis.OFFSET_FOR_LEADER_EPOCH_RESPONSE, version, request)
        return int(answer.topics[0].partitions[0].error_code)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RunningBox]]:
    """Brokers 1 and 2, the second registered by name."""
    directory = tmp_path_factory.mktemp("boxes")
    zookeeper = RealZooKeeper(directory / "zookeeper")
    running: dict[int, RunningBox] = {}
    try:
        for broker_id, advertise in ((1, "127.0.0.1"), (2, "localhost")):
            options = {"disks": 1, "broker_id": broker_id, "zookeeper": zookeeper.connect, "settings": SETTINGS, "advertise": advertise}
            running[broker_id] = start_box(directory / f"b{broker_id}", **options)  # type: ignore[arg-type]
        cluster = ClusterClient([Address(*running[1].kafka)])
        create_topic(cluster, TOPIC, partitions=1, replication_factor=2)
        cluster.close()
        yield running
    finally:
        for box in running.values():
            box.stop()
        zookeeper.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def image_of(box: RunningBox) -> MetadataImage:
    image = read_image(box.layout.image_file)
    assert image is not None
    return image


class Led(NamedTuple):
    """The copied partition: its leader, and the broker that follows."""

    leader: RunningBox
    follower: RunningBox
    follower_id: int
    broker_epoch: int
    topic_id: TopicId


@pytest.fixture
def led(boxes: dict[int, RunningBox]) -> Led:
    def both_in_sync() -> MetadataImage | None:
        image = image_of(boxes[1])
        topic = image.topics.get(TOPIC)
        return image if topic is not None and len(topic.partitions[0].isr) == 2 else None

    image = eventually(both_in_sync, "both replicas are in sync")
    partition = image.topics[TOPIC].partitions[0]
    follower_id = 3 - partition.leader
    return Led(boxes[partition.leader], boxes[follower_id], follower_id, image.brokers[follower_id].epoch, image.topics[TOPIC].topic_id)


def test_a_forged_follower_moves_no_high_watermark_and_reads_nothing_above_it(led: Led, stack: ExitStack) -> None:
    client = stack.enter_context(closing(Client(led.leader.kafka)))
    stranger = stack.enter_context(closing(Client(led.leader.kafka, STRANGER)))
    eventually(lambda: client.produce(TOPIC, 0, batch(b"copied")).error_code == 0, "the leader's acceptor knows the topic")
    fetcher = led.follower.stop_process("replica-fetcher")
    try:
        # What the follower has parked at the leader is answered by the first of these; it takes no more.
        alone = [client.produce(TOPIC, 0, batch(b"on the leader alone"), acks=1) for _ in range(2)]
        assert [each.error_code for each in alone] == [0, 0]
        committed, end = alone[0].base_offset, alone[1].base_offset + 1

        def high_watermark() -> int:
            return client.committed_fetch(TOPIC, 0, committed).high_watermark

        assert high_watermark() == committed
        forged = [stranger.fetch_as(led.follower_id, epoch, led.topic_id, offset) for epoch in (led.broker_epoch, 1 << 62, -1) for offset in (committed, end)]
        assert forged == [Forged(REFUSED, REFUSED, 0)] * 6
        assert [stranger.fetch_as(replica_id, led.broker_epoch, led.topic_id, committed) for replica_id in (-2, -3)] == [Forged(REFUSED, REFUSED, 0)] * 2
        stale = int(ErrorCode.STALE_BROKER_EPOCH)
        forged = [
            client.fetch_as(led.follower_id, led.broker_epoch + more, led.topic_id, offset)
            for more in (1, (1 << 62) - led.broker_epoch, -1)
            for offset in (committed, end)
        ]
        assert forged == [Forged(stale, stale, 0)] * 6, "from a box's address under another broker epoch"
        assert high_watermark() == committed
        # The same frame from a box's address under the registered broker epoch is what a follower sends: it reads to the log end.
        assert client.fetch_as(led.follower_id, led.broker_epoch, led.topic_id, committed).records_size > 0
        assert high_watermark() == committed
    finally:
        os.kill(fetcher, signal.SIGCONT)
    eventually(lambda: high_watermark() == end, "the true follower's fetches count")
    assert client.produce(TOPIC, 0, batch(b"copied again")).error_code == 0
    assert len(image_of(led.leader).topics[TOPIC].partitions[0].isr) == 2


def test_refusals_are_counted_and_logged_with_the_address(led: Led, stack: ExitStack) -> None:
    stranger = stack.enter_context(closing(Client(led.leader.kafka, STRANGER)))

    def refused() -> int:
        return int(led.leader.counters("acceptor@0").values['acceptor.inter_broker_refused{reason="address"}'])

    client = stack.enter_context(closing(Client(led.leader.kafka)))
    before = refused()
    assert stranger.fetch_as(led.follower_id, led.broker_epoch, led.topic_id, 0).error_code == REFUSED
    assert refused() == before + 1
    eventually(lambda: f"requests from {STRANGER}, such as Fetch as replica {led.follower_id}" in led.leader.messages, "it is logged")
    assert client.fetch_as(led.follower_id, 1 << 62, led.topic_id, 0).error_code == ErrorCode.STALE_BROKER_EPOCH
    eventually(lambda: f"with broker epoch {1 << 62}: registered is {led.broker_epoch}" in led.leader.messages, "it is logged")


def test_a_stranger_learns_as_a_replica_nothing_that_a_consumer_does_not(led: Led, stack: ExitStack) -> None:
    box = stack.enter_context(closing(Client(led.leader.kafka)))
    stranger = stack.enter_context(closing(Client(led.leader.kafka, STRANGER)))
    assert [stranger.list_latest_as(replica_id)[0] for replica_id in (-1, -2, 1, 2)] == [0, REFUSED, REFUSED, REFUSED]
    assert [box.list_latest_as(replica_id)[0] for replica_id in (-1, -2, led.follower_id)] == [0, 0, 0]
    assert [stranger.epoch_end_as(replica_id) for replica_id in (-1, -2, 1, 2)] == [0, 0, REFUSED, REFUSED]
    assert stranger.epoch_end_as(-2, version=2) == 0, "librdkafka asks so"
    assert box.epoch_end_as(led.follower_id) == 0


def test_markers_of_a_stranger_end_no_transaction_and_fence_no_coordinator(led: Led, stack: ExitStack) -> None:
    box = stack.enter_context(closing(Client(led.leader.kafka)))
    stranger = stack.enter_context(closing(Client(led.leader.kafka, STRANGER)))
    code, begun = box.produce_batch(TOPIC, 0, transactional_batch(7, 0, 0, b"open"))
    assert code == 0

    def state() -> tuple[int, int]:
        (producer,) = [each for each in box.describe_producers(TOPIC, 0) if each.producer_id == 7]
        return int(producer.current_txn_start_offset), int(producer.coordinator_epoch)

    assert state() == (begun, -1)
    assert stranger.write_marker(TOPIC, [0, 1], 7, 0, False, coordinator_epoch=2**31 - 1) == [REFUSED, REFUSED]
    assert state() == (begun, -1) and box.stable_end(TOPIC, 0) == begun
    assert box.write_marker(TOPIC, [0], 7, 0, True, coordinator_epoch=0) == [0], "the coordinator is not fenced"
    assert state() == (-1, 0)


def test_partitions_join_a_transaction_in_batches_for_boxes_only(tmp_path: Path, start_shared: Callable[..., RunningBox], stack: ExitStack) -> None:
    coordinator = start_shared(tmp_path / "box", disks=1, settings=SETTINGS)
    stack.callback(coordinator.stop)
    box = stack.enter_context(closing(Client(coordinator.kafka)))
    stranger = stack.enter_context(closing(Client(coordinator.kafka, STRANGER)))
    box.create_topic(TOPIC, 1)

    def begin() -> Any:
        box.ask_as_data(cluster_apis.FIND_COORDINATOR_REQUEST, cluster_apis.FIND_COORDINATOR_RESPONSE, 3, cluster_apis.FindCoordinatorRequest("payments", 1))
        asked = transaction_apis.InitProducerIdRequest("payments", 60_000)
        answer = box.ask_as_data(transaction_apis.INIT_PRODUCER_ID_REQUEST, transaction_apis.INIT_PRODUCER_ID_RESPONSE, 4, asked)
        return answer if answer.error_code == 0 else None

    producer = eventually(begin, "the coordinator gives a producer id")
    wanted = transaction_apis.TransactionToExtend("payments", producer.producer_id, producer.producer_epoch, False, (TopicPartitions(TOPIC, (0,)),))

    def add(client: Client) -> Any:
        request = transaction_apis.AddPartitionsToTxnRequest((wanted,))
        return client.ask_as_data(transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, 4, request)

    def described() -> tuple[str, int]:
        request = transaction_apis.DescribeTransactionsRequest(("payments",))
        (answer,) = box.ask_as_data(transaction_apis.DESCRIBE_TRANSACTIONS_REQUEST, transaction_apis.DESCRIBE_TRANSACTIONS_RESPONSE, 0, request).transactions
        return answer.transaction_state, len(answer.topics)

    before = described()
    refused = add(stranger)
    assert (refused.error_code, refused.transactions) == (REFUSED, ())
    assert described() == before and before[0] != ONGOING
    assert add(box).error_code == 0 and described() == (ONGOING, 1)


def test_operators_of_a_box_of_its_own_may_write_markers_over_loopback(tmp_path: Path, start_shared: Callable[..., RunningBox], stack: ExitStack) -> None:
    box = start_shared(tmp_path / "box", disks=1, settings={"transaction.partition.verification.enable": False})
    stack.callback(box.stop)
    operator = stack.enter_context(closing(Client(box.kafka, STRANGER)))
    operator.create_topic("ledger", 1)
    assert operator.produce_batch("ledger", 0, transactional_batch(7, 0, 0, b"open"))[0] == 0
    assert operator.write_marker("ledger", [0], 7, 0, False) == [0]
