"""A Kafka connection of the tests' own: requests are kio's, frames are sent as the test says, replies are read one by one.

For what no client library does on purpose: pipelining without waiting, acks=0 to nowhere, tiny fetches. Not a codec of ours, so that ours is judged.
"""

from __future__ import annotations

import dataclasses
import datetime
import socket
import struct
from typing import Any, NamedTuple

from lab import kio_adapter
from lab.protocol_messages import kio_element, kio_message

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 3, 18, 19
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, METADATA_VERSION, API_VERSIONS_VERSION, CREATE_TOPICS_VERSION = 7, 11, 5, 8, 2, 4


class Fetched(NamedTuple):
    error_code: int
    high_watermark: int
    records: bytes


class Produced(NamedTuple):
    error_code: int
    base_offset: int


class RawClient:
    """All versions used here have the old request and response headers."""

    def __init__(self, address: tuple[str, int], source: str = "", client_id: str = "raw", seconds: float = 90.0) -> None:
        """`source`: the address to connect from; all of 127.0.0.0/8 is there. `seconds`: the longest wait for a connection, and for a part of an answer."""
        self._client_id = client_id.encode()
        self.sock = socket.create_connection(address, timeout=seconds, source_address=(source, 0) if source else None)
        self._next_correlation_id = 1_000_000

    def close(self) -> None:
        self.sock.close()

    def send(self, api_key: int, version: int, body: bytes, correlation_id: int | None = None) -> int:
        if correlation_id is None:
            correlation_id = self._next_correlation_id = self._next_correlation_id + 1
        frame = struct.pack(">hhih", api_key, version, correlation_id, len(self._client_id)) + self._client_id + body
        self.sock.sendall(struct.pack(">i", len(frame)) + frame)
        return correlation_id

    def receive(self) -> tuple[int, bytes]:
        """(correlation id, body) of the next reply."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        reply = self._receive_exactly(size)
        return struct.unpack_from(">i", reply)[0], reply[4:]

    def receive_correlation_id(self) -> int:
        return self.receive()[0]

    def _receive_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            data = self.sock.recv(size)
            assert data, "the box closed the connection"
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _ask(self, api_key: int, version: int, body: bytes) -> Any:
        sent = self.send(api_key, version, body)
        received, reply = self.receive()
        assert received == sent
        return kio_adapter.decode_response(api_key, version, reply)

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        request_class = kio_adapter.request_class(CREATE_TOPICS, CREATE_TOPICS_VERSION)
        topic_class = kio_element(request_class, "topics")
        config_class = kio_element(topic_class, "configs")
        configs = tuple(config_class(name=key.replace("_", "."), value=value) for key, value in config.items())
        topic = topic_class(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=configs)
        request = request_class(topics=(topic,), timeout=datetime.timedelta(seconds=60), validate_only=False)
        answer = self._ask(CREATE_TOPICS, CREATE_TOPICS_VERSION, kio_adapter.encode(request))
        assert int(answer.topics[0].error_code) == 0, answer

    def send_produce(self, topic: str, partition: int, batch: bytes, acks: int = -1, correlation_id: int | None = None, timeout_seconds: int = 20) -> None:
        request_class = kio_adapter.request_class(PRODUCE, PRODUCE_VERSION)
        topic_class = kio_element(request_class, "topic_data")
        partition_class = kio_element(topic_class, "partition_data")
        topic_data = (topic_class(name=topic, partition_data=(partition_class(index=partition, records=batch),)),)
        request = request_class(transactional_id=None, acks=acks, timeout=datetime.timedelta(seconds=timeout_seconds), topic_data=topic_data)
        self.send(PRODUCE, PRODUCE_VERSION, kio_adapter.encode(request), correlation_id)

    def receive_produce(self) -> Produced:
        answer = kio_adapter.decode_response(PRODUCE, PRODUCE_VERSION, self.receive()[1])
        result = answer.responses[0].partition_responses[0]
        return Produced(int(result.error_code), result.base_offset)

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> Produced:
        self.send_produce(topic, partition, batch, acks)
        return self.receive_produce()

    def send_fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
    ) -> None:
        request_class = kio_adapter.request_class(FETCH, FETCH_VERSION)
        topic_class = kio_element(request_class, "topics")
        wanted = kio_message(
            kio_element(topic_class, "partitions"),
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=partition_max_bytes,
        )
        request = kio_message(
            request_class,
            replica_id=-1,
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(kio_message(topic_class, topic=topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
        self.send(FETCH, FETCH_VERSION, kio_adapter.encode(request))

    def receive_fetch(self) -> Fetched:
        answer = kio_adapter.decode_response(FETCH, FETCH_VERSION, self.receive()[1])
        result = answer.responses[0].partitions[0]
        return Fetched(int(result.error_code), result.high_watermark, bytes(result.records or b""))

    def fetch(self, topic: str, partition: int, offset: int, **options: int) -> Fetched:
        self.send_fetch(topic, partition, offset, **options)
        return self.receive_fetch()

    def is_served(self, topic: str, partitions: int) -> bool:
        """Whether every partition answers: those of one disk may be served before those of another."""
        return all(self.fetch(topic, partition, 0).error_code == 0 for partition in range(partitions))

    def list_offset(self, topic: str, partition: int, timestamp: int) -> int:
        request_class = kio_adapter.request_class(LIST_OFFSETS, LIST_OFFSETS_VERSION)
        topic_class = kio_element(request_class, "topics")
        partition_class = kio_element(topic_class, "partitions")
        wanted = topic_class(name=topic, partitions=(kio_message(partition_class, partition_index=partition, current_leader_epoch=-1, timestamp=timestamp),))
        answer = self._ask(LIST_OFFSETS, LIST_OFFSETS_VERSION, kio_adapter.encode(request_class(replica_id=-1, isolation_level=0, topics=(wanted,))))
        result = answer.topics[0].partitions[0]
        assert int(result.error_code) == 0, int(result.error_code)
        return int(result.offset)

    def send_metadata(self, topics: list[str], correlation_id: int | None = None, creates: bool = False) -> None:
        request_class = kio_adapter.request_class(METADATA, METADATA_VERSION)
        topics_type: Any = next(field.type for field in dataclasses.fields(request_class) if field.name == "topics")
        topic_class = topics_type.__args__[0].__args__[0]  # tuple[Topic, ...] | None
        request = kio_message(
            request_class,
            topics=tuple(topic_class(name=name) for name in topics),
            allow_auto_topic_creation=creates,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self.send(METADATA, METADATA_VERSION, kio_adapter.encode(request), correlation_id)

    def api_versions(self) -> int:
        """How many APIs are served."""
        return len(self._ask(API_VERSIONS, API_VERSIONS_VERSION, b"").api_keys)
