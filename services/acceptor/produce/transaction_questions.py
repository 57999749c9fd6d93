"""The way from an acceptor to the coordinator of a transaction: AddPartitionsToTxn 4, which brokers ask each other, over the box's coordinator socket, or to
the box that coordinates it.

Implements `transaction_gate.TransactionVerifier`. Owned by one acceptor. A coordinator that is away or dies is COORDINATOR_NOT_AVAILABLE, which producers hear
as something to try again. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.base.model import NO_LEADER
from appliance.client.transaction_gate import TIMEOUT_MS, OnVerified, TransactionPeers, codes, question
from appliance.ipc.coordinator_link import CoordinatorLink
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol import transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.transaction_apis import AddPartitionsToTxnRequest

VERSION: Final = 5


class TransactionQuestions:
    """All of one acceptor."""

    def __init__(self, coordinator: CoordinatorLink, elsewhere: TransactionPeers) -> None:
        self._coordinator = coordinator
        self._elsewhere = elsewhere

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]], add: bool, on_answer: OnVerified
    ) -> None:
        if self._elsewhere.other_coordinator(transactional_id) != NO_LEADER:
            self._elsewhere.verify(transactional_id, producer_id, producer_epoch, partitions, add, on_answer)
            return
        wanted = question(transactional_id, producer_id, producer_epoch, partitions, add)
        body = transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST.encode(VERSION, AddPartitionsToTxnRequest((wanted,)))

        def on_response(payload: bytes | None) -> None:
            on_answer(codes(transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE.decode(payload, 0, len(payload), VERSION) if payload else None, partitions))

        request = pack_kafka_request(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, "", "", body)
        self._coordinator.request(KAFKA_REQUEST, request, TIMEOUT_MS, on_response, answer_timeout_ms=TIMEOUT_MS)
