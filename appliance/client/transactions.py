"""Transactions from outside: which there are, what they go over, which hang, and ending one. One thread, through a ClusterClient. Source: KIP-664."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import BrokerId, ProducerId, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import TRANSACTION, CoordinatorClient, ask_every_broker
from appliance.client.errors import refused
from appliance.client.messages import DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID, LIST_TRANSACTIONS, WRITE_TXN_MARKERS
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    NO_TRANSACTION,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)

ENDING_TIMEOUT_MS = 60_000


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: ProducerId
    state: str
    coordinator: int


class TransactionDescription(NamedTuple):
    """`start_ms` is -1 where none goes on."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


class ProducerOnPartition(NamedTuple):
    """A producer as one partition's log remembers it; `start_offset` is -1 without an open transaction."""

    partition: TopicPartition
    producer_id: ProducerId
    producer_epoch: int
    last_timestamp: int
    coordinator_epoch: int
    start_offset: int


def list_transactions(cluster: ClusterClient) -> list[TransactionListing]:
    """Of all brokers, by name."""
    bodies = ask_every_broker(cluster, LIST_TRANSACTIONS, ListTransactionsRequest(), "list the transactions")
    return sorted(
        TransactionListing(one.transactional_id, one.producer_id, one.transaction_state, broker) for broker, body in bodies.items() for one in body.transactions
    )


def describe_transaction(cluster: ClusterClient, transactional_id: str) -> TransactionDescription:
    """Describe one transaction. Raises `RequestRefused` (TRANSACTIONAL_ID_NOT_FOUND) for an unknown id."""
    body = CoordinatorClient(cluster, TRANSACTION, transactional_id).ask(
        DESCRIBE_TRANSACTIONS,
        DescribeTransactionsRequest((transactional_id,)),
        f"describe transactional id {transactional_id!r}",
        lambda body: (body.transactions[0].error_code, None),
    )
    one = body.transactions[0]
    return TransactionDescription(
        one.transactional_id,
        one.producer_id,
        one.producer_epoch,
        one.transaction_state,
        one.transaction_timeout_ms,
        one.transaction_start_time_ms,
        tuple(sorted(TopicPartition(topic.topic, partition) for topic in one.topics for partition in topic.partitions)),
    )


def abort_transaction(cluster: ClusterClient, transactional_id: str) -> None:
    """Fence the producer and abort its open transaction, as a new producer with its id does (InitProducerId)."""
    described = describe_transaction(cluster, transactional_id)
    request = InitProducerIdRequest(transactional_id, min(described.timeout_ms, ENDING_TIMEOUT_MS))
    doing = f"abort the transaction of {transactional_id!r}"
    CoordinatorClient(cluster, TRANSACTION, transactional_id).ask(INIT_PRODUCER_ID, request, doing, lambda body: (body.error_code, None))


def active_producers(cluster: ClusterClient, topics: Iterable[str]) -> list[ProducerOnPartition]:
    """Of every partition of `topics`, as their leaders know them."""
    found: list[ProducerOnPartition] = []
    for name in topics:
        by_leader: dict[BrokerId, list[int]] = {}
        for partition in cluster.topic(name, complete=False).partitions:
            by_leader.setdefault(partition.leader, []).append(partition.partition)
        for leader, numbers in by_leader.items():
            body = cluster.ask_broker(leader, DESCRIBE_PRODUCERS, DescribeProducersRequest((TopicPartitions(name, tuple(numbers)),)))
            for topic in body.topics:
                for answer in topic.partitions:
                    partition_of = TopicPartition(name, answer.partition)
                    if answer.error_code != ErrorCode.NONE:
                        raise refused(answer.error_code, f"read the producers of {partition_of}", answer.error_message)
                    found += (
                        ProducerOnPartition(
                            partition_of,
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.last_timestamp_ms,
                            producer.coordinator_epoch,
                            producer.current_txn_start_offset,
                        )
                        for producer in answer.producers
                    )
    return found


def hanging(cluster: ClusterClient, topics: Iterable[str], min_age_ms: int, now_ms: int) -> list[ProducerOnPartition]:
    """Return producers with a transaction open for more than `min_age_ms` that no coordinator knows: no marker will ever end it (KIP-664)."""
    open_for_long = [each for each in active_producers(cluster, topics) if each.start_offset != NO_TRANSACTION and now_ms - each.last_timestamp > min_age_ms]
    if not open_for_long:
        return []
    by_producer = {listed.producer_id: listed.transactional_id for listed in list_transactions(cluster)}
    return [each for each in open_for_long if not _is_coordinated(cluster, by_producer.get(each.producer_id), each)]


def _is_coordinated(cluster: ClusterClient, transactional_id: str | None, producer: ProducerOnPartition) -> bool:
    if transactional_id is None:
        return False
    try:
        return producer.partition in describe_transaction(cluster, transactional_id).partitions
    except RequestRefused as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return False
        raise


def abort_in_partition(cluster: ClusterClient, producer: ProducerOnPartition) -> None:
    """Write an abort marker where a transaction hangs; the coordinator's own epoch, so that a living coordinator is not overruled."""
    doing = f"abort the transaction of producer {producer.producer_id} in {producer.partition}"
    leader = next(each.leader for each in cluster.topic(producer.partition.topic).partitions if each.partition == producer.partition.partition)
    topics = (TopicPartitions(producer.partition.topic, (producer.partition.partition,)),)
    marker = TxnMarker(producer.producer_id, producer.producer_epoch, False, topics, max(0, producer.coordinator_epoch))
    body = cluster.ask_broker(leader, WRITE_TXN_MARKERS, WriteTxnMarkersRequest((marker,)))
    code = body.markers[0].topics[0].partitions[0].error_code
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        advice = "run it on a box, with its certificate where boxes use TLS, or add this address to inter.broker.allowed.networks"
        raise refused(code, doing, f"only boxes write markers: {advice}")
    if code != ErrorCode.NONE:
        raise refused(code, doing)
