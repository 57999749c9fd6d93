"""Other boxes as an agent asks them (`client.peers.Peers`): questions are kept, and answered when the test says so."""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.client.peers import OnAnswer, OnBody
from appliance.ipc.request_frames import KafkaRequest
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import TxnMarkerResult, WriteTxnMarkersResponse


class Question(NamedTuple):
    """What one box was asked. `body` is what it reads."""

    broker_id: int
    channel: int
    body: Any
    reply: Message[Any]
    version: int
    on_answer: OnAnswer

    def answer(self, response: Any) -> None:
        """Over the wire and back; None: no box answers."""
        if response is not None:
            encoded = self.reply.encode(self.version, response)
            response = self.reply.decode(encoded, 0, len(encoded), self.version)
        self.on_answer(response)

    def answer_markers(self, *codes: int) -> None:
        """One code for all partitions, or one for each in the order of the request."""
        each = iter(codes)
        results = tuple(
            TxnMarkerResult(
                marker.producer_id,
                tuple(
                    TopicResult(topic.topic, tuple(PartitionResult(number, codes[0] if len(codes) == 1 else next(each)) for number in topic.partitions))
                    for topic in marker.topics
                ),
            )
            for marker in self.body.markers
        )
        self.answer(WriteTxnMarkersResponse(results))


class AskedBoxes:
    """Every box there is. `brokers` is the last list that `refresh` received."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.brokers: Any = {}
        self.passed_on: list[tuple[int, OnBody]] = []
        """Channel of each request that was passed on, and what takes the body of its response."""
        self.client_ids: set[str] = set()
        """Those of the requests that were passed on."""

    def refresh(self, brokers: Any) -> None:
        self.brokers = brokers

    def ask(
        self,
        broker_id: int,
        question: Message[Any],
        reply: Message[Any],
        body: Any,
        on_answer: OnAnswer,
        timeout_ms: int,
        *,
        version_min: int = 0,
        channel: int = 0,
    ) -> None:
        version = question.api.version_max
        assert timeout_ms > 0 and version_min <= version
        encoded = question.encode(version, body)
        self.questions.append(Question(broker_id, channel, question.decode(encoded, 0, len(encoded), version), reply, version, on_answer))

    def pass_on(self, broker_id: int, request: KafkaRequest, on_body: OnBody, timeout_ms: int, *, channel: int, client_id: str) -> None:
        self.passed_on.append((channel, on_body))
        self.client_ids.add(client_id)
