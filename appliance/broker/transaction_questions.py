"""The way from an acceptor to the coordinator of a transaction: AddPartitionsToTxn 4, which brokers ask each other, over the box's coordinator socket.

Implements `transaction_gate.TransactionVerifier`. Owned by one acceptor. A coordinator that is away or dies is COORDINATOR_NOT_AVAILABLE, which producers hear
as something to try again. Weak spot: a transaction that another box coordinates cannot be asked about yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.broker.transaction_gate import OnVerified
from appliance.ipc.coordinator_link import CoordinatorLink
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol import add_partitions_to_txn
from appliance.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, TransactionToExtend
from appliance.protocol.apis import ApiKey
from appliance.protocol.topic_partitions import TopicPartitions

VERSION: Final = 5
TIMEOUT_MS = 5_000


class TransactionQuestions:
    """All of one acceptor."""

    def __init__(self, coordinator: CoordinatorLink) -> None:
        self._coordinator = coordinator

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]], add: bool, on_answer: OnVerified
    ) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        topics = tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic.items())
        wanted = TransactionToExtend(transactional_id, producer_id, producer_epoch, not add, topics)
        body = add_partitions_to_txn.REQUEST.encode(VERSION, AddPartitionsToTxnRequest((wanted,)))

        def on_response(payload: bytes | None) -> None:
            if not payload:
                on_answer([ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(partitions))
                return
            response = add_partitions_to_txn.RESPONSE.decode(payload, 0, len(payload), VERSION)
            codes = {
                (result.topic, each.partition): each.error_code
                for answered in response.transactions
                for result in answered.topics
                for each in result.partitions
            }
            on_answer([codes.get(partition, response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions])

        request = pack_kafka_request(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, "", "", body)
        self._coordinator.request(KAFKA_REQUEST, request, TIMEOUT_MS, on_response, answer_timeout_ms=TIMEOUT_MS)
