"""Leaders that say what they have of producers: played, with every question through its codec. For those who ask what became of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.model import ProducerId
from appliance.protocol import offset_apis, transaction_apis
from appliance.protocol.schema import Message


class PlayedLeaders:
    """Answers as brokers would, when the test steps; every message goes through its codec."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[int, int]] = {}
        """producer id → (epoch, last sequence)"""
        self.end_offset = self.high_watermark = 100
        self.error_code = 0
        self.is_away = False
        self.leader_epoch = 3
        self.asked: list[tuple[int, str]] = []
        self._waiting: list[tuple[Message[Any], Any, Callable[[Any], None]]] = []

    def ask(
        self,
        broker_id: int,
        question: Message[Any],
        reply: Message[Any],
        body: Any,
        on_answer: Callable[[Any], None],
        timeout_ms: int,
        *,
        version_min: int | None = None,
        channel: int = 0,
    ) -> None:
        version = question.api.version_max
        encoded = question.encode(version, body)
        self.asked.append((broker_id, type(question.decode(encoded, 0, len(encoded), version)).__name__))
        self._waiting.append((question, body, on_answer))

    def answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for question, body, on_answer in waiting:
            on_answer(None if self.is_away else self._answer_to(question, body.topics[0]))

    def _answer_to(self, question: Message[Any], topic: Any) -> Any:
        if question is transaction_apis.DESCRIBE_PRODUCERS_REQUEST:
            producers = tuple(transaction_apis.ActiveProducer(ProducerId(producer_id), *last) for producer_id, last in self.last.items())
            partition = transaction_apis.ProducersOfPartition(topic.partitions[0], self.error_code, None, producers)
            return transaction_apis.DescribeProducersResponse(0, (transaction_apis.ProducersOfTopic(topic.topic, (partition,)),))
        number = topic.partitions[0].partition
        if question is offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST:
            found = offset_apis.EpochPartitionResult(self.error_code, number, self.leader_epoch, self.end_offset)
            return offset_apis.OffsetForLeaderEpochResponse(0, (offset_apis.EpochTopicResult(topic.topic, (found,)),))
        result = offset_apis.ListOffsetsPartitionResult(number, self.error_code, -1, self.high_watermark)
        return offset_apis.ListOffsetsResponse(0, (offset_apis.ListOffsetsTopicResult(topic.topic, (result,)),))
