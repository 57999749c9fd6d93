"""Transactions frame by frame, without a coordinator: transactional batches, WriteTxnMarkers, DescribeProducers and read_committed fetches.

Requests and replies are kio's. The box must not ask a coordinator: `transaction.partition.verification.enable` is false for these tests.
"""

from __future__ import annotations

import datetime
import struct
from typing import Any, NamedTuple

from appliance.records.batch import ATTRIBUTES_AT, CRC_AT, PRODUCER_ID_AT, TRANSACTIONAL_FLAG
from appliance.records.builder import BatchBuilder
from appliance.records.crc32c import crc32c
from lab import kio_adapter
from lab.protocol_messages import kio_element, kio_message
from lab.raw_client import FETCH, LIST_OFFSETS, PRODUCE, RawClient

WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 27, 61
READ_COMMITTED = 1
LATEST = -1


class CommittedFetch(NamedTuple):
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    records: bytes


def transactional_batch(
    producer_id: int, producer_epoch: int, sequence: int, *values: bytes, is_transactional: bool = True, timestamp_ms: int = 1_700_000_000_000
) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(timestamp_ms, None, value)
    raw = bytearray(builder.build())
    raw[ATTRIBUTES_AT + 1] |= TRANSACTIONAL_FLAG if is_transactional else 0
    raw[PRODUCER_ID_AT : PRODUCER_ID_AT + 14] = struct.pack(">qhi", producer_id, producer_epoch, sequence)
    raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(raw)


class RawTransactions(RawClient):
    """All versions used here are flexible."""

    def ask(self, api_key: int, version: int, request: Any) -> Any:
        sent = self.send(api_key, version, b"\0" + kio_adapter.encode(request))
        received, reply = self.receive()
        assert received == sent and reply[0] == 0
        return kio_adapter.decode_response(api_key, version, reply[1:])

    def produce_batch(self, topic: str, partition: int, batch: bytes, transactional_id: str | None = "tx", version: int = 11) -> tuple[int, int]:
        """(error code, base offset)."""
        return self.produce_batches(topic, {partition: batch}, transactional_id, version)[0]

    def produce_batches(self, topic: str, batches: dict[int, bytes], transactional_id: str | None = "tx", version: int = 11) -> list[tuple[int, int]]:
        """The same for several partitions in one request."""
        request_class = kio_adapter.request_class(PRODUCE, version)
        topic_class = kio_element(request_class, "topic_data")
        data = tuple(kio_element(topic_class, "partition_data")(index=partition, records=batch) for partition, batch in batches.items())
        topics = (topic_class(name=topic, partition_data=data),)
        request = request_class(transactional_id=transactional_id, acks=-1, timeout=datetime.timedelta(seconds=20), topic_data=topics)
        results = self.ask(PRODUCE, version, request).responses[0].partition_responses
        return [(int(result.error_code), int(result.base_offset)) for result in results]

    def write_marker(self, topic: str, partitions: list[int], producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int = 0) -> list[int]:
        """An error code for each partition."""
        request_class = kio_adapter.request_class(WRITE_TXN_MARKERS, 1)
        marker_class = kio_element(request_class, "markers")
        marker = marker_class(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=is_commit,
            topics=(kio_element(marker_class, "topics")(name=topic, partition_indexes=tuple(partitions)),),
            coordinator_epoch=coordinator_epoch,
        )
        answer = self.ask(WRITE_TXN_MARKERS, 1, request_class(markers=(marker,)))
        assert answer.markers[0].producer_id == producer_id
        return [int(result.error_code) for result in answer.markers[0].topics[0].partitions]

    def describe_producers(self, topic: str, partition: int) -> list[Any]:
        request_class = kio_adapter.request_class(DESCRIBE_PRODUCERS, 0)
        topics = (kio_element(request_class, "topics")(name=topic, partition_indexes=(partition,)),)
        result = self.ask(DESCRIBE_PRODUCERS, 0, request_class(topics=topics)).topics[0].partitions[0]
        assert int(result.error_code) == 0
        return list(result.active_producers)

    def send_committed_fetch(
        self, topic: str, partition: int, offset: int, max_wait_ms: int = 0, partition_max_bytes: int = 1 << 20, session: tuple[int, int] = (0, -1)
    ) -> None:
        request_class = kio_adapter.request_class(FETCH, 12)
        topic_class = kio_element(request_class, "topics")
        wanted = kio_message(
            kio_element(topic_class, "partitions"),
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=partition_max_bytes,
        )
        request = kio_message(
            request_class,
            replica_id=-1,
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=50 << 20,
            isolation_level=READ_COMMITTED,
            session_id=session[0],
            session_epoch=session[1],
            topics=(kio_message(topic_class, topic=topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
            rack_id="",
            cluster_id=None,
        )
        self.send(FETCH, 12, b"\0" + kio_adapter.encode(request))

    def receive_committed_fetch(self) -> CommittedFetch:
        answer = kio_adapter.decode_response(FETCH, 12, self.receive()[1][1:])
        result = answer.responses[0].partitions[0]
        aborted = [(int(each.producer_id), int(each.first_offset)) for each in result.aborted_transactions or ()]
        return CommittedFetch(int(result.error_code), result.high_watermark, result.last_stable_offset, aborted, bytes(result.records or b""))

    def committed_fetch(self, topic: str, partition: int, offset: int, **options: Any) -> CommittedFetch:
        self.send_committed_fetch(topic, partition, offset, **options)
        return self.receive_committed_fetch()

    def stable_end(self, topic: str, partition: int) -> int:
        """ListOffsets, latest, read_committed."""
        request_class = kio_adapter.request_class(LIST_OFFSETS, 7)
        topic_class = kio_element(request_class, "topics")
        wanted = kio_message(kio_element(topic_class, "partitions"), partition_index=partition, current_leader_epoch=-1, timestamp=LATEST)
        request = request_class(replica_id=-1, isolation_level=READ_COMMITTED, topics=(topic_class(name=topic, partitions=(wanted,)),))
        return int(self.ask(LIST_OFFSETS, 7, request).topics[0].partitions[0].offset)
