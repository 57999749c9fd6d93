"""Transactions from outside: which there are, what they go over, which hang, and ending one. One thread, through a ClusterClient. Source: KIP-664."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, ProducerId, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import TRANSACTION, CoordinatorClient, ask_every_broker
from appliance.client.errors import refused
from appliance.client.messages import DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID, LIST_TRANSACTIONS, WRITE_TXN_MARKERS
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    NO_TRANSACTION,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)

ENDING_TIMEOUT_MS = 60_000
PARTITIONS_ASKED = 200
"""By one request: a partition may have 20,000 producers, of which the answer is long."""


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
    return _description(body.transactions[0])


def describe_transactions(cluster: ClusterClient, listed: Iterable[TransactionListing]) -> list[TransactionDescription]:
    """Describe several by one request to each of their coordinators. One that is gone by now, or coordinated elsewhere, is left out."""
    by_coordinator: dict[int, list[str]] = {}
    for each in listed:
        by_coordinator.setdefault(each.coordinator, []).append(each.transactional_id)
    found = []
    for coordinator, ids in by_coordinator.items():
        body = cluster.ask_broker(BrokerId(coordinator), DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(tuple(ids)))
        found += [_description(one) for one in body.transactions if one.error_code == ErrorCode.NONE]
    return found


def _description(one: DescribedTransaction) -> TransactionDescription:
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


def _raise(_partition: TopicPartition, refusal: RequestRefused) -> None:
    raise refusal


def active_producers(
    cluster: ClusterClient, topics: Iterable[str], on_refused: Callable[[TopicPartition, RequestRefused], None] = _raise
) -> list[ProducerOnPartition]:
    """Of every partition of `topics`, as their leaders know them; a partition that refuses raises, unless `on_refused` takes it."""
    names = list(topics)
    known = cluster.metadata(names).topics
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for name in names:
        topic = known.get(name)
        if topic is None or topic.error != ErrorCode.NONE:
            topic = cluster.topic(name, complete=False)
        for partition in topic.partitions:
            by_leader.setdefault(partition.leader, []).append(TopicPartition(name, partition.partition))
    for each in by_leader.pop(NO_LEADER, []):
        on_refused(each, refused(ErrorCode.LEADER_NOT_AVAILABLE, f"read the producers of {each}"))
    found: list[ProducerOnPartition] = []
    for leader, partitions in by_leader.items():
        for start in range(0, len(partitions), PARTITIONS_ASKED):
            found += _producers_on(cluster, leader, partitions[start : start + PARTITIONS_ASKED], on_refused)
    return found


def _producers_on(
    cluster: ClusterClient, leader: BrokerId, partitions: list[TopicPartition], on_refused: Callable[[TopicPartition, RequestRefused], None]
) -> Iterator[ProducerOnPartition]:
    by_topic: dict[str, list[int]] = {}
    for each in partitions:
        by_topic.setdefault(each.topic, []).append(each.partition)
    request = DescribeProducersRequest(tuple(TopicPartitions(name, tuple(numbers)) for name, numbers in by_topic.items()))
    body = cluster.ask_broker(leader, DESCRIBE_PRODUCERS, request)
    for name, answer in ((topic.topic, answer) for topic in body.topics for answer in topic.partitions):
        partition_of = TopicPartition(name, answer.partition)
        if answer.error_code != ErrorCode.NONE:
            on_refused(partition_of, refused(answer.error_code, f"read the producers of {partition_of}", answer.error_message))
        for producer in answer.producers:
            yield ProducerOnPartition(
                partition_of,
                producer.producer_id,
                producer.producer_epoch,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
            )


def hanging(cluster: ClusterClient, topics: Iterable[str], min_age_ms: int, now_ms: int) -> list[ProducerOnPartition]:
    """Return producers with a transaction open for more than `min_age_ms` that no coordinator knows: no marker will ever end it (KIP-664)."""
    return uncoordinated(cluster, active_producers(cluster, topics), min_age_ms, now_ms)


def uncoordinated(cluster: ClusterClient, producers: Iterable[ProducerOnPartition], min_age_ms: int, now_ms: int) -> list[ProducerOnPartition]:
    """Return those of `producers` that hang, as `hanging` does. Raises RequestRefused
    (TRANSACTIONAL_ID_AUTHORIZATION_FAILED) if the principal may not describe all transactional ids: those that it does
    not see would count as hanging. Weak: entries that deny it single ids are not noticed."""
    open_for_long = [each for each in producers if each.start_offset != NO_TRANSACTION and now_ms - each.last_timestamp > min_age_ms]
    if not open_for_long:
        return []
    by_producer = {listed.producer_id: listed.transactional_id for listed in list_transactions(cluster)}
    found = [each for each in open_for_long if not _is_coordinated(cluster, by_producer.get(each.producer_id), each)]
    if found:
        _require_all_ids(cluster)
    return found


def _require_all_ids(cluster: ClusterClient) -> None:
    """Raise RequestRefused unless the principal may describe an id that does not exist."""
    try:
        describe_transaction(cluster, f"millrace-{secrets.token_hex(16)}")
    except RequestRefused as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise refused(error.code, "say which transactions hang", "it needs Describe on all transactional ids") from error
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise


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
        raise refused(code, doing, f"only boxes write markers: {advice}; with an authorizer it needs Alter on the cluster")
    if code != ErrorCode.NONE:
        raise refused(code, doing)
