"""Questions about a transaction to the box that coordinates it: AddPartitionsToTxn from version 4 on, which brokers ask each other (KIP-890).

Which box that is the image says: the leader of the transactional id's partition of `__transaction_state`. Used by acceptors (before a transaction's first
batch in a partition) and by the coordinator process (before offsets that join one). Owned by one process. Weak spot: a coordinator that was replaced in this
moment and has not heard of it answers by what it remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER
from appliance.client.peers import OnAnswer
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import TRANSACTIONS_TOPIC, partition_of
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    ADD_PARTITIONS_TO_TXN_REQUEST,
    ADD_PARTITIONS_TO_TXN_RESPONSE,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionToExtend,
)

VERSION_MIN: Final = 4
TIMEOUT_MS: Final = 5_000

Partitions = Sequence[tuple[str, int]]
OnCodes = Callable[[Sequence[int]], None]
"""Called once with an error code for each partition, in the order of the question."""


class TransactionRequester(Protocol):
    """`client.peers.Peers`, as far as it is needed."""

    def ask(
        self,
        broker_id: int,
        question: Message[AddPartitionsToTxnRequest],
        reply: Message[AddPartitionsToTxnResponse],
        body: AddPartitionsToTxnRequest,
        on_answer: OnAnswer,
        timeout_ms: int,
        *,
        version_min: int,
    ) -> None: ...


class TransactionPeers:
    """Implements `transaction_gate.TransactionVerifier` for transactions that other boxes coordinate."""

    def __init__(self, view: MetadataCache, peers: TransactionRequester) -> None:
        self._view = view
        self._peers = peers

    def other_coordinator(self, transactional_id: str) -> int:
        """Return the box that coordinates a transactional id; -1 if this box does, or none."""
        topic = self._view.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return NO_LEADER
        leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        return NO_LEADER if leader == self._view.broker_id else leader

    def verify(self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Partitions, add: bool, on_answer: OnCodes) -> None:
        wanted = question(transactional_id, producer_id, producer_epoch, partitions, add)
        self._peers.ask(
            self.other_coordinator(transactional_id),
            ADD_PARTITIONS_TO_TXN_REQUEST,
            ADD_PARTITIONS_TO_TXN_RESPONSE,
            AddPartitionsToTxnRequest((wanted,)),
            lambda response: on_answer(codes(response, partitions)),
            TIMEOUT_MS,
            version_min=VERSION_MIN,
        )


def question(transactional_id: str, producer_id: int, producer_epoch: int, partitions: Partitions, add: bool) -> TransactionToExtend:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    topics = tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic.items())
    return TransactionToExtend(transactional_id, producer_id, producer_epoch, not add, topics)


def codes(response: AddPartitionsToTxnResponse | None, partitions: Partitions) -> list[int]:
    """One for each partition; COORDINATOR_NOT_AVAILABLE without a response, and from a box that does not know this one's address yet: producers try again."""
    if response is None or response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(partitions)
    found = {(result.topic, each.partition): each.error_code for answered in response.transactions for result in answered.topics for each in result.partitions}
    return [found.get(partition, response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions]
